"""Converts the sampling options of a request."""

from ...tasks.engine.interface import Sampling
from ...transport.host.seam import Host
from .messages.generation import AskForText


def sampling_of(ask: AskForText[object, object], host: Host) -> Sampling:
    """Return the sampling options of a request. If it has no seed, a random one is chosen."""
    seed = int.from_bytes(host.entropy(8), "big") if ask.seed is None else ask.seed
    return Sampling(
        temperature=float(ask.temperature), top_k=ask.top_k, top_p=float(ask.top_p), seed=seed
    )
