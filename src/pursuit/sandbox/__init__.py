"""Runs what users write, in worker processes with limits: predicates and scripts.

Importing this package imports no sandbox library; a command that used one ends with `leave` (see `pool`).
"""

from pursuit.sandbox.pool import SandboxLimits, leave, monty_started
from pursuit.sandbox.sandbox import PredicateValue, Sandbox
from pursuit.sandbox.scripts import Script
from pursuit.sandbox.values import (
    Calls,
    Finished,
    ScriptCall,
    ScriptFailure,
    ScriptSpec,
    Step,
    check_script,
    missing_modules,
)

__all__ = [
    "Calls",
    "Finished",
    "PredicateValue",
    "Sandbox",
    "SandboxLimits",
    "Script",
    "ScriptCall",
    "ScriptFailure",
    "ScriptSpec",
    "Step",
    "check_script",
    "leave",
    "missing_modules",
    "monty_started",
]
