"""What a command must not tell: the secrets of the configuration and of the environment that it was given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pursuit import Runtime
from pursuit.config.variables import inherited_secrets

CONFIG = """
[servers.hub]
command = "python"
args = ["-c", "pass", "--key", "${HUB_ARG_KEY}"]
env = { PLACE = "${HUB_PLACE}", OTHER = "${NOT_SET_ANYWHERE}" }
[servers.web]
url = "https://me:word-of-mouth@localhost:1/mcp"
headers = { Authorization = "Bearer ${WEB_BEARER}" }
[commands.other]
argv = ["true"]
env = { OTHER_TOKEN = "the-other-commands" }
[commands.tell]
argv = ["sh", "-c", "echo $0", "{what}"]
parameters = { what = { type = "string" } }
"""
ENVIRONMENT = {
    "HUB_ARG_KEY": "key-of-the-hub",
    "HUB_PLACE": "place-of-the-hub",
    "WEB_BEARER": "bearer-of-the-web",
    "SOME_API_KEY": "nobody-configured-me",
    "DATABASE_URL": "postgres://me:from-the-database@localhost/x",
}
HIDDEN = [
    *(value for name, value in ENVIRONMENT.items() if name != "DATABASE_URL"),
    "from-the-database",
    "word-of-mouth",
    "the-other-commands",
]


@pytest.mark.parametrize("by_name", [True, False])
async def test_known_secrets_are_blanked_in_every_commands_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    (tmp_path / "pursuit.toml").write_text(CONFIG)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    said = "plain " + " ".join(HIDDEN)
    async with Runtime(state=tmp_path / "ledger.db", config=tmp_path / "pursuit.toml") as runtime:
        tasks = runtime.tasks
        begun = await (tasks.call("tell", {"what": said}) if by_name else tasks.run(["echo", said]))
        state = await tasks.wait(begun.task_id, timeout=60)
        assert state.status == "completed"
        assert await tasks.tail(state.task_id) == ["plain " + " ".join(["***"] * len(HIDDEN))]
        shown = json.dumps(await tasks.show(state.task_id))
        assert [secret for secret in HIDDEN if secret in shown] == []


def test_an_environments_settings_are_no_secrets(tmp_path: Path) -> None:
    plain = {
        "PWD": "/nowhere/at/all",
        "SSH_AUTH_SOCK": "/nowhere/agent.1",
        "GIT_AUTHOR_NAME": "Jane Doe",
        "AUTH_MODE": "device",
        "KEY_FILE": "/nowhere/key",
        "TOKENS": str(tmp_path),
        "EDITOR": "vi",
    }
    assert inherited_secrets(plain) == []
    assert inherited_secrets({"GH_TOKEN": "abcdef", "URL": "http://a:b@c/"}) == ["abcdef", "a:b", "b"]
