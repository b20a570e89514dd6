"""The command `pursuit`."""
