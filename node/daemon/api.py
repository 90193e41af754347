"""Connects the HTTP API of a daemon with the parts that it uses."""

from collections.abc import Mapping, Sequence

from ...tasks.sharing.offers import WORD
from ...transport import shortid
from ..control import views
from ..http.backend import Backend
from ..http.server import ApiServer
from ..resumable import ResumableAnswers
from .base import Base
from .compute import ComputeParts
from .content import ContentParts
from .network import NetworkParts


def new_api(
    base: Base, network: NetworkParts, content: ContentParts, compute: ComputeParts
) -> ApiServer | None:
    """Return the server of the HTTP API, or None if the owner wants none."""
    if base.config.api is None:
        return None

    def names() -> Sequence[str]:
        found = views.swarm_models(network.directory, base.library)
        rooted = [model.name for model in found if model.name and model.complete]
        return [*rooted, *owners()]

    sharing = compute.sharing

    def owners() -> Mapping[str, str]:
        return {
            called: f"shared by {shortid.short(offer.peer)} ({WORD})"
            for called, offer in sharing.offers()
        }

    async def find(name: str) -> object:
        return sharing.answering.shared(name) or await content.sources.find(name)

    backend = Backend(
        host=base.host,
        guard=network.endpoint.guard,
        generate=sharing.answering.generate,
        embed=compute.gateway.embedder.embed,
        names=names,
        find=find,
        owners=owners,
        refuse_when_stopping=base.refuse_when_stopping,
        resumable=ResumableAnswers(base.host, network.endpoint.guard),
    )
    return ApiServer(base.host, base.config.folder, base.config.api, base.health, backend)
