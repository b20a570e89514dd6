"""The kinds `model` and `sampling`: how a mission with a language model is admitted, and its conversation opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pursuit.core.mission import Mission
from pursuit.errors import ExtraMissing, Fault, ModelUnavailable, advice
from pursuit.proposers.contract import DrivingPlace, MissionAdmission, Proposer, ProposerContext, SimpleKind
from pursuit.proposers.language import (
    OWN_SETTINGS,
    LanguageModel,
    Models,
    NoSampler,
)
from pursuit.proposers.model.asking import AskModel
from pursuit.proposers.model.settings import AskedProposer, ModelProposer, SamplingProposer


class ModelKind(SimpleKind[ModelProposer]):
    """The kind `model`."""

    settings = ModelProposer

    async def admit(self, settings: ModelProposer, admission: MissionAdmission) -> None:
        """Each model can be asked from here, by this client, and the caps on it can be kept."""
        if admission.models is None:
            return
        admission.faults += [
            Fault(
                field=f"proposer.settings.{key}",
                reason="settings must not change the model, the budget's caps or the request as a whole; remove it, "
                "and use the proposer's own keys model, max_tokens and temperature",
            )
            for key in OWN_SETTINGS
            if key in settings.settings
        ]
        await _admit_model(admission, admission.models, "proposer.model", settings.model)
        for place, name in enumerate(settings.fallback):
            await _admit_model(admission, admission.models, f"proposer.fallback[{place}]", name)

    async def ready(
        self, settings: ModelProposer, mission_id: str, mission: Mission, place: DrivingPlace
    ) -> Mapping[str, str]:
        """Each model can be asked."""
        for name in settings.models:
            await place.access.models.check(name)
        return {}

    def make(self, settings: ModelProposer, context: ProposerContext) -> Proposer:
        """Asks the models of a provider."""
        return _asking(settings, [context.place.access.models.open(name) for name in settings.models], context)


class SamplingKind(SimpleKind[SamplingProposer]):
    """The kind `sampling`."""

    settings = SamplingProposer

    def make(self, settings: SamplingProposer, context: ProposerContext) -> Proposer:
        """Asks the model of the client that drives."""
        return _asking(settings, [context.sampler or NoSampler()], context)


def _asking(settings: AskedProposer, models: Sequence[LanguageModel], context: ProposerContext) -> AskModel:
    return AskModel(settings, [context.record(model) for model in models], context)


async def _admit_model(admission: MissionAdmission, models: Models, field: str, name: str) -> None:
    """A mission that the operator did not write spends the operator's keys: its model must be among the allowed."""
    among = admission.among
    if among is not None and name not in among:
        known = f"; it may be {', '.join(sorted(among))}" if among else ""
        add = advice('client_models = ["{}"]', name)
        reason = f"{name} may not be chosen here: the operator pays for it{known}"
        admission.fault(field, f"{reason}; the operator can add {add} to pursuit.toml")
        return
    try:
        await models.check(name)
    except (ExtraMissing, ModelUnavailable) as error:
        admission.fault(field, error.message)
        return
    if admission.mission.budget.max_cost_usd != -1 and not models.priced(name):
        price = advice('`"{}" = {{ input = {}, output = {} }}` in `[prices]`', name, "DOLLARS", "DOLLARS")
        admission.fault(
            "budget.max_cost_usd",
            f"the price of {name} is not known, so this cap cannot be kept; "
            f"write it in pursuit.toml, in dollars for a million tokens: {price}; or cap max_tokens",
        )
