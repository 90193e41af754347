"""The parts of a node that its API uses."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from ...tasks.inference.embedding import Embeddings, EmbedRequest
from ...tasks.inference.generation import Emit, GenerateRequest, Summary
from ...transport.guard import Guard
from ...transport.host.seam import Host
from ..resumable import ResumableAnswers


@dataclass(frozen=True, slots=True)
class Backend:
    """The parts of the node that the API uses."""

    host: Host
    guard: Guard
    generate: Callable[[GenerateRequest, Emit], Awaitable[Summary]]
    """Answers a request, as the gateway does."""
    embed: Callable[[EmbedRequest], Awaitable[Embeddings]]
    """Returns the embeddings of several inputs, as the gateway does."""
    names: Callable[[], Sequence[str]]
    """Returns the names of the models that can answer now."""
    find: Callable[[str], Awaitable[object]]
    """Resolves a model's name. Raises ModelError if it is unknown or ambiguous."""
    refuse_when_stopping: Callable[[], None]
    """Raises ControlError if the node is stopping."""
    resumable: ResumableAnswers[bytes, bool]
    """Streamed answers, whose clients may come back."""
    owners: Callable[[], Mapping[str, str]] = dict
    """Returns the member behind each model that has no root, in words, by the model's name."""
