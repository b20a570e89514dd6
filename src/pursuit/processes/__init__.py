"""Operating-system processes: each starts in its own session and is ended with everything that it started."""
