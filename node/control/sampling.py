"""Reads how a request wants tokens to be sampled."""

from ...tasks.engine.interface import Sampling
from ...transport.host.seam import Host
from .messages.generation import AskForText


def sampling_of(ask: AskForText[object, object], host: Host) -> Sampling:
    """Return how tokens are sampled, with a random seed if the request has none."""
    seed = int.from_bytes(host.entropy(8), "big") if ask.seed is None else ask.seed
    return Sampling(
        temperature=float(ask.temperature), top_k=ask.top_k, top_p=float(ask.top_p), seed=seed
    )
