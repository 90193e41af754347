"""Open sessions of a gateway, and the messages that their stages send to it."""

from ....transport.host.seam import Host
from ....transport.identity import PeerId
from ....transport.link.calls import Call, Refusal, Reply
from ....transport.link.link import Link
from ...engine.interface import SessionId
from ...errors import SessionError
from ..choice import Choice
from ..courier import Courier
from ..generation import GenerationRun, Model
from ..messages import (
    Failed,
    Held,
    Need,
    PooledSpan,
    Quiet,
    Rebuilt,
    SampledToken,
    SpanProgress,
    unpack_states,
)
from ..surviving.recovery import LOST_STATE
from .talk import lost_stage
from .windows import Windows


class OpenRuns:
    """The open sessions of one gateway by their ids. Stages' messages go to the session's run.

    `choice` learns from the first token of each run.
    """

    def __init__(self, host: Host, courier: Courier, windows: Windows, choice: Choice) -> None:
        self._host = host
        self._windows = windows
        self._choice = choice
        # By session and epoch: two epochs while a chain is changed.
        self.runs: dict[tuple[SessionId, int], tuple[GenerationRun, Model]] = {}
        courier.handle("session.token", self._on_token)
        courier.handle("session.progress", self._on_progress)
        courier.handle("session.pooled", self._on_pooled)
        courier.handle("session.failed", self._on_failed)
        courier.handle("session.quiet", self._on_quiet)
        courier.handle("session.tokens", self._on_tokens)
        courier.handle("session.rebuilt", self._on_rebuilt)
        courier.handle("session.held", self._on_held)
        courier.on_link_lost(self._link_lost)
        courier.watch_links(self._waits_for)

    def __len__(self) -> int:
        return len(self.runs)

    def add(self, run: GenerationRun, model: Model) -> None:
        """Accept messages for a run from now on."""
        self.runs[run.session, run.epoch] = run, model

    def model(self, run: GenerationRun) -> Model:
        """Return the model of a run that was added."""
        return self.runs[run.session, run.epoch][1]

    def remove(self, run: GenerationRun) -> None:
        """Accept no more messages for a run."""
        del self.runs[run.session, run.epoch]

    def _find(
        self, call: Call, session: SessionId, epoch: int, *, head: bool
    ) -> tuple[GenerationRun, Model]:
        """Return the run of a session and its model.

        Raises SessionError if the session is not open, or if the sender may not send this message.
        If `head`, only the last stage may send it.
        """
        if (session, epoch) not in self.runs:
            if any(name == session for name, _ in self.runs):
                raise SessionError("stale-epoch", "the session is in another epoch")
            raise SessionError("unknown-session", "no such session is open here")
        run, model = self.runs[session, epoch]
        run.check(call.peer, epoch, head=head)
        return run, model

    def _on_token(self, call: Call) -> Reply | Refusal:
        try:
            token = SampledToken.parse(call.header)
            run, model = self._find(call, token.session, token.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        now, first = self._host.now(), run.times.first_at is None
        if run.take_token(token, model.vocabulary, now):
            self._windows.follow(run, token, now)
        if first and run.times.first_at is not None:
            self._choice.answered(run)
        return Reply()

    def _on_progress(self, call: Call) -> Reply | Refusal:
        try:
            progress = SpanProgress.parse(call.header)
            run, _ = self._find(call, progress.session, progress.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_progress(progress, self._host.now())
        return Reply()

    def _on_pooled(self, call: Call) -> Reply | Refusal:
        try:
            progress = PooledSpan.parse(call.header)
            run, model = self._find(call, progress.session, progress.epoch, head=True)
        except SessionError as error:
            return Refusal(error.code, error.message)
        try:
            states = unpack_states(call.payload, model.hidden)
        except SessionError:
            run.fail(SessionError("bad-stage", f"{run.describe(-1)} sent an invalid sum"))
        else:
            run.take_pooled(progress, states, self._host.now())
        return Reply()

    def _on_quiet(self, call: Call) -> Reply | Refusal:
        try:
            said = Quiet.parse(call.header)
            run, _ = self._find(call, said.session, said.epoch, head=False)
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_quiet(call.peer, said.peer, quiet=said.quiet)
        if said.lost and said.peer in run.peers and said.peer != call.peer:
            stage = run.describe(run.peers.index(call.peer))
            why = f"the link ended, says {stage}"
            run.fail(lost_stage(run, said.peer, why, by=call.peer))
        return Reply()

    def _on_tokens(self, call: Call) -> Reply | Refusal:
        """Handle `session.tokens`: the first stage lacks tokens, as other stages lack inputs."""
        try:
            need = Need.parse(call.header)
            run, _ = self._find(call, need.session, need.epoch, head=False)
            if call.peer != run.peers[0]:
                raise SessionError("not-yours", "tokens are for the first stage")
            run.take_need(need)
        except SessionError as error:
            return Refusal(error.code, error.message)
        return Reply()

    def _on_rebuilt(self, call: Call) -> Reply | Refusal:
        try:
            rebuilt = Rebuilt.parse(call.header)
            run, _ = self._find(call, rebuilt.session, rebuilt.epoch, head=False)
            if run.places[call.peer] != rebuilt.index:
                raise SessionError("not-yours", "that is another stage's state")
        except SessionError as error:
            return Refusal(error.code, error.message)
        run.take_rebuilt(rebuilt, self._host.now())
        return Reply()

    def _on_held(self, call: Call) -> Reply | Refusal:
        try:
            held = Held.parse(call.header)
            run, _ = self._find(call, held.session, held.epoch, head=False)
            run.take_held(call.peer, held)
        except SessionError as error:
            return Refusal(error.code, error.message)
        return Reply()

    def _on_failed(self, call: Call) -> Reply | Refusal:
        try:
            failed = Failed.parse(call.header)
            if self._lose_standby(call.peer, failed.session):
                return Reply()
            run, _ = self._find(call, failed.session, failed.epoch, head=False)
        except SessionError as error:
            return Refusal(error.code, error.message)
        stage = run.describe(run.peers.index(call.peer))
        if failed.lost in run.peers:
            run.fail(lost_stage(run, failed.lost, f"{failed.message}, says {stage}", by=call.peer))
        elif failed.code in LOST_STATE:
            run.fail(lost_stage(run, call.peer, failed.message, cause=failed.code))
        else:
            run.fail(SessionError(failed.code, f"{stage}: {failed.message}"))
        return Reply()

    def _lose_standby(self, peer: PeerId, session: SessionId) -> bool:
        """Forget a standby of a session at a peer. Return whether there was one."""
        runs = [run for (name, _), (run, _) in self.runs.items() if name == session]
        if any(peer in run.peers for run in runs):
            return False
        # While a chain is changed, the session has two runs.
        return [run.lose_standby(peer) for run in runs].count(True) > 0

    def _waits_for(self, peer: PeerId) -> bool:
        """Return whether the peer is a stage of an open session, or stands by for one. The link to
        a standby carries nothing until it is needed."""
        return any(
            peer in run.peers or any(each.hop.peer == peer for each in run.standbys.values())
            for run, _ in self.runs.values()
        )

    def _link_lost(self, link: Link, code: str) -> None:
        for run, _ in self.runs.values():
            if link.peer in run.peers:
                run.fail(lost_stage(run, link.peer, f"the link ended: {code}"))
            else:
                run.lose_standby(link.peer)
