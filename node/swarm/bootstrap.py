"""Links this node to its first peers: bootstrap addresses, remembered addresses and the inviter."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import trio

from ...state.group.group import REVOKED
from ...transport.address import Address
from ...transport.defaults import HTTPS_PORT
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import DialFailed, TransportError
from ...transport.host.seam import Host
from ...transport.identity import PeerId, public_key_of
from ...transport.link.link import Link
from ...transport.strategies.dialer import Dialer
from .. import defaults
from ..errors import NodeError, OtherSwarm
from ..health import Health
from ..invite import Invitation
from .grouping import JOIN, back_hint
from .handover import Handed, open_handed

# Error codes after which TCP port 443 of the same host is tried.
SILENT = {"timeout", "unreachable", "refused", "no-way"}
# Error codes of a peer that refuses this node.
NOT_ADMITTED = {"not-admitted", "not-a-member", REVOKED, "wrong-swarm"}


class Bootstrap:
    """Links to the peers at the bootstrap addresses, dials them again when a link ends, and reports
    failures."""

    def __init__(self, host: Host, dialer: Dialer, health: Health) -> None:
        self._host = host
        self._dialer = dialer
        self._endpoint = endpoint = dialer.endpoint
        self._health = health
        self._lost = trio.Event()  # set and replaced whenever a link ends
        endpoint.on_link_lost(lambda _link, _code: self._wake())

    def _wake(self) -> None:
        self._lost.set()
        self._lost = trio.Event()

    async def run(self, given: Sequence[Address], remembered: Sequence[Address]) -> None:
        """Stay linked to the peers at all addresses, until cancelled.

        `given` has the addresses that the owner configured, and `remembered` those of the last run.
        Failures of remembered addresses are not reported, because peers come and go.
        """
        async with trio.open_nursery() as nursery:
            places = {(address.host, address.port) for address in given}
            rest = [each for each in remembered if (each.host, each.port) not in places]
            for addresses in _by_peer(given):
                nursery.start_soon(self._keep, addresses, True)
            for addresses in _by_peer(rest):
                nursery.start_soon(self._keep, addresses, False)

    async def _dial(self, addresses: Sequence[Address], given: bool) -> Link:
        """Return a link to the peer at these addresses.

        If none answers, TCP port 443 of the same hosts is dialled, because some networks allow
        nothing else. `given` says whether the owner configured the addresses. Raises DialFailed if
        no address leads to the peer.
        """
        first = addresses[0]
        if first.peer is None:
            timeout = defaults.BOOTSTRAP_TIMEOUT
            return await self._dialer.dial(first, timeout=timeout, given=given)
        for each in addresses if given else ():
            self._endpoint.aim.give(each)
        try:
            return await self._dialer.connect(
                first.peer, addresses, timeout=defaults.BOOTSTRAP_TIMEOUT
            )
        except DialFailed as error:
            hosts = [each for each in addresses if each.relay is None and each.transport == "tcp"]
            web = [replace(each, port=HTTPS_PORT) for each in hosts]
            if error.code not in SILENT or set(web) <= set(addresses):
                raise
            for each in dict.fromkeys(web):
                with suppress(DialFailed):
                    link = await self._endpoint.dial(each, timeout=defaults.BOOTSTRAP_TIMEOUT)
                    link.keep()
                    return link
            raise

    async def _keep(self, addresses: Sequence[Address], told: bool) -> None:
        """Dial one peer until it answers, and again whenever the link ends. Return if the peer is
        this node itself.

        `told` says whether the owner configured the addresses; failures are then reported.
        """
        address = addresses[0]
        pause = defaults.BOOTSTRAP_PAUSE
        while True:
            try:
                link = await self._dial(addresses, told)
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
        """Report a failure to link to a bootstrap address as a condition."""
        where = f"the bootstrap address `{address.host}:{address.port}`"
        if error.code == "wrong-peer":
            self._health.report(
                _condition(address),
                f"{where} answers with another identity than {address.peer}",
                hint="ask the owner of that node for its address; another node may answer there",
            )
        elif error.code == REVOKED:
            self._health.report(
                _condition(address),
                f"{where} refuses this node: the group has revoked it",
                hint=back_hint(self._endpoint.peer),
            )
        elif error.code in NOT_ADMITTED:
            self._health.report(
                _condition(address),
                f"{where} refuses this node: {error.message}",
                hint="ask for a code (`shoal invite` there) and use `shoal join CODE`",
            )
        else:
            self._health.report(
                _condition(address),
                f"{where} does not answer: {error.message}",
                hint="it is retried; check that the node runs there and that its port is open",
            )


def _by_peer(addresses: Sequence[Address]) -> list[list[Address]]:
    """Group addresses by their peer id. An address without a peer id forms a group of its own."""
    found: dict[object, list[Address]] = {}
    for each in addresses:
        found.setdefault(each.peer or each, []).append(each)
    return list(found.values())


def _condition(address: Address) -> str:
    return f"bootstrap {address.host}:{address.port}"


async def join(
    endpoint: Endpoint, invitation: Invitation, box: bytes, *, before: PeerId | None = None
) -> tuple[Link, Handed | None]:
    """Join a swarm with an invitation, and return (link to the inviter, credentials of its group).
    The credentials are None in an open swarm.

    `box` is the public key with which the group encrypts its secrets for this node. `before` is the
    inviter of the last join.

    Raises NodeError with code `unreachable` or another dial error if the inviter does not answer,
    `wrong-peer` if another node answers, `invite-refused` if the inviter refuses, and `other-swarm`
    if the data folder belongs to another swarm; the code then stays valid.
    """
    where = f"{invitation.host}:{invitation.port}"
    try:
        link = await _dial_inviter(endpoint, invitation)
    except DialFailed as error:
        again = before is not None and invitation.expects(public_key_of(before))
        raise _join_failed(where, error, endpoint.peer, again=again) from None
    if not invitation.expects(public_key_of(link.peer)):
        link.close("wrong-peer")
        raise NodeError(
            "wrong-peer",
            f"the node at {where} is not the one that made this invitation",
            hint="ask for a new code; another node may be answering at that address",
        )
    return link, await _redeem(link, where, box, endpoint.peer)


async def _dial_inviter(endpoint: Endpoint, invitation: Invitation) -> Link:
    """Dial the address of an invitation and, if it does not answer, TCP port 443 of the same host.

    Raises DialFailed with the error of the first address.
    """
    first = Address(invitation.host, invitation.port)
    try:
        return await endpoint.dial(first, timeout=defaults.BOOTSTRAP_TIMEOUT)
    except DialFailed as error:
        if error.code not in SILENT or first.port == HTTPS_PORT:
            raise
        with suppress(DialFailed):
            web = replace(first, port=HTTPS_PORT)
            link = await endpoint.dial(web, timeout=defaults.BOOTSTRAP_TIMEOUT)
            if invitation.expects(public_key_of(link.peer)):
                return link
            # The router may forward 443 to another node, which says nothing about the inviter.
            link.close("wrong-peer")
        raise


async def _redeem(link: Link, where: str, box: bytes, own: PeerId) -> Handed | None:
    """Ask the inviter to admit this node. Return the credentials of its group, or None if the swarm
    is open. Raises NodeError `invite-refused` if it refuses."""
    try:
        reply = await link.call(JOIN, payload=box, timeout=defaults.GRANT_TIMEOUT)
    except TransportError as error:
        if error.code == REVOKED:
            raise _revoked(where, own) from None
        raise NodeError(
            "invite-refused", f"the node at {where} refused the join: {error.message}",
            hint="ask for a new code: `shoal invite` there",
        ) from None  # fmt: skip
    if reply.header.get("private") is not True:
        return None
    handed = open_handed(reply.payload)
    if handed is None:
        raise NodeError("invite-refused", f"the node at {where} sent an invalid group")
    return handed


def _revoked(where: str, own: PeerId) -> NodeError:
    return NodeError(
        "invite-refused",
        f"the group of the node at {where} has revoked this node",
        hint=f"a new code does not help: {back_hint(own)}",
    )


def _join_failed(where: str, error: DialFailed, own: PeerId, *, again: bool) -> NodeError:
    """Return the error for a failed dial to the inviter. `again` says whether this node has used an
    invitation of the same inviter before."""
    if error.code == REVOKED:
        return _revoked(where, own)
    if error.code == "wrong-swarm":
        return OtherSwarm(f"the data folder belongs to another private swarm than {where}")
    if again:
        return NodeError(
            "invite-refused" if error.code in NOT_ADMITTED else error.code,
            f"this data folder has already joined with an invitation of the node at {where}",
            hint="run `shoal node` instead: the code is needed only once",
        )
    if error.code in NOT_ADMITTED:
        return NodeError(
            "invite-refused",
            f"the node at {where} refused this invitation",
            hint="it may be used up or older than 24 hours: ask for a new code",
        )
    return NodeError(
        error.code,
        f"the node at {where} does not answer: {error.message}",
        hint="check that `shoal node` runs there and that this machine can reach its port",
    )
