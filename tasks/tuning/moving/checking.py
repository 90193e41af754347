"""Check of an adapter that another node has trained: its held-out loss is computed again here.

The trainer measures the loss on rows that the author has, too. So the author computes these rows
with the adapter through a chain of its own, and compares. Spec: docs/spec/moving.md.
"""

import math
from typing import Final

import trio

from ....transport.errors import ShoalError
from ....transport.host.seam import Host
from ..trainer.defaults import CHAIN_RETRY, RETRY
from ..trainer.errors import TuningError
from ..trainer.optimiser import Learned
from ..trainer.order import RowSchedule
from ..trainer.plan import Errand
from ..trainer.rows import RowFile, counted
from ..trainer.subject import AdapterSubject
from ..trainer.surroundings import ArchOf, ChainSource
from ..trainer.training import Progress
from . import defaults

FALSE: Final = "false-result"
_NO_LOSS: Final = ("bad-adapter", "bad-result", "not-finite")
"""Codes with which honest chains refuse tensors that give no loss: too large ones overflow."""


class HeldOutCheck:
    """Checks what other nodes have trained for this one."""

    def __init__(self, host: Host, chains: ChainSource, arch_of: ArchOf) -> None:
        self._host = host
        self._chains = chains
        self._arch_of = arch_of

    async def check(self, errand: Errand, learned: Learned, progress: Progress) -> None:
        """Compute the held-out loss of a result. Nothing is checked if no row is held out, or if no
        chain can be reached within CHECK_PATIENCE seconds.

        Raises TuningError `false-result` if two chains find a higher loss than the trainer has
        said, or none at all. One is not enough, because a stage of it may be what is wrong.
        """
        if not errand.settings.held_out:
            return
        if not learned.best or not math.isfinite(learned.best_loss):
            raise _false("the trainer named no tensors with the lowest held-out loss")
        said, found = learned.best_loss, math.inf
        for _ in range(defaults.CHECK_CHAINS):
            loss = await self._loss(errand, learned, progress)
            if loss is None or loss <= said * (1 + defaults.CHECK_SHARE) + defaults.CHECK_NATS:
                return
            found = min(found, loss)
        if math.isinf(found):
            raise _false(f"it has no finite held-out loss, and the trainer said {said:.4f}")
        raise _false(f"the held-out loss is {found:.4f}, and the trainer said {said:.4f}")

    async def _loss(self, errand: Errand, learned: Learned, progress: Progress) -> float | None:
        """Return the held-out loss, infinity if a chain finds none with these tensors, or None if
        no chain can be reached in time."""
        pause = RETRY[0]
        with trio.move_on_after(defaults.CHECK_PATIENCE):
            while True:
                try:
                    loss = await self._computed(errand, learned)
                except TuningError:
                    raise
                except ShoalError as error:
                    progress.trouble = error.message
                    if getattr(error, "code", "") in _NO_LOSS:
                        return math.inf
                else:
                    if loss is not None:
                        return loss
                    progress.trouble = "a chain returned no possible held-out loss"
                    return math.inf
                progress.tell()
                await trio.sleep(pause)
                pause = min(2 * pause, CHAIN_RETRY)
        return None

    async def _computed(self, errand: Errand, learned: Learned) -> float | None:
        """Compute the held-out rows on a new chain. Return None if what it says is impossible."""
        settings, host = errand.settings, self._host
        rows = await host.offload(RowFile, host.files, errand.rows, errand.data)
        order = RowSchedule(rows.lengths, settings.batch, settings.seed, settings.held_out)
        chain = self._chains.chain(settings.root, await self._arch_of(settings.root))
        subject, total, number = AdapterSubject(settings, errand.shapes, chain), 0.0, 0
        try:
            for at in range(0, len(order.held_out), defaults.CHECK_ROWS):
                held = order.held_out[at : at + defaults.CHECK_ROWS]
                batch = await host.offload(rows.batch, held)
                loss, count = await subject.loss(batch, learned.best)
                if not (math.isfinite(loss) and loss >= 0 and count == counted(batch)):
                    return None
                total, number = total + loss, number + count
        finally:
            with trio.move_on_after(RETRY[0]) as leaving:
                leaving.shield = True
                await chain.aclose()
        return total / max(number, 1)


def _false(why: str) -> TuningError:
    return TuningError(
        FALSE,
        f"the adapter that another node has trained is not used: {why}",
        hint="`shoal finetune resume ID` has it trained again from the last state that is here",
    )
