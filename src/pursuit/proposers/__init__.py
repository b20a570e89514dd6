"""Proposers: they suggest the next calls of a mission."""
