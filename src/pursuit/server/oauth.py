"""An OAuth 2.1 resource server (MCP 2026-07-28, Authorization): access tokens of one authorization server, as JWTs.

A token is accepted if a key of the issuer signed it, and issuer, audience, expiry and lifetime are valid. `iss` and
`sub` identify the caller. A revoked JWT stays valid until it expires, because the issuer is not asked: a token with a
lifetime above `max_lifetime` is refused.
Invariant: only asymmetric algorithms are accepted, and the algorithm must fit the key. Fetching keys is bounded in
time, size and number, whatever tokens arrive.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import anyio
import httpx2
import jwt
from jwt.types import Options
from mcp.server.auth.handlers.metadata import ProtectedResourceMetadataHandler
from mcp.server.auth.provider import AccessToken
from mcp.server.auth.routes import build_resource_metadata_url, cors_middleware
from mcp.shared.auth import ProtectedResourceMetadata
from pydantic import AnyHttpUrl
from starlette.routing import Route

from pursuit.config.configuration import OAuthConfig, is_safe_address
from pursuit.server.access import KeysUnavailable, ScopeRules
from pursuit.server.logs import REDACTED, event
from pursuit.server.tokens import CLIENT_SCOPES, SCOPES

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_REQUIRED: Options = {"require": ["exp", "iat", "iss", "aud", "sub"]}
_OK = 200
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """The limits of fetching keys, and of tokens."""

    fresh_seconds: float = 60
    """Keys are fetched again after this time; a withdrawn key is accepted until then."""
    lifetime_seconds: float = 900
    """Keys that could not be fetched again expire after this time."""
    pause_seconds: float = 10
    """The minimum time between fetches; limits the load that unknown keys cause at the issuer."""
    timeout_seconds: float = 2
    """The time for which a hanging issuer delays requests with a known key, once per pause."""
    most_bytes: int = 256 * 1024
    most_keys: int = 100
    leeway_seconds: float = 30
    longest_token: int = 16 * 1024
    longest_subject: int = 255


class OAuth:
    def __init__(self, config: OAuthConfig, settings: KeySettings | None = None) -> None:
        self.config = config
        self._settings = settings or KeySettings()
        self._keys = _KeySet(config, self._settings)
        self._names = {subject: name for name, subject in config.callers.items()}
        self.resource = config.resource or ""
        self.metadata_url = ""

    def serve_at(self, url: str) -> None:
        """Uses the served address as the resource, unless the configuration names one."""
        self.resource = self.config.resource or url
        self.metadata_url = str(build_resource_metadata_url(AnyHttpUrl(self.resource)))

    def route(self, rules: ScopeRules) -> Route:
        """The metadata of this protected resource (RFC 9728)."""
        metadata = ProtectedResourceMetadata.model_validate(
            {
                "resource": self.resource,
                "authorization_servers": [self.config.issuer],
                "scopes_supported": list(rules.basic),
                "resource_name": "Pursuit",
            }
        )
        handler = cors_middleware(ProtectedResourceMetadataHandler(metadata).handle, ["GET", "OPTIONS"])
        return Route(urlsplit(self.metadata_url).path, endpoint=handler, methods=["GET", "OPTIONS"])

    async def verify_token(self, token: str) -> AccessToken | None:
        """The token's subject, name and scopes; None if it is not valid. Raises `KeysUnavailable`."""
        try:
            return await self._verified(token)
        except (jwt.PyJWTError, ValueError, RecursionError) as error:
            event(_log, logging.INFO, "a token was refused", why=str(error)[:200] or type(error).__name__)
            return None

    async def _verified(self, token: str) -> AccessToken:
        settings = self._settings
        if len(token) > settings.longest_token:
            raise ValueError("the token is too long")
        header = jwt.get_unverified_header(token)
        algorithm = header.get("alg")
        if algorithm not in ALGORITHMS:
            raise ValueError("the token's algorithm is not accepted")
        if str(header.get("typ", "JWT")).lower().removeprefix("application/") not in ("jwt", "at+jwt"):
            raise ValueError("the token is not an access token: its typ is neither at+jwt nor JWT")
        key = jwt.PyJWK(await self._keys.find(header.get("kid"), algorithm), algorithm=algorithm)
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=[algorithm],
            audience=self.config.audience or self.resource,
            issuer=self.config.issuer,
            leeway=settings.leeway_seconds,
            options=_REQUIRED,
        )
        ends, begins = int(claims["exp"]), int(claims["iat"])
        if ends - begins > self.config.max_lifetime:
            raise ValueError(f"the token lives longer than {self.config.max_lifetime:g} s ([serve.oauth] max_lifetime)")
        subject = claims["sub"]
        if not subject or len(subject) > settings.longest_subject or not subject.isprintable():
            raise ValueError("the subject of the token is empty, too long or not printable")
        # An issuer may grant a scope to any client that requests it, so the operator names the approvers.
        known = SCOPES if subject in self.config.approvers else CLIENT_SCOPES
        return AccessToken(
            token=REDACTED,
            client_id=self._names.get(subject, f"oauth:{subject}"),
            scopes=[scope for scope in known if scope in _words(claims.get("scope", claims.get("scp")))],
            expires_at=int(ends + settings.leeway_seconds),
            subject=subject,
            claims={"iss": self.config.issuer},
        )


def _words(claim: object) -> list[object]:
    """The scopes of a claim: space-separated (RFC 9068, section 2.2.3), or a list, as some issuers send."""
    return cast("list[object]", claim) if isinstance(claim, list) else list(str(claim or "").split())


class _KeySet:
    """The public keys of the issuer, fetched on demand."""

    def __init__(self, config: OAuthConfig, settings: KeySettings) -> None:
        self._config = config
        self._settings = settings
        self._keys: list[Mapping[str, Any]] = []
        self._fetched = self._tried = float("-inf")
        self._fetching = anyio.Lock()

    async def find(self, kid: object, algorithm: str) -> dict[str, Any]:
        """The key with this id; without an id, the only key. Raises `ValueError` and `KeysUnavailable`."""
        if self._among(kid, algorithm) is None or anyio.current_time() - self._fetched > self._settings.fresh_seconds:
            await self._refresh()
        found = self._among(kid, algorithm)
        if anyio.current_time() - self._fetched > self._settings.lifetime_seconds:
            raise KeysUnavailable("the keys of the authorization server are unavailable; try again")
        if found is None:
            raise ValueError("the issuer does not have a key with the token's key id")
        return dict(found)

    def _among(self, kid: object, algorithm: str) -> Mapping[str, Any] | None:
        fitting = [
            key
            for key in self._keys
            if key.get("kty") in ("RSA", "EC", "OKP")
            and key.get("use", "sig") == "sig"
            and key.get("alg", algorithm) == algorithm
            and (kid is None or key.get("kid") == kid)
        ]
        return fitting[0] if len(fitting) == 1 or (fitting and kid is not None) else None

    async def _refresh(self) -> None:
        """Fetches the keys, unless that was just tried; concurrent requests share one fetch."""
        async with self._fetching:
            now, settings = anyio.current_time(), self._settings
            if now - self._tried < settings.pause_seconds:
                return
            self._tried = now
            try:
                # A disconnecting client must not cancel the shared fetch.
                with anyio.fail_after(settings.timeout_seconds, shield=True):
                    keys = await self._fetch()
            except (OSError, httpx2.HTTPError, httpx2.InvalidURL, ValueError, TypeError, RecursionError) as error:
                why = str(error)[:200] or type(error).__name__
                event(_log, logging.ERROR, "the keys of the authorization server cannot be read", why=why)
                return
            self._keys, self._fetched = keys, now

    async def _fetch(self) -> list[Mapping[str, Any]]:
        async with httpx2.AsyncClient(follow_redirects=False, timeout=self._settings.timeout_seconds) as web:
            address = self._config.jwks_uri or await self._discover(web)
            keys = (await self._read(web, address)).get("keys")
        if not isinstance(keys, list) or len(cast("list[object]", keys)) > self._settings.most_keys:
            raise ValueError(f"{address} has no key set of at most {self._settings.most_keys} keys")
        return [cast("Mapping[str, Any]", key) for key in cast("list[object]", keys) if isinstance(key, dict)]

    async def _discover(self, web: httpx2.AsyncClient) -> str:
        """The address of the key set, from the issuer's metadata (RFC 8414, section 3; OpenID Connect Discovery)."""
        issuer = self._config.issuer
        parts, tried = urlsplit(issuer), list[str]()
        root, path = f"{parts.scheme}://{parts.netloc}/.well-known", parts.path.rstrip("/")
        for address in (
            f"{root}/oauth-authorization-server{path}",
            f"{root}/openid-configuration{path}",
            f"{issuer.rstrip('/')}/.well-known/openid-configuration",
        ):
            try:
                document = await self._read(web, address)
            except (httpx2.HTTPError, ValueError) as error:
                tried.append(f"{address}: {error}")
                continue
            found = document.get("jwks_uri")
            if document.get("issuer") == issuer and isinstance(found, str) and is_safe_address(found):
                return found
            tried.append(f"{address}: is not the metadata of {issuer}, or has no safe jwks_uri")
        raise ValueError("; ".join(tried))

    async def _read(self, web: httpx2.AsyncClient, address: str) -> Mapping[str, Any]:
        body = bytearray()
        async with web.stream("GET", address, headers={"Accept": "application/json"}) as answer:
            if answer.status_code != _OK:
                raise ValueError(f"{address} answers {answer.status_code}")
            async for chunk in answer.aiter_bytes():
                body += chunk
                if len(body) > self._settings.most_bytes:
                    raise ValueError(f"{address} has more than {self._settings.most_bytes} bytes")
        document: object = json.loads(body)
        if not isinstance(document, dict):
            raise ValueError(f"{address} is not a JSON object")
        return cast("Mapping[str, Any]", document)
