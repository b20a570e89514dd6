"""Signs state that a client returns later: request state and cursors.

The key is in a file beside the ledger, so that other processes of the ledger can verify it. Invariant: `opened` returns
only content that was signed with this ledger's key, else None.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

from mcp.server.request_state import AESGCMRequestStateCodec, InvalidRequestState

from pursuit.server.tokens import PrivateFile

NAME = "asking.key"
LONGEST = 65_536


class Signer:
    def __init__(self, key: bytes) -> None:
        self._codec = AESGCMRequestStateCodec([key])

    @classmethod
    def beside(cls, ledger: Path) -> Signer:
        """The signer of a ledger; its key is created when first needed."""
        file = PrivateFile(ledger.with_name(NAME))
        if not file.path.exists():
            with file.alone():
                if not file.path.exists():  # another process may have created it
                    file.write(secrets.token_hex())
        return cls(file.path.read_bytes())

    def closed(self, said: dict[str, Any]) -> str:
        return self._codec.seal(json.dumps(said).encode())

    def opened(self, text: object) -> dict[str, Any] | None:
        """The signed object, or None."""
        if not isinstance(text, str) or len(text) > LONGEST:
            return None
        try:
            return json.loads(self._codec.unseal(text))
        except InvalidRequestState:
            return None
