"""Requests to a running daemon that return failures as values, for measurements."""

import trio

from ...node.errors import ControlError
from .daemon import DaemonHandle


async def answer_time(
    handle: DaemonHandle, prompt: str, *, model: str, max_tokens: int
) -> float | None:
    """Return the virtual seconds that generating a whole text takes; None if it fails."""
    began = trio.current_time()
    try:
        await handle.generate(prompt, model=model, max_tokens=max_tokens)
    except (ControlError, OSError, trio.BrokenResourceError, ValueError, IndexError):
        return None  # refused, or the daemon ended before the reply was complete
    return trio.current_time() - began
