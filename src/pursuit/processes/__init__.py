"""Operating-system processes: each starts in its own session and is ended with all its descendants."""
