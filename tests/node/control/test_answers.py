"""Events of an answer on the control socket while it is generated."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from shoal.node.control.answers import AnswerOperations
from shoal.node.control.messages import generation
from shoal.tasks.inference.generation import Awaited, Summary
from shoal.tasks.text.process import TextDelta
from shoal.transport.host.real import RealHost


class Gateway:
    """A gateway whose answer waits for layers before its text."""

    async def generate(self, request: object, emit: Any) -> Summary:
        await emit(Awaited(((2, 5), (5, 6)), 600.0))
        await emit(TextDelta("text", stopped=False))
        return Summary("stop", 3, 1, 0.1, 10.0, 1.0, "text", (7,))


@pytest.mark.trio
async def test_the_client_hears_that_its_answer_waits_for_layers() -> None:
    parts = SimpleNamespace(
        host=RealHost(), refuse_when_stopping=lambda: None,
        sharing=SimpleNamespace(answering=Gateway()),
    )  # fmt: skip
    said = list[generation.TextEvent]()

    async def emit(event: generation.TextEvent) -> None:
        await trio.lowlevel.checkpoint()
        said.append(event)

    found = await AnswerOperations(*cast(Any, (parts, parts, None))).run(
        generation.Run(model="m", prompt="p"), cast(Any, emit)
    )
    assert said == [generation.LayersAwaited(("2:5", "5:6"), 600.0), generation.TextPiece("text")]
    assert found.text == "text"
