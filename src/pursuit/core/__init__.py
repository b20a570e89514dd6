"""The meaning of missions, as pure functions: no I/O, no clock."""
