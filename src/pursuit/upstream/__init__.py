"""Everything between Pursuit and an upstream tool."""
