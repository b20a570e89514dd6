"""What the ledger promises of the texts that streams are found by, kept by every backend."""

from __future__ import annotations

from pathlib import Path

import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ledger_backends import Backend, check, drafts, every_backend, opened

from pursuit.errors import Conflict, InvalidArgument
from pursuit.ledger.contract import Ledger
from pursuit.ledger.sqlite import MAX_WORDS, search_words

TEXTS = {
    "m1": "Get p95 latency of the checkout under 200 ms\nCaching the basket lowered p95_latency_ms to 180.",
    "m2": "Deploy the search service\ndeploy.push was denied twice: production needs approval.",
    "m3": "Train a classifier\nThe best accuracy was 0.93 with a smaller learning rate.",
}
HOSTILE = [
    '"',
    'a"b',
    "NEAR(a b)",
    "a AND",
    "NOT",
    "text:deploy",
    "*",
    "deploy*",
    "^deploy",
    "(",
    "{a}:b",
    "+",
    "-x",
    "'",
]


async def tell(ledger: Ledger) -> None:
    for name, text in TEXTS.items():
        await ledger.append(name, 0, drafts(1), text=text)


async def names(ledger: Ledger, words: str, **named: object) -> list[str]:
    return [one.row.name for one in await ledger.search(words, **named)]  # pyright: ignore[reportArgumentType]


@every_backend
@pytest.mark.guarantee("lessons-are-found")
async def test_a_stream_is_found_by_the_words_of_its_text_in_any_form(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await tell(ledger)
        assert await names(ledger, "latencies") == ["m1"]
        assert await names(ledger, "LOWERING the BASKETS") == ["m1"]
        assert await names(ledger, "deployments that were denied") == ["m2"]
        assert await names(ledger, "p95_latency_ms") == ["m1"]
        assert await names(ledger, "learn rates, smaller") == ["m3"]
        assert await names(ledger, "zebra") == []
        (found,) = await ledger.search("basket")
        assert (found.text, found.row.kind, found.row.head.seq) == (TEXTS["m1"], "mission", 1)


@every_backend
async def test_the_better_match_is_first_and_of_equal_ones_the_newer(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await tell(ledger)
        assert await names(ledger, "accuracy of a classifier, or search") == ["m3", "m2"]
        ranks = [one.rank for one in await ledger.search("accuracy of a classifier, or search")]
        assert ranks == sorted(ranks, reverse=True)
        assert ranks[0] > ranks[1]
        for name in ("t1", "t2"):
            await ledger.append(name, 0, drafts(1), kind="task", text="equal words")
        assert await names(ledger, "equal") == ["t2", "t1"]
        assert await names(ledger, "equal", limit=1) == ["t2"]
        assert await names(ledger, "equal", kind="mission") == []
        assert await names(ledger, "equal deploy", kind="task") == ["t2", "t1"]


@every_backend
async def test_words_that_say_nothing_are_not_looked_for(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await tell(ledger)
        for words in ("", "   ", "the of a", "The UNDER with", "x y z", "?!", "__"):
            assert await names(ledger, words) == []
        with pytest.raises(InvalidArgument):
            await ledger.search("deploy", limit=0)


@every_backend
async def test_a_later_text_replaces_the_one_before(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await tell(ledger)
        await ledger.append("m1", 1, [], text="Now about rockets")
        assert await names(ledger, "latency basket") == []
        assert await names(ledger, "rocket") == ["m1"]
        await ledger.append("m1", 1, drafts(2), status="completed")
        assert await names(ledger, "rocket") == ["m1"], "an append without a text leaves it"


@every_backend
async def test_a_text_is_stored_with_its_events_or_not_at_all(backend: Backend, tmp_path: Path) -> None:
    async with check(backend, tmp_path) as ledger:
        await tell(ledger)
        with pytest.raises(Conflict):
            await ledger.append("m1", 7, drafts(2), text="Lost for ever")
        with pytest.raises(InvalidArgument):
            await ledger.append("m1", 1, drafts(2), text="half a pair \ud800")
        with pytest.raises(InvalidArgument):
            await ledger.append("new", 0, [], text="a stream cannot begin with a text")
        assert await names(ledger, "lost pair begin") == []


@every_backend
async def test_texts_survive_a_reopening_and_change_no_root(backend: Backend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path) as ledger:
        await tell(ledger)
        before = await ledger.root()
        await ledger.append("m3", 1, [], text="Another text")
        assert await ledger.root() == before
    async with opened(backend, tmp_path) as ledger:
        assert await names(ledger, "another") == ["m3"]
        assert (await ledger.verify(expect=before)).ok


@every_backend
@pytest.mark.guarantee("lessons-are-forgotten")
@pytest.mark.damaged_ledger("forgets a stream that has not ended")
async def test_a_forgotten_stream_is_not_found_and_its_words_are_gone(backend: Backend, tmp_path: Path) -> None:
    async with opened(backend, tmp_path) as ledger:
        await tell(ledger)
        await ledger.append("secret", 0, drafts(1), text="the zyxwvutword and basket")
        await ledger.append("secret", 1, [], text="the qponmlkjword and basket")
        assert await names(ledger, "basket") == ["secret", "m1"]
        await ledger.forget("secret")
        assert await names(ledger, "basket zyxwvutword qponmlkjword") == ["m1"]
    kept = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"zyxwvut" not in kept
    assert b"qponmlkj" not in kept


@every_backend
@pytest.mark.guarantee("any-text-is-a-safe-search")
def test_any_text_is_a_safe_search(backend: Backend, tmp_path: Path) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(opened(backend, tmp_path)) as ledger:
        portal.call(tell, ledger)

        @settings(max_examples=75, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.one_of(st.text(), st.lists(st.sampled_from([*HOSTILE, "latency", "deploy", "OR"])).map(" ".join)))
        def hunt(text: str) -> None:
            assert all(word.isalnum() for word in search_words(text))
            assert set(portal.call(names, ledger, text)) <= {*TEXTS}

        hunt()
        for text in HOSTILE:
            assert set(portal.call(names, ledger, text)) <= {*TEXTS}
        # Were it an operator, m2 would be left out.
        assert sorted(portal.call(names, ledger, 'latency NOT "deploy"')) == ["m1", "m2"]


def test_what_is_looked_for_is_bounded() -> None:
    assert len(search_words(" ".join(f"word{number}" for number in range(10_000)))) == MAX_WORDS
    assert max(map(len, search_words("x" * 100_000))) <= 64
    assert search_words("Latency, latency; LATENCY") == ["latency"]
