"""What people write about language models, in a mission and in the configuration; and a client's own model."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engine_stage import mission

from pursuit import ValidationFailed
from pursuit.config.configuration import load_configuration
from pursuit.proposers.language import Price, price_of
from pursuit.proposers.model.settings import ModelProposer, SamplingProposer


def test_a_model_is_named_by_a_text_with_a_colon() -> None:
    short = mission(proposer="anthropic:claude-haiku-4-5").proposer
    assert short == ModelProposer(model="anthropic:claude-haiku-4-5")
    assert isinstance(mission(proposer="sampling").proposer, SamplingProposer)
    full = {
        "kind": "model",
        "model": "openai:x/y.z:free",
        "max_tokens": 10,
        "temperature": 0,
        "instructions": "Calmly.",
    }
    assert mission(proposer=full).proposer.model_dump(exclude_unset=True) == {**full, "temperature": 0.0}


@pytest.mark.parametrize(
    ("proposer", "field"),
    [
        (":x", "proposer.model"),
        ("openai:", "proposer.model"),
        ({"kind": "model"}, "proposer.model"),
        ({"kind": "model", "model": "gpt"}, "proposer.model"),
        ({"kind": "model", "model": "a:b", "max_tokens": 0}, "proposer.max_tokens"),
        ({"kind": "model", "model": "a:b", "temperature": 3}, "proposer.temperature"),
        ({"kind": "model", "model": "a:b", "instructions": "x" * 8_193}, "proposer.instructions"),
        ({"kind": "sampling", "model": "a:b"}, "proposer.model"),
    ],
)
def test_wrong_words_about_a_model_are_refused_by_their_place(proposer: Any, field: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        mission(proposer=proposer)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_prices_and_the_model_of_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "pursuit.toml"
    file.write_text(
        'model = "openai:mine"\nclient_models = ["a:b"]\n[prices."openai:mine"]\ninput = 0\noutput = 2.5\n',
        encoding="utf-8",
    )
    loaded = load_configuration(file)
    assert loaded.client_models == ("a:b",)
    price = loaded.prices["openai:mine"]
    assert (loaded.model, price.input, price.output, price.cached) == ("openai:mine", 0, 2.5, None)
    file.write_text(
        'model = "mine"\nclient_models = ["a:b", "b"]\n[prices]\nc = 3\n[prices."a:b"]\ninput = -1\nin = 1\n',
        encoding="utf-8",
    )
    with pytest.raises(ValidationFailed) as caught:
        load_configuration(file)
    assert sorted(fault.field for fault in caught.value.faults) == [
        "client_models[1]",
        "model",
        "prices.a:b.in",
        "prices.a:b.input",
        "prices.a:b.output",
        "prices.c",
    ]


def test_a_price_that_nobody_knows_is_not_nothing() -> None:
    used = SimpleNamespace(input_tokens=1_000_000, output_tokens=100_000)
    assert price_of("openai:nobody-knows-this") is None
    assert price_of("nobody:nothing") is None
    own = price_of("openai:nobody-knows-this", Price(input=1, output=20))
    assert own(used) == 3.0
    for name in ("openai:gpt-4o-mini", "openai-chat:gpt-4o-mini", "anthropic:claude-haiku-4-5"):
        known = price_of(name)
        assert known(used) > 0
