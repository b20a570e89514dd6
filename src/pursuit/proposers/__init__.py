"""Who suggests the next calls."""
