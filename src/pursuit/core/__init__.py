"""What a mission means: pure, no I/O, no clock."""
