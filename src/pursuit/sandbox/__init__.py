"""Runs predicates and scripts of users in separate processes with limits.

Importing this package does not import the sandbox library; a command that used it must end with `leave` (see `pool`).
"""

from pursuit.sandbox.pool import leave, monty_started

__all__ = ["leave", "monty_started"]
