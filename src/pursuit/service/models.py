"""Whether the language model of a mission can be asked here, be told everything, and kept to its caps.

Owns: these checks and their words. Asks no model anything.
"""

from __future__ import annotations

from collections.abc import Collection

from pursuit.core.mission import Mission, ModelProposer
from pursuit.errors import ExtraMissing, Fault, ModelUnavailable
from pursuit.proposers.language import Models
from pursuit.proposers.model import lack_of_room
from pursuit.proposers.prompt import LEAST


async def model_faults(mission: Mission, models: Models, among: Collection[str] | None = None) -> list[Fault]:
    """Why a mission's model cannot be asked, before anything is spent.

    A mission that the operator did not write spends the operator's keys: its model must be `among` these.
    """
    if not isinstance(mission.proposer, ModelProposer):
        return []
    name = mission.proposer.model
    if among is not None and name not in among:
        return [Fault(field="proposer.model", reason=_not_yours(name, among))]
    try:
        await models.check(name)
    except (ExtraMissing, ModelUnavailable) as error:
        return [Fault(field="proposer.model", reason=error.message)]
    if mission.budget.max_cost_usd != -1 and not models.priced(name):
        reason = (
            f"the price of {name} is not known, so this cap cannot be kept; "
            f'give the price under [prices."{name}"] in pursuit.toml, or cap max_tokens instead'
        )
        return [Fault(field="budget.max_cost_usd", reason=reason)]
    return []


def prompt_warnings(mission: Mission, room: int) -> list[str]:
    """That the operator's own words are longer than a prompt has room for."""
    limit = max(room, LEAST)
    missing = lack_of_room(mission, limit)
    if not missing:
        return []
    return [
        f"directive, instructions and criteria do not fit into a prompt of {limit} bytes and are cut in it; "
        f"say them shorter, or set prompt_bytes = {limit + missing} under [settings] in pursuit.toml"
    ]


def _not_yours(name: str, among: Collection[str]) -> str:
    """What a client that may not choose this model can do."""
    known = f"; it may be {', '.join(sorted(among))}" if among else ""
    return (
        f"{name} may not be chosen here, because it is paid with the operator's key{known}; the operator can add "
        f'client_models = ["{name}"] to pursuit.toml'
    )
