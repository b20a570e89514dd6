"""The operations for user interfaces."""
