"""Coding agents: the workspace, the process and the protocol of an agent."""
