"""The language models of all providers, with their retries and their prices.

`pydantic_ai`, on which `provider_model` is built, is imported when the first model is opened, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio.to_thread

from pursuit.errors import ExtraMissing
from pursuit.proposers.language import Price, Retries, price_of

if TYPE_CHECKING:
    from pursuit.proposers.model.provider_model import ProviderModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Providers:
    """Every provider of pydantic-ai; keys and addresses come from the environment, as each provider names them.

    `prices` are the operator's, by the model's full name; they take precedence over the known prices.
    """

    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    retries: Retries = field(default_factory=Retries)
    _open: dict[str, ProviderModel] = field(default_factory=dict[str, "ProviderModel"])

    def open(self, name: str) -> ProviderModel:
        """Opens a model; the first one imports the library, which takes a second. Raises `ExtraMissing`."""
        try:
            from pursuit.proposers.model.provider_model import ProviderModel  # noqa: PLC0415 - the extra may be missing
        except ImportError:
            raise ExtraMissing(
                "a language model needs an extra that is not installed: pip install 'pursuit[models]'", extra="models"
            ) from None
        if name not in self._open:
            self._open[name] = ProviderModel(name=name, own_price=self.prices.get(name), retries=self.retries)
        return self._open[name]

    async def check(self, name: str) -> None:
        await anyio.to_thread.run_sync(lambda: self.open(name).find_window())

    async def aclose(self) -> None:
        for model in self._open.values():
            await model.aclose()

    def priced(self, name: str) -> bool:
        return price_of(name, self.prices.get(name)) is not None
