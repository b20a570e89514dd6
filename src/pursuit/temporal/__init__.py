"""Temporal as the placement of missions, for organisations that run it (`pursuit[temporal]`)."""
