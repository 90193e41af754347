"""Requests to an open network, in the process that has it."""

import math

import torch

from ...engine.compute.kv import raw_bytes
from ...engine.errors import EngineError
from ...engine.wire import Buffer, Header
from .network import WholeNetwork

_INT32: int = 4  # bytes


def answer(network: WholeNetwork, header: Header, payload: memoryview) -> tuple[Header, Buffer]:
    """Answer one request. Raises EngineError if it is malformed, or a result is not finite."""
    match header:
        case ("set", str(role)) if role in network.weights:
            return _set(network, role, payload)
        case ("gradient", str(role)) if role in network.weights:
            return ("ok",), raw_bytes(network.gradient(role).contiguous())
        case ("compute", int(rows), int(length), bool(back)) if rows > 0 < length:
            return _compute(network, (rows, length), payload, back=back)
    raise EngineError("bad-message", "the request is malformed")


def _set(network: WholeNetwork, role: str, payload: memoryview) -> tuple[Header, Buffer]:
    if len(payload) != 4 * network.weights[role].numel():
        raise EngineError("bad-tensor", f"`{role}` has another size")
    values = torch.frombuffer(payload, dtype=torch.float32)
    if not bool(torch.isfinite(values).all()):
        raise EngineError("not-finite", f"`{role}` has values that are not finite")
    network.set(role, values)
    return ("ok",), b""


def _compute(
    network: WholeNetwork, shape: tuple[int, int], payload: memoryview, *, back: bool
) -> tuple[Header, Buffer]:
    size = _INT32 * shape[0] * shape[1]
    if len(payload) != 2 * size:
        raise EngineError("bad-message", f"{len(payload)} bytes are not that batch")
    if shape[1] > network.arch.context:
        raise EngineError("too-long", f"the context is {network.arch.context}")
    tokens, targets = (
        torch.frombuffer(part, dtype=torch.int32).long().view(shape)
        for part in (payload[:size], payload[size:])
    )
    vocab = network.arch.vocab
    if int(tokens.min()) < 0 or max(int(tokens.max()), int(targets.max())) >= vocab:
        raise EngineError("bad-token", f"a token is not among the {vocab} known")
    loss, counted = network.compute(tokens, targets, back=back)
    if not math.isfinite(loss):
        raise EngineError("not-finite", "the loss is not finite")
    return ("ok", loss, counted), b""
