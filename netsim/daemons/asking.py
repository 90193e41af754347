"""Questions to a running daemon, with failures as values: for those who measure."""

import trio

from ...node.errors import ControlError
from .daemon import DaemonHandle


async def answer_time(
    handle: DaemonHandle, prompt: str, *, model: str, max_tokens: int
) -> float | None:
    """Virtual seconds until a whole text is generated; None where it fails."""
    began = trio.current_time()
    try:
        await handle.generate(prompt, model=model, max_tokens=max_tokens)
    except (ControlError, OSError, trio.BrokenResourceError, ValueError, IndexError):
        return None  # refused, or the daemon ended in the middle of its answer
    return trio.current_time() - began
