"""Errors of the API: their HTTP status, and their JSON in the form that OpenAI's clients read."""

import json
from collections.abc import Mapping
from typing import Final

from ...tasks.errors import Overloaded
from ...transport.errors import MISHAP, ShoalError
from .. import defaults
from ..errors import ApiRefusal, ControlError

_UNKNOWN_MODEL: Final = (404, "model_not_found", "model")
_BAD: Final = (400, None, None)
_ANSWERS: Final[Mapping[str, tuple[int, str | None, str | None]]] = {
    "unknown-model": _UNKNOWN_MODEL,
    "bad-name": _UNKNOWN_MODEL,
    "ambiguous-model": (400, None, "model"),
    "no-adapter": _UNKNOWN_MODEL,
    "bad-adapter": (400, None, "model"),
    "prompt-too-long": (400, "context_length_exceeded", None),
    "bad-dimensions": (400, "invalid_value", "dimensions"),
    "unknown-answer": (404, None, None),
    "events-gone": (410, None, None),
    "unsupported": _BAD,
    "other-text": (400, None, "received"),
    "engine-refused": _BAD,
    "bad-request": _BAD,
    "bad-stop": _BAD,
    "bad-text": _BAD,
    "text-too-large": _BAD,
    "no-template": _BAD,
    "template-error": _BAD,
    "template-limit": _BAD,
    "text-busy": (429, None, None),
    "busy": (429, "rate_limit_exceeded", None),
    MISHAP: (500, None, None),
}
"""Maps the code of an error to (HTTP status, OpenAI's code if it differs, parameter at fault)."""
_UNAVAILABLE: Final = (503, None, None)
_TEMPLATE_HINT: Final = "/v1/completions continues a prompt without a chat template"


def refusal_of(error: ShoalError) -> ApiRefusal:
    """Return the refusal for an error. Errors that no request can avoid have status 503: this node
    or its swarm cannot answer now."""
    if isinstance(error, ApiRefusal):
        return error
    found = getattr(error, "code", None)
    code = found if isinstance(found, str) else "failed"
    status, openai_code, param = _ANSWERS.get(code, _UNAVAILABLE)
    hint = _TEMPLATE_HINT if "template" in code else error.hint
    if hint and "--" in hint:  # an option of a command, which this client does not have
        hint = None
    message = f"{error.message} ({hint})" if hint else error.message
    retry = error.retry_s if isinstance(error, Overloaded) else 0
    return ApiRefusal(status, openai_code or code, message, param=param, retry_s=retry)


def mishap() -> ControlError:
    """Return the error for a request that ran into a bug of this program."""
    return ControlError(MISHAP, "the node ran into a bug", hint="`shoal status` shows it")


def body_of(refusal: ApiRefusal) -> bytes:
    """Return the JSON document that describes a refusal."""
    return json.dumps(
        {
            "error": {
                "message": refusal.message,
                "type": _type(refusal.status),
                "param": refusal.param,
                "code": refusal.code,
            }
        }
    ).encode()


def headers_of(refusal: ApiRefusal) -> dict[str, str]:
    """Return the headers that a refusal adds to its response."""
    if refusal.status == 401:
        return {"WWW-Authenticate": "Bearer"}
    if refusal.retry_s or refusal.status == 429:
        return {"Retry-After": str(refusal.retry_s or defaults.API_RETRY)}
    return {"Allow": refusal.allow} if refusal.allow else {}


def _type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 else "invalid_request_error"
