"""Tokens are kept as hashes, in a file that two processes share and damage does not open."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cli_stage import Place

from pursuit.errors import InvalidArgument, LedgerUnavailable, PursuitError
from pursuit.server.tokens import Tokens

MAKE_MANY = """
import sys
from pathlib import Path
from pursuit.server.tokens import Tokens
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    print(Tokens(Path(sys.argv[1])).make(f"{sys.argv[2]}-{number}"))
"""


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "state" / "tokens.json")


def role(tokens: Tokens, token: str) -> tuple[str, bool]:
    holder = tokens.holder(token)
    return holder.name, holder.operator


def owner(tokens: Tokens, token: str) -> str | None:
    holder = tokens.holder(token)
    return None if holder is None else holder.name


def test_a_token_is_known_by_its_hash_alone(tokens: Tokens) -> None:
    first, second = tokens.make("laptop"), tokens.make("ci")
    assert first.startswith("pursuit_")
    assert len(first) == len("pursuit_") + 43
    assert first != second
    text = tokens.path.read_text(encoding="utf-8")
    assert first not in text
    assert first.removeprefix("pursuit_") not in text
    assert (owner(tokens, first), owner(tokens, second)) == ("laptop", "ci")
    assert [row["name"] for row in tokens.names()] == ["laptop", "ci"]
    assert set(tokens.names()[0]) == {"name", "role", "created_at"}


def test_a_token_is_an_operators_only_if_it_was_made_so(tokens: Tokens) -> None:
    laptop, alice = tokens.make("laptop"), tokens.make("alice", operator=True)
    assert role(tokens, laptop) == ("laptop", False)
    assert role(tokens, alice) == ("alice", True)
    assert tokens.holder(alice[:-1]) is None
    assert owner(tokens, alice) == "alice"
    assert [(row["name"], row["role"]) for row in tokens.names()] == [("laptop", "client"), ("alice", "operator")]
    tokens.make("ci")
    tokens.revoke("laptop")
    held = Tokens(tokens.path).holder(alice)
    assert held is not None and held.operator, "what others do to the file leaves the role alone"


def test_a_file_from_before_there_were_roles_has_clients(tokens: Tokens) -> None:
    token = tokens.make("laptop")
    document = json.loads(tokens.path.read_text())
    assert document["tokens"][0].pop("operator") is False
    tokens.path.write_text(json.dumps(document), encoding="utf-8")
    assert role(Tokens(tokens.path), token) == ("laptop", False)


def test_what_is_no_token_has_no_owner(tokens: Tokens) -> None:
    assert owner(tokens, "") is None
    token = tokens.make("laptop")
    for wrong in ("", "laptop", token[:-1], f"{token} ", token.upper(), "\ud800", json.loads(tokens.path.read_text())):
        assert owner(tokens, str(wrong)) is None
    digest = json.loads(tokens.path.read_text())["tokens"][0]["sha256"]
    assert owner(tokens, digest) is None


def test_only_the_owner_can_read_the_file_and_its_new_folder(tokens: Tokens) -> None:
    tokens.make("laptop")
    tokens.make("ci")
    tokens.revoke("ci")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tokens.path.parent.iterdir()}
    assert modes == {"tokens.json": 0o600, "tokens.json.lock": 0o600}
    assert stat.S_IMODE(tokens.path.parent.stat().st_mode) == 0o700


def test_another_process_revoking_is_seen_at_once(tokens: Tokens) -> None:
    here, there = tokens, Tokens(tokens.path)
    token = here.make("laptop")
    assert owner(there, token) == "laptop"
    here.revoke("laptop")
    assert owner(there, token) is None
    other = here.make("laptop")
    assert (owner(there, token), owner(there, other)) == (None, "laptop")
    tokens.path.unlink()
    assert owner(there, other) is None


def test_two_processes_at_once_lose_no_token(tokens: Tokens) -> None:
    each = 15
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MAKE_MANY, str(tokens.path), name, str(each)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b")
    ]
    made = [process.communicate(timeout=60)[0].split() for process in _at_once(processes)]
    assert [process.returncode for process in processes] == [0, 0]
    assert len(tokens.names()) == 2 * each
    for name, printed in zip(("a", "b"), made, strict=True):
        assert [owner(tokens, token) for token in printed] == [f"{name}-{number}" for number in range(each)]


def test_the_token_of_this_machines_user_is_kept_in_a_private_file_and_follows_its_changes(tokens: Tokens) -> None:
    tokens.make("boss", operator=True)
    first = tokens.local_if_needed()
    assert first is not None and role(tokens, first) == ("local", False)
    assert stat.S_IMODE(tokens.local_file.stat().st_mode) == 0o600
    assert (tokens.local_if_needed(), tokens.local()) == (None, (first, False))
    second = tokens.rotate("local")
    assert tokens.local() == (second, False)
    tokens.rotate("boss")
    assert tokens.local() == (second, False)
    tokens.revoke("local")
    assert not tokens.local_file.exists()
    tokens.make("local")
    tokens.local_file.write_bytes(b"\xff")
    third, made = tokens.local()
    assert (made, owner(tokens, third)) == (True, "local-2")


def _at_once(processes: list[subprocess.Popen[str]]) -> list[subprocess.Popen[str]]:
    """Lets all begin in the same moment, when each has told that it is ready."""
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


ENTRY = json.dumps({"name": "a", "sha256": "0" * 64, "created_at": "2026"})
WHOLE = f'{{"version": 1, "tokens": [{ENTRY}]}}'
DAMAGED = {
    "empty": "",
    "cut": '{"version": 1, "tok',
    "another version": '{"version": 2, "tokens": []}',
    "a token without a hash": '{"version": 1, "tokens": [{"name": "a", "created_at": "2026"}]}',
    "a short hash": WHOLE.replace(ENTRY, ENTRY.replace("00", "")),
    "a wrong name": WHOLE.replace(ENTRY, ENTRY.replace('"a"', '"a b"')),
    "a role that is a word": WHOLE.replace(ENTRY, ENTRY.replace("}", ', "operator": "true"}')),
    "nested without end": "[" * 100_000,
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_file_is_told_and_lets_nobody_in(text: str, tokens: Tokens) -> None:
    token = tokens.make("laptop")
    tokens.path.write_text(text, encoding="utf-8")
    for use in (
        lambda: tokens.holder(token),
        tokens.names,
        lambda: tokens.make("b", operator=True),
        lambda: tokens.revoke("laptop"),
    ):
        with pytest.raises(InvalidArgument, match=r"is damaged .*no token is accepted.*pursuit token"):
            use()
    assert tokens.path.read_text(encoding="utf-8") == text


def test_a_sound_file_by_hand_is_read(tokens: Tokens) -> None:
    tokens.path.parent.mkdir()
    tokens.path.write_text(WHOLE, encoding="utf-8")
    assert tokens.names() == [{"name": "a", "role": "client", "created_at": "2026"}]


def test_a_place_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(LedgerUnavailable, match="cannot change"):
        Tokens(tmp_path / "file" / "tokens.json").make("a")
    (tmp_path / "tokens.json").mkdir()
    with pytest.raises(PursuitError, match="cannot read"):
        owner(Tokens(tmp_path / "tokens.json"), "x")


@pytest.mark.parametrize("name", ["", "a b", "a/b", "../a", "a\n", "\u00e9", "a" * 65])
def test_a_wrong_name_is_refused(name: str, tokens: Tokens) -> None:
    with pytest.raises(InvalidArgument, match="is not a token name"):
        tokens.make(name)
    assert not tokens.path.exists()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path).configured()


def test_the_command_makes_lists_and_revokes(place: Place) -> None:
    out, notes = place.ask("token")
    said = dict(line.split(": ", 1) for line in out.splitlines())
    assert (said["name"], said["role"]) == ("token-1", "client")
    assert said["header"] == f"Authorization: Bearer {said['token']}"
    assert "shown only now" in notes
    assert "pursuit token revoke token-1" in notes
    assert "approvals" not in notes
    tokens = Tokens.beside(place.ledger)
    assert owner(tokens, said["token"]) == "token-1"

    made = place.json("token", "--name", "ci")
    assert owner(tokens, made["token"]) == made["name"] == "ci"
    assert place.json("token")["name"] == "token-2"
    assert [row["name"] for row in place.json("token", "list")["tokens"]] == ["token-1", "ci", "token-2"]
    out, _ = place.ask("token", "list")
    assert "ci  client  made 20" in out
    assert said["token"] not in out

    assert place.json("token", "revoke", "token-1") == {"revoked": "token-1"}
    assert owner(tokens, said["token"]) is None
    assert place.json("token")["name"] == "token-1"
    assert not place.ledger.exists()


def test_the_command_refuses_what_is_wrong(place: Place) -> None:
    assert place.ask("token", "list") == ("", "there are no tokens; create one with: pursuit token\n")
    assert place.json("token", "revoke", "nobody", code=2)["code"] == "invalid_argument"
    assert "is not a token name" in place.ask("token", "--name", "a/b", code=2)[1]
    place.ask("token", "--name", "a")
    assert "already" in place.ask("token", "--name", "a", code=2)[1]
    assert "takes none" in place.ask("token", "--name", "a", "list", code=2)[1]
    assert "takes none" in place.ask("token", "--operator", "revoke", "a", code=2)[1]
    Tokens.beside(place.ledger).path.write_text("{", encoding="utf-8")
    for words in (["token"], ["token", "list"], ["token", "revoke", "a"]):
        assert "is damaged" in place.ask(*words, code=2)[1]


def test_a_token_may_be_given_further_rights(place: Place) -> None:
    made = place.json("token", "new", "ide", "--may", "approve-own")
    assert (made["role"], made["may"]) == ("client", "approve-own")
    assert place.json("token", "list")["tokens"][0]["may"] == ["approve-own"]
    held = Tokens.beside(place.ledger).holder(place.json("token", "rotate", "ide")["token"])
    assert held is not None and held.may == ("approve-own",)
    assert "--may" in place.ask("token", "new", "--may", "aprove-own", code=2)[1]
    assert "give it after `new`" in place.ask("token", "--name", "a", "new", code=2)[1]
    assert [row["name"] for row in place.json("token", "list")["tokens"]] == ["ide"]
