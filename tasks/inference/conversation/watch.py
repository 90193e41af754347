"""Finds the stages that keep a chain silent beyond its deadline."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import trio

from ....transport.errors import CallRefused, LinkClosed
from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ...defaults import (
    WATCH_ANSWER,
    WATCH_DUE,
    WATCH_LOOK,
    WATCH_PATIENCE,
    WATCH_ROUND_TRIPS,
)
from ...errors import BadMessage
from ..courier import Courier
from ..generation import GenerationRun
from ..messages import AskState, StageState
from .talk import lost_stage

_GONE = frozenset({"unknown-session", "session-closed"})
"""Codes of a stage that has lost a session, because its daemon was restarted."""

_ROUNDING = 1e-4
"""Seconds by which sums and differences of times differ, at most. Without it, a round that ends at
the deadline may seem to end before it, and the stage is replaced only after another round."""

_UNKNOWN = StageState(0, 0)
"""State of a stage that answers with a refusal: it is alive, and says no more than that."""


@dataclass(slots=True)
class Answers:
    """The answers of the stages of a chain in one round."""

    states: dict[int, StageState]  # by the stage's index
    gone: dict[int, str]  # the refusals of stages that have lost the session


class Questions:
    """Asks all stages of a chain for their state at once."""

    def __init__(self, host: Host, courier: Courier) -> None:
        self._host = host
        self._courier = courier

    async def ask(self, run: GenerationRun, by: float) -> Answers:
        """Ask all stages of a chain. They may answer until the time `by` (seconds on the host's
        clock), or longer where their answers take longer."""
        found = Answers({}, {})

        async def ask_one(index: int) -> None:
            began = self._host.now()
            usual = WATCH_ROUND_TRIPS * run.answered.get(run.peers[index], 0.0)
            await self._ask_one(run, index, max(by - began, WATCH_ANSWER, usual), found)
            if index in found.states:
                run.note_answer(run.peers[index], self._host.now() - began)

        async with trio.open_nursery() as nursery:
            for index in range(len(run.peers)):
                nursery.start_soon(ask_one, index)
        return found

    async def _ask_one(
        self, run: GenerationRun, index: int, timeout: float, found: Answers
    ) -> None:
        peer = run.peers[index]
        place = run.places[peer] if len(run.places) == len(run.peers) else index
        call = peer, "session.state", AskState(run.session, run.epoch, place).header()
        try:
            reply = await self._courier.call(*call, timeout=timeout)
            found.states[index] = StageState.parse(reply.header)
        except BadMessage:
            found.states[index] = _UNKNOWN
        except CallRefused as error:
            if error.code in _GONE:
                found.gone[index] = error.message
            elif error.code != "timeout":
                found.states[index] = _UNKNOWN
        except LinkClosed:
            pass


class Watch:
    """Asks the stages of one silent chain for their state, and notes those at fault in its run.

    The chain is asked after half of its deadline, so that a stage that does not answer is replaced
    at the deadline. A stage that answers is at fault only if it computes for this session alone.
    """

    def __init__(self, host: Host, courier: Courier, run: GenerationRun) -> None:
        self._host = host
        self._questions = Questions(host, courier)
        self._run = run
        self._since = host.now()  # a computer that slept until then has heard nothing
        self.asked = 0.0  # when the answers of the last round had arrived
        self._look_at = 0.0
        self._crawl_look = WATCH_LOOK  # seconds until a chain that crawls is asked again

    def pause(self) -> float:
        """Return for how many seconds to wait for messages before `look`."""
        pace, now = self._run.pace, self._host.now()
        heard = max(pace.heard_at, self._since)
        again = max(WATCH_LOOK, pace.deadline / 2, (self.asked - heard) / 4)
        look_at, due = max(heard + pace.deadline / 2, self.asked + again), heard + pace.deadline
        if heard < self.asked < due:  # they have answered before the deadline, and then say more
            look_at = due + WATCH_DUE
        if pace.crawls:  # in the middle of a gap, when the stage at fault has something to compute
            look_at = min(look_at, max(heard + pace.gap / 2, self.asked + self._crawl_look))
        self._look_at = max(look_at, now)
        return self._look_at - now

    async def look(self) -> None:
        """Find the stages at fault, and set the run's suspects. Ends early if a message arrives."""
        run, now = self._run, self._host.now()
        run.suspects = frozenset()
        if now > self._look_at + WATCH_LOOK:
            self._since = now
            return
        arrival = run.items.next_arrival()
        heard = max(run.pace.heard_at, self._since)
        answers = await self._answers(heard + run.pace.deadline, arrival)
        self.asked = self._host.now()
        if answers is None or arrival.is_set():
            return
        for index, why in answers.gone.items():
            run.fail(lost_stage(run, run.peers[index], why, cause="shard-gone"))
        silence = self.asked - heard + _ROUNDING
        if run.pace.crawls:  # a chain that cannot be replaced is asked less and less often
            self._crawl_look *= 2
            silence = max(silence, run.pace.crawled(self.asked))
        run.suspects = frozenset(late_stages(run, answers.states, silence))

    async def _answers(self, by: float, arrival: trio.Event) -> Answers | None:
        """Ask all stages, and return their answers, or None if a message arrives before,
        which sets `arrival`."""
        found: list[Answers] = []

        async def ask_all() -> None:
            found.append(await self._questions.ask(self._run, by))
            nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_all)
            await arrival.wait()
            nursery.cancel_scope.cancel()
        return found[0] if found else None


def late_stages(
    run: GenerationRun, states: Mapping[int, StageState], silence: float
) -> Collection[PeerId]:
    """Return the stages to replace after `silence` seconds, by their answers.

    These are the stages that did not answer and those that no longer hear a neighbour. If there are
    none, it is the first stage that computes for this session alone. A stage that says that it
    computes for other sessions may lie, so it has WATCH_PATIENCE more seconds and no longer. So has
    a stage that does not send the next stage what that one lacks.
    """
    if silence < run.pace.deadline:
        return ()
    missing = {peer for index, peer in enumerate(run.peers) if index not in states}
    if missing or run.missed:
        return missing | run.missed
    index = next((index for index in sorted(states) if states[index].waiting), None)
    if index is None:
        return _withholding(run) if silence >= WATCH_PATIENCE else ()
    if silence < run.pace.slow:
        return ()
    busy = states[index].others and silence < run.pace.slow + WATCH_PATIENCE
    return () if busy else {run.peers[index]}


def _withholding(run: GenerationRun) -> Collection[PeerId]:
    """Return the stage that does not send the next one what it lacks, if the chain waits for it."""
    place = run.continuation.withholding if run.continuation else None
    return () if place is None else {run.peers[place]}
