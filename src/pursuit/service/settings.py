"""What the `[settings]` of a configuration mean for each part.

Owns: the names of settings where the parts are made. Does not know: the parts themselves, or where a setting was read.
Invariant: a setting that is not given is the part's own default.
"""

from __future__ import annotations

from collections.abc import Mapping

from pursuit.config.configuration import Configuration
from pursuit.engine.context import Settings
from pursuit.proposers.choice import Choice
from pursuit.proposers.language import Price
from pursuit.proposers.prompt import LIMIT, ROOM
from pursuit.proposers.provider import Providers
from pursuit.sandbox import SandboxLimits
from pursuit.tasks.limits import DAY, Limits

MEGABYTE = 1024 * 1024


def choice_of(configuration: Configuration) -> Choice:
    """Who proposes, with the operator's prices and limits."""
    prices = {name: Price(input=read, output=written) for name, (read, written) in configuration.prices.items()}
    limit = int(configuration.settings.get("prompt_bytes", LIMIT))
    room = int(configuration.settings.get("tools_bytes", ROOM))
    return Choice(models=Providers(prices=prices), prompt_bytes=limit, tools_bytes=room)


def sandbox_limits(settings: Mapping[str, float]) -> SandboxLimits:
    """What a predicate and a script may use."""
    names = {"predicate_seconds": 1, "predicate_memory_mb": MEGABYTE, "script_seconds": 1, "script_memory_mb": MEGABYTE}
    given = {
        name.removesuffix("_mb"): settings[name] * unit if unit == 1 else int(settings[name] * unit)
        for name, unit in names.items()
        if name in settings
    }
    for name in ("script_calls", "script_workers"):
        if name in settings:
            given[name] = int(settings[name])
    return SandboxLimits(**given)  # pyright: ignore[reportArgumentType]


def engine_settings(settings: Mapping[str, float]) -> Settings:
    """How long the engine waits, and for what."""
    defaults = Settings()
    return Settings(
        call_timeout=settings.get("call_timeout", defaults.call_timeout),
        call_ceiling=settings.get("call_ceiling", defaults.call_ceiling),
        approval_timeout=settings.get("approval_timeout", defaults.approval_timeout),
        task_patience=settings.get("task_patience", defaults.task_patience),
        model_timeout=settings.get("model_timeout", defaults.model_timeout),
        memory_lessons=int(settings.get("memory_lessons", defaults.memory_lessons)),
    )


def task_limits(settings: Mapping[str, float]) -> Limits:
    """How many tasks there may be, and for how long."""
    defaults = Limits()
    return Limits(
        concurrent=int(settings.get("tasks_at_once", defaults.concurrent)),
        concurrent_each=int(settings.get("tasks_each", defaults.concurrent_each)),
        longest=settings.get("task_ttl_max", defaults.longest),
        kept_seconds=settings.get("task_kept_days", defaults.kept_seconds / DAY) * DAY,
        kept=int(settings.get("task_kept", defaults.kept)),
    )
