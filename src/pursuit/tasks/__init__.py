"""Tasks: long work with a durable record that outlives connections, terminals and processes.

    task = await create_task(store, title="Fold the laundry")
    async with task_execution(task.task_id, store) as ctx:
        await ctx.complete({"folded": 3})

`store` is a `TaskRecords`: `runtime.tasks.store`, whose events are in the ledger or in `Runtime(task_store=…)`.
Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pursuit.tasks.execution import TaskContext, task_execution
    from pursuit.tasks.host import InvalidTask, cancel_task
    from pursuit.tasks.record import generate_task_id, is_terminal
    from pursuit.tasks.store import TaskRecords, create_task

_MODULES = {
    "TaskContext": "execution",
    "task_execution": "execution",
    "InvalidTask": "host",
    "cancel_task": "host",
    "generate_task_id": "record",
    "is_terminal": "record",
    "TaskRecords": "store",
    "create_task": "store",
}

__all__ = [
    "InvalidTask",
    "TaskContext",
    "TaskRecords",
    "cancel_task",
    "create_task",
    "generate_task_id",
    "is_terminal",
    "task_execution",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"pursuit.tasks.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'pursuit.tasks' has no attribute {name!r}")
