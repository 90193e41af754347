"""Messages of `api`, which tells a command where the HTTP API is."""

from dataclasses import dataclass
from typing import Never

from .encoding import Ask


@dataclass(frozen=True, slots=True)
class ApiView:
    """Where the HTTP API of this node is. `model` is the name of one that can answer now, or
    None."""

    url: str
    token: str
    model: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GetApi(Ask[ApiView, Never]):
    """Request for the URL and the token of the HTTP API."""

    op = "api"
