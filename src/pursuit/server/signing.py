"""Signs state that a client brings back later: request state and cursors.

The key is in a file beside the ledger, so that another process of the same ledger can verify it. Invariant: `opened`
returns what was signed with this ledger's key, and None for anything else.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

NAME = "asking.key"
SIZE = 32
LONGEST = 65_536


class Signer:
    """Signs small JSON objects."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    @classmethod
    def beside(cls, ledger: Path) -> Signer:
        """The seal of a ledger; its key is made when first needed, readable by the owner alone."""
        path = ledger.with_name(NAME)
        with suppress(FileExistsError):
            made = path.with_name(f"{NAME}.{secrets.token_hex(4)}")
            descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(secrets.token_bytes(SIZE))
            try:
                os.link(made, path)  # atomic, and fails if another process was faster
            finally:
                made.unlink()
        return cls(path.read_bytes())

    def closed(self, said: dict[str, Any]) -> str:
        """The object as signed text."""
        body = json.dumps(said, separators=(",", ":")).encode()
        return f"{_text(body)}.{_text(self._mark(body))}"

    def opened(self, text: object) -> dict[str, Any] | None:
        """The object that was signed, or None."""
        if not isinstance(text, str) or len(text) > LONGEST or text.count(".") != 1:
            return None
        try:
            body, mark = (base64.urlsafe_b64decode(part + "==") for part in text.split("."))
        except ValueError:
            return None
        return cast("dict[str, Any]", json.loads(body)) if hmac.compare_digest(self._mark(body), mark) else None

    def _mark(self, body: bytes) -> bytes:
        return hmac.new(self._key, body, hashlib.sha256).digest()


def _text(body: bytes) -> str:
    return base64.urlsafe_b64encode(body).decode().rstrip("=")
