"""Running answers that move to faster chains."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from shoal.tasks.defaults import MOVE_REPLICAS, MOVES
from shoal.tasks.engine.interface import Parts
from shoal.tasks.inference.choice import Choice
from shoal.tasks.inference.conversation import advancing
from shoal.tasks.inference.conversation.advancing import Advancing
from shoal.tasks.inference.conversation.mending import Mending
from shoal.tasks.inference.conversation.standing import Standing
from shoal.tasks.inference.gateway import GatewayEvent, Routed
from shoal.tasks.inference.generation import Model
from shoal.tasks.routing.beliefs import Times
from shoal.tasks.routing.paths import Hop
from shoal.transport.identity import PeerId
from tests.tasks.inference.test_standbys import Answered

Route = tuple[str, ...]


class Moved(Answered):
    """An answer whose chains have predicted times: a token takes `base` seconds, and 0.01 more for
    each stage of the first chain. It takes 0.18 there, and more in any chain that was left."""

    def __init__(self, patch: pytest.MonkeyPatch, base: float) -> None:
        super().__init__()
        self.base, self.known = base, True
        self.routes: list[Route] = []
        patch.setattr(Choice, "token_s", lambda _, chain, model: self.token_s(chain, model))
        patch.setattr(Choice, "knows", lambda _, chain: self.known)
        patch.setattr(advancing, "MOVE_PAUSE", 0.0)
        patch.setattr(advancing, "MOVE_LOOK", 0.4)
        patch.setattr(advancing, "MOVE_AGAIN", 0.4)

    def token_s(self, chain: Sequence[Hop], model: Model) -> float:
        if tuple(hop.peer for hop in chain) in self.routes[:-1]:
            return 0.25
        return self.base + 0.01 * sum(hop.peer in self.routes[0] for hop in chain)

    async def answer(self) -> list[Route]:
        """Answer, check the text, and return the chains in the order in which they answered."""
        await self.run(trio.lowlevel.checkpoint, at=0.1)
        return self.routes

    async def _emit(self, event: GatewayEvent) -> None:
        await super()._emit(event)
        if isinstance(event, Routed):
            self.routes.append(self.route)


@pytest.mark.trio
async def test_an_answer_moves_to_faster_stages_and_its_text_stays(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *others = await Moved(monkeypatch, 0.05).answer()
    assert others and not set(others[-1]) & set(first)


@pytest.mark.trio
@pytest.mark.parametrize(
    "base, pause, known", [(0.17, 0.0, True), (0.05, 99.0, True), (0.05, 0.0, False)]
)
async def test_an_answer_stays_for_a_small_gain_or_for_guesses(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch, base: float, pause: float, known: bool
) -> None:
    answered = Moved(monkeypatch, base)
    monkeypatch.setattr(advancing, "MOVE_PAUSE", pause)
    answered.known = known
    assert len(await answered.answer()) == 1


class Paired(Moved):
    """One chain is faster than the first: that with other stages at the places 1 and 2."""

    def token_s(self, chain: Sequence[Hop], model: Model) -> float:
        pairs = zip((hop.peer for hop in chain), self.routes[0], strict=True)
        changed = [place for place, (peer, first) in enumerate(pairs) if peer != first]
        return 0.05 if changed == [1, 2] else 0.18 + 0.01 * len(changed)


@pytest.mark.trio
async def test_two_stages_are_replaced_together_if_one_alone_is_no_gain(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stage and the next one are near each other, and far from those in the chain."""
    first, second = await Paired(monkeypatch, 0.0).answer()
    assert [one == other for one, other in zip(first, second, strict=True)] == [
        True, False, False, True,
    ]  # fmt: skip


@pytest.mark.trio
async def test_a_move_that_fails_is_not_the_last_one(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    mend, failed = Mending.mend, list[bool]()

    async def refused(self: Mending, *wanted: Any, ahead: bool = False) -> bool:
        if ahead and not failed:
            failed.append(True)
            return False
        return await mend(self, *wanted, ahead=ahead)

    monkeypatch.setattr(Mending, "mend", refused)
    assert len(await Moved(monkeypatch, 0.05).answer()) > 1 and failed


class Envious(Moved):
    """An answer whose own chain always seems to be the slowest one."""

    def token_s(self, chain: Sequence[Hop], model: Model) -> float:
        return 0.05 + 0.01 * sum(hop.peer in self.route for hop in chain)


@pytest.mark.trio
async def test_an_answer_does_not_oscillate(
    autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = await Envious(monkeypatch, 0.05).answer()
    assert 2 <= len(routes) <= 2 + MOVES
    assert len({*routes}) >= len(routes) - 1, "it returns once"


class Crowd:
    """Parts of a gateway in a swarm where `count` members have the same layers."""

    def __init__(self, count: int) -> None:
        parts = Parts(True, 0, 4, True)
        self.hops = [Hop(PeerId(f"peer{number}"), parts, "float32") for number in range(count)]
        self.predicted = 0
        self.advancing = Advancing(self, self, self, self)  # type: ignore[arg-type]
        self.standing = Standing(self, self, self, self, self)  # type: ignore[arg-type]
        self.standing.replicas = self.replicas  # type: ignore[method-assign]
        self.nearest = self.standing.nearest

    def replicas(self, talk: object, hop: Hop) -> list[Hop]:
        return self.hops

    def reaches(self, peer: PeerId) -> bool:
        return True

    def round_trip(self, peer: PeerId) -> float:
        return 0.02

    def knows(self, chain: object) -> bool:
        return True

    def measured(self, model: object) -> list[tuple[Hop, ...]]:
        return []

    def believed(self, hop: Hop, model: object) -> Times:
        return Times(0.0, 1.0 + self.hops.index(hop))

    def token_s(self, chain: Sequence[Hop], model: object) -> float:
        self.predicted += 1
        return sum(self.believed(hop, model).token_s for hop in chain)


class Remembered(Crowd):
    """Four members, two for each of two stages. Any chain but two takes long; one was measured."""

    def __init__(self) -> None:
        super().__init__(0)
        first, last = Parts(True, 0, 4, False), Parts(False, 4, 8, True)
        self.hops = [Hop(PeerId(name), parts, "float32") for name, parts in
                     (("a", first), ("b", last), ("c", first), ("d", last))]  # fmt: skip

    def replicas(self, talk: object, hop: Hop) -> list[Hop]:
        return [each for each in self.hops if each.parts == hop.parts and each != hop]

    def measured(self, model: object) -> list[tuple[Hop, ...]]:
        return [
            tuple(self.hops[2:]),
            (self.hops[0], Hop(PeerId("gone"), Parts(False, 4, 8, True), "")),
        ]

    def token_s(self, chain: Sequence[Hop], model: object) -> float:
        return {"ab": 0.2, "cd": 0.1, "agone": 0.05}.get("".join(hop.peer for hop in chain), 0.9)


@pytest.mark.trio
async def test_an_answer_moves_to_a_measured_chain_that_no_single_step_leads_to() -> None:
    crowd = Remembered()
    talk, run = (
        SimpleNamespace(left=(), model=None, moved_from=(), moves=0),
        SimpleNamespace(chain=tuple(crowd.hops[:2])),
    )
    found = await crowd.advancing.best(talk, run)  # type: ignore[arg-type]
    assert found == (tuple(crowd.hops[2:]), 0.1)


@pytest.mark.trio
async def test_a_crowd_of_replicas_does_not_stall_the_loop() -> None:
    crowd = Crowd(300)
    first, last = crowd.hops[0], crowd.hops[-1]
    talk, run = (
        SimpleNamespace(left=(), model=None, moved_from=(), moves=0),
        SimpleNamespace(chain=(last,)),
    )
    assert (await crowd.advancing.best(talk, run))[0] == (first,)  # type: ignore[arg-type]
    assert crowd.predicted <= 2 * MOVE_REPLICAS + 1


def test_a_crowd_of_standbys_does_not_stall_the_loop() -> None:
    crowd = Crowd(300)
    first, last = crowd.hops[0], crowd.hops[-1]
    talk = SimpleNamespace(model=None)
    run = SimpleNamespace(chain=(last,), peers=(last.peer,), standbys={})
    assert crowd.standing.candidate(talk, run, last) == first  # type: ignore[arg-type]
    assert crowd.predicted <= MOVE_REPLICAS


@pytest.mark.trio
async def test_a_long_chain_does_not_stall_the_loop() -> None:
    """Other tasks run after the replicas of each place, or of two."""
    crowd, most, done = Crowd(64), 0, False
    talk = SimpleNamespace(left=(), model=None, moved_from=(), moves=0)
    run = SimpleNamespace(chain=tuple(crowd.hops[32:]))

    async def look() -> None:
        nonlocal most
        before = 0
        while before < crowd.predicted or not done:
            most, before = max(most, crowd.predicted - before), crowd.predicted
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await crowd.advancing.best(talk, run)  # type: ignore[arg-type]
        done = True
    assert most <= 2 * MOVE_REPLICAS + 1 < crowd.predicted // 3
