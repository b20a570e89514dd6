"""How our errors look over plain HTTP.

Owns: the table from error codes to statuses, the errors that only HTTP has, and the body of every answer. Knows no
route. Invariant: a body is JSON, an error's is `{code, message, details}`, and no answer is kept by a cache.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.responses import Response

from pursuit.errors import PursuitError

STATUSES: Final[Mapping[str, int]] = {
    "malformed_json": 400,
    "invalid_argument": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "policy_denied": 403,
    "approval_needed": 403,
    "session_not_found": 404,
    "approval_not_found": 404,
    "task_not_found": 404,
    "problem_not_found": 404,
    "attempt_not_found": 404,
    "method_not_allowed": 405,
    "conflict": 409,
    "session_terminal": 409,
    "session_paused": 409,
    "not_paused": 409,
    "no_iterations": 409,
    "task_terminal": 409,
    "already_submitted": 409,
    "too_large": 413,
    "validation_error": 422,
    "path_traversal_detected": 422,
    "too_many_tasks": 429,
    "budget_exhausted": 429,
    "internal_error": 500,
    "extra_missing": 501,
    "model_unavailable": 502,
    "upstream_unavailable": 502,
    "ledger_unavailable": 503,
    "ledger_too_new": 503,
}
"""Each code of a `PursuitError` that can get here."""


class MalformedJson(PursuitError):
    """The body is no JSON."""

    code = "malformed_json"


class Unauthorized(PursuitError):
    """There is no token, or none that we know."""

    code = "unauthorized"


class Forbidden(PursuitError):
    """The token is known, and not for this."""

    code = "forbidden"


class MethodNotAllowed(PursuitError):
    """The path is right, the method is not."""

    code = "method_not_allowed"


class TooLarge(PursuitError):
    """The body is larger than anything that could be meant."""

    code = "too_large"


def told(document: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer; its JSON is plain ASCII, so that whatever a tool was asked with can be sent."""
    body = json.dumps(document, default=str)
    return Response(body, status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def failed(error: PursuitError) -> Response:
    """The answer that tells an error."""
    headers: dict[str, str] = {}
    match error:
        case Unauthorized():
            headers["WWW-Authenticate"] = "Bearer"
        case MethodNotAllowed():
            headers["Allow"] = error.details["allowed"]
        case _:
            pass
    return told(error.as_dict(), STATUSES.get(error.code, STATUSES["internal_error"]), headers)
