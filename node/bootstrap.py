"""Reaching the first peers: bootstrap addresses, remembered ones, and an invitation."""

from collections.abc import Sequence

import trio

from ..state.group.admission import REVOKED
from ..transport.address import Address
from ..transport.endpoint import Endpoint
from ..transport.errors import DialFailed, TransportError
from ..transport.host import Host
from ..transport.identity import PeerId, public_key_of
from ..transport.ladder import Ladder
from ..transport.link import Link
from . import defaults
from .errors import NodeError, OtherSwarm
from .grouping import JOIN, back_hint
from .handing import Handed, open_handed
from .health import Health
from .invite import Invitation

NOT_ADMITTED = {"not-admitted", "not-a-member", REVOKED, "wrong-swarm"}


class Bootstrap:
    """Keeps a link to each given address, redialling when it is lost; tells what fails."""

    def __init__(self, host: Host, ladder: Ladder, health: Health) -> None:
        self._host = host
        self._ladder = ladder
        self._endpoint = endpoint = ladder.endpoint
        self._health = health
        self._lost = trio.Event()  # set, and replaced, when a link has ended
        endpoint.on_link_lost(lambda _link, _code: self._wake())

    def _wake(self) -> None:
        self._lost.set()
        self._lost = trio.Event()

    async def run(self, given: Sequence[Address], remembered: Sequence[Address]) -> None:
        """Until cancelled. Of remembered addresses nothing is told: peers come and go."""
        async with trio.open_nursery() as nursery:
            for address in given:
                nursery.start_soon(self._keep, address, True)
            places = {(address.host, address.port) for address in given}
            for address in remembered:
                if (address.host, address.port) not in places:
                    nursery.start_soon(self._keep, address, False)

    async def _keep(self, address: Address, told: bool) -> None:
        """One address: dialled until it answers, and again whenever its link has ended."""
        pause = defaults.BOOTSTRAP_PAUSE
        while True:
            try:
                link = await self._ladder.dial(
                    address, timeout=defaults.BOOTSTRAP_TIMEOUT, given=told
                )
            except TransportError as error:
                if error.code == "self":
                    return
                if told:
                    self._tell(address, error)
                await trio.sleep(pause)
                pause = min(2 * pause, defaults.BOOTSTRAP_PAUSE_MOST)
                continue
            self._health.clear(_condition(address))
            pause = defaults.BOOTSTRAP_PAUSE
            while self._endpoint.link(link.peer) is not None:
                await self._lost.wait()

    def _tell(self, address: Address, error: TransportError) -> None:
        where = f"the bootstrap address `{address.host}:{address.port}`"
        if error.code == "wrong-peer":
            self._health.report(
                _condition(address),
                f"{where} answers with another identity than {address.peer}",
                hint="ask who runs it for its address again; somebody else may be answering",
            )
        elif error.code == REVOKED:
            self._health.report(
                _condition(address),
                f"{where} does not let this node in: the group has revoked it",
                hint=back_hint(self._endpoint.peer),
            )
        elif error.code in NOT_ADMITTED:
            self._health.report(
                _condition(address),
                f"{where} does not let this node in: {error.message}",
                hint="ask for a code (`shoal invite` there) and use `shoal join CODE`",
            )
        else:
            self._health.report(
                _condition(address),
                f"{where} does not answer: {error.message}",
                hint="it is tried again; look whether that node runs and its port is open",
            )


def _condition(address: Address) -> str:
    return f"bootstrap {address.host}:{address.port}"


async def join(
    endpoint: Endpoint, invitation: Invitation, box: bytes
) -> tuple[Link, Handed | None]:
    """Join by a code; returns the link to the inviter, and its group where it is in one. `box`: for
    what the group will seal for this node.

    Raises NodeError: `unreachable`, `wrong-peer`, `invite-refused`, `other-swarm` (the data folder
    belongs to another; the code is not used up).
    """
    where = f"{invitation.host}:{invitation.port}"
    try:
        link = await endpoint.dial(
            Address(invitation.host, invitation.port), timeout=defaults.BOOTSTRAP_TIMEOUT
        )
    except DialFailed as error:
        raise _join_failed(where, error, endpoint.peer) from None
    if not invitation.expects(public_key_of(link.peer)):
        link.close("wrong-peer")
        raise NodeError(
            "wrong-peer",
            f"the node at {where} is not the one that made this invitation",
            hint="ask for a new code; somebody else may be answering at that address",
        )
    return link, await _redeem(link, where, box, endpoint.peer)


async def _redeem(link: Link, where: str, box: bytes, own: PeerId) -> Handed | None:
    try:
        reply = await link.call(JOIN, payload=box, timeout=defaults.GRANT_TIMEOUT)
    except TransportError as error:
        if error.code == REVOKED:
            raise _revoked(where, own) from None
        raise NodeError(
            "invite-refused", f"the node at {where} does not let this one join: {error.message}",
            hint="ask for a new code: `shoal invite` there",
        ) from None  # fmt: skip
    if reply.header.get("private") is not True:
        return None
    handed = open_handed(reply.payload)
    if handed is None:
        raise NodeError("invite-refused", f"the node at {where} told of a group that is none")
    return handed


def _revoked(where: str, own: PeerId) -> NodeError:
    return NodeError(
        "invite-refused",
        f"the group of the node at {where} has revoked this node",
        hint=f"a new code does not help: {back_hint(own)}",
    )


def _join_failed(where: str, error: DialFailed, own: PeerId) -> NodeError:
    if error.code == REVOKED:
        return _revoked(where, own)
    if error.code == "wrong-swarm":
        return OtherSwarm(f"the data folder belongs to another private swarm than {where}")
    if error.code in NOT_ADMITTED:
        return NodeError(
            "invite-refused",
            f"the node at {where} does not let this invitation in",
            hint="it may be used up or older than 24 hours: ask for a new code",
        )
    return NodeError(
        error.code,
        f"the node at {where} does not answer: {error.message}",
        hint="look whether `shoal node` runs there and its port is open to this machine",
    )
