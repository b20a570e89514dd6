"""Commands as tasks: processes that outlive us, their output, and their end."""

from pursuit.tasks.processes.command import Command
from pursuit.tasks.processes.processes import Processes

__all__ = ["Command", "Processes"]
