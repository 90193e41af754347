"""Makes a daemon's engine say recorded texts. Python loads this module when a process starts, if
its folder is in PYTHONPATH.

The engine computes everything, and then takes the token of a recorded text in place of its choice
(teacher forcing). The file that SHOAL_BENCH_TEXTS names is a JSON list of [length of the prompt,
ids of the answer]. The seed of a request is the number of its text, plus a multiple of the number
of texts: the number of its user. Users with an even number get no drafts.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from shoal.tasks.engine.devicecore import DeviceCore
from shoal.tasks.engine.families import Architecture
from shoal.tasks.engine.interface import LoadShard
from shoal.tasks.engine.shard import ChosenToken, Compute, Pick
from shoal.tasks.inference.conversation import windows
from shoal.tasks.inference.conversation.talk import Talk
from shoal.tasks.inference.generation import GenerationRun


def _force(texts: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Let the engine of this process say these texts."""
    plain = DeviceCore.compute

    def compute(self: DeviceCore, arch: Architecture, shard: LoadShard) -> Compute:
        found = plain(self, arch, shard)
        choose = found.choose

        def said(picks: Sequence[Pick]) -> list[ChosenToken]:
            choose(picks)
            return [_token(texts, pick) for pick in picks]

        found.choose = said  # type: ignore[method-assign]
        return found

    DeviceCore.compute = compute  # type: ignore[method-assign]


def _divide(count: int) -> None:
    """Let the drafts of this process depend on the user's number."""
    plain_begin: Any = windows.Windows.begin
    plain_end: Any = windows.Windows.end

    def named(talk: Talk) -> Talk:
        user = str(talk.request.sampling.seed // count)
        return replace(talk, request=replace(talk.request, user=user))

    async def begin(self: windows.Windows, talk: Talk, run: GenerationRun) -> None:
        if talk.request.sampling.seed // count % 2:
            await plain_begin(self, named(talk), run)

    async def end(self: windows.Windows, talk: Talk) -> None:
        await plain_end(self, named(talk))

    windows.Windows.begin = begin  # type: ignore[method-assign]
    windows.Windows.end = end  # type: ignore[method-assign]


def _token(texts: Sequence[tuple[int, Sequence[int]]], pick: Pick) -> ChosenToken:
    length, answer = texts[pick.sampling.seed % len(texts)]
    at = pick.position - length
    return ChosenToken(answer[at] if 0 <= at < len(answer) else 2, -1.0)


if "SHOAL_BENCH_TEXTS" in os.environ:
    recorded = json.loads(Path(os.environ["SHOAL_BENCH_TEXTS"]).read_text())
    _force(recorded)
    _divide(len(recorded))
