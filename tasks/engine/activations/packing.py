"""Packs hidden states into int8 with a scale for each block, and unpacks them."""

import torch

from ..errors import EngineError
from ..wire import Buffer
from .layout import BLOCK_VALUES, packed_bytes

_MOST = 127.0  # the largest int8 that is used, so that negative values are treated alike
_LARGEST = torch.finfo(torch.float16).max


def pack(rows: torch.Tensor) -> torch.Tensor:
    """Pack rows (count x hidden) of finite values. Returns bytes, (count x packed_bytes)."""
    count, hidden = rows.shape
    x = _blocks(rows.float())
    scales = (x.abs().amax(2) / _MOST).clamp(max=_LARGEST).half()
    by = scales.float()[:, :, None]
    x = torch.where(by > 0, x / by, 0.0).round_().clamp_(-_MOST, _MOST)
    numbers = x.to(torch.int8).view(count, -1)[:, :hidden].contiguous()
    return torch.cat((numbers.view(torch.uint8), scales.view(torch.uint8)), 1)


def unpack(data: Buffer, count: int, hidden: int, dtype: torch.dtype) -> torch.Tensor:
    """Unpack `count` rows of `hidden` values, which come from an untrusted peer.

    Raises EngineError `bad-hidden` if the size is wrong, and `not-finite` if a scale is negative,
    infinite or not a number.
    """
    width = packed_bytes(hidden)
    if len(data) != count * width:
        raise EngineError("bad-hidden", f"the input is not {count} packed rows of {hidden} values")
    raw = torch.frombuffer(data, dtype=torch.uint8).view(count, width)
    scales = raw[:, hidden:].contiguous().view(torch.float16).float()
    if not bool(((scales >= 0) & (scales <= _LARGEST)).all()):
        raise EngineError("not-finite", "a scale of packed hidden states is negative or not finite")
    x = _blocks(raw[:, :hidden].contiguous().view(torch.int8).float())
    rows = (x * scales[:, :, None]).view(count, -1)[:, :hidden]
    return rows.to(dtype).contiguous()


def _blocks(rows: torch.Tensor) -> torch.Tensor:
    """Return rows as (count x blocks x BLOCK_VALUES), filled up with zeros."""
    rest = -rows.shape[1] % BLOCK_VALUES
    if rest:
        rows = torch.nn.functional.pad(rows, (0, rest))
    return rows.view(rows.shape[0], -1, BLOCK_VALUES)
