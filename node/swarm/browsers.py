"""Accepts browsers at the address of the option `--browsers`. Each browser that proves its key gets
a link."""

from contextlib import suppress

import trio
from trio import TaskStatus

from ...transport.browser.clear import BrowserSession
from ...transport.browser.gate import BrowserGate
from ...transport.bytestream import PathKind
from ...transport.dial.endpoint import Endpoint
from ...transport.errors import AddressInUse, DialFailed
from ...transport.host.seam import Host
from ..errors import NodeError


async def serve_browsers(
    host: Host,
    endpoint: Endpoint,
    place: tuple[str, int],
    *,
    task_status: TaskStatus[str] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Accept browsers at an IP address and port, until cancelled.

    `nursery.start` returns the URL of the page for browsers. Raises NodeError `port-in-use`, and
    HostError if the port cannot be opened or aiortc is not installed.
    """
    listen, port = place
    taken = False
    async with trio.open_nursery() as nursery:

        async def join(session: BrowserSession) -> None:
            with suppress(DialFailed):  # the hello was not acceptable
                name = f"browser {session.peer}"
                await endpoint.join_secured(session.secure(), PathKind.BROWSER, name)

        def deliver(session: BrowserSession) -> None:
            endpoint.guard.start(nursery, f"browser {session.peer}", join, session)

        gate = BrowserGate(host, endpoint.identity, deliver, guard=endpoint.guard)
        try:
            bound: int = await nursery.start(gate.run, listen, port)
            task_status.started(f"http://{_in_url(listen)}:{bound}/")
        except AddressInUse:
            taken = True
    if taken:
        raise NodeError(
            "port-in-use",
            f"port {port} on {listen} is in use",
            hint=f"`--browsers {_in_url(listen)}:0` takes a free one",
        )


def _in_url(ip: str) -> str:
    return f"[{ip}]" if ":" in ip else ip
