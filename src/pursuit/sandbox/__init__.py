"""What users write runs here, in worker processes with limits: predicates and scripted strategies.

Importing this package imports no sandbox; a command that used one ends with `leave` (see `pool`).
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
    fingerprint,
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
    "fingerprint",
    "leave",
    "monty_started",
]
