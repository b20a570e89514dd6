"""Coding agents: the workspace that one works in, its process, and the protocol that it speaks."""
