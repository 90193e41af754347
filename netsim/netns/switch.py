"""The process that acts as the internet of a kernel world, and the interface that controls it.

The process runs only `link.Switch`. It ends when its control socket is closed. A request is one
message of JSON. A request to attach a port also carries the descriptor of the device.
"""

import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Self, TypedDict

from ..network.link import Burst, Cycle, CyclePhase, LinkSpec, PipeSpec
from .link import Switch, hurry, quantile
from .namespaces import KernelRefused, Namespace

MESSAGE = 65536
"""Maximum size of a request or reply, in bytes."""
Request = Mapping[str, Any]
"""A JSON object, made by `SwitchProcess`."""


class SwitchCounts(TypedDict):
    """Counters of the switch.

    `forwarded` is the number of packets sent. `late_ms` maps a quantile ("0.5", "0.99") to the
    lateness of the latest packets in milliseconds. `dropped` maps the name of a port, then the
    reason, to the number of dropped packets.
    """

    forwarded: int
    late_ms: dict[str, float]
    dropped: dict[str, dict[str, int]]


def pipe_spec(fields: Request) -> PipeSpec:
    """Convert a dictionary, made from a PipeSpec by `asdict`, back to the PipeSpec."""
    known = dict(fields)
    if known["burst"] is not None:
        known["burst"] = Burst(**known["burst"])
    if known["cycle"] is not None:
        phases = tuple(CyclePhase(**phase) for phase in known["cycle"]["phases"])
        known["cycle"] = Cycle(known["cycle"]["period"], phases)
    return PipeSpec(**known)


def link_spec(fields: Request) -> LinkSpec:
    """Convert a dictionary, made from a LinkSpec by `asdict`, back to the LinkSpec."""
    return LinkSpec(pipe_spec(fields["up"]), pipe_spec(fields["down"]))


class RequestServer:
    """The server in the process: performs requests on the switch."""

    def __init__(self, channel: socket.socket, switch: Switch) -> None:
        self.open = True
        self._channel = channel
        self._switch = switch

    def serve(self) -> None:
        """Receive and perform one request, and send the reply. Clears `open` at EOF."""
        data, descriptors, _, _ = socket.recv_fds(self._channel, MESSAGE, 1)
        if not data:
            self.open = False
            return
        try:
            answer: Mapping[str, object] = self._perform(json.loads(data), descriptors)
        except KeyError as missing:
            answer = {"error": f"there is no port `{missing.args[0]}`"}
        self._channel.send(json.dumps(answer).encode())

    def _perform(self, request: Request, descriptors: list[int]) -> Mapping[str, object]:
        """Perform a request, and return the reply. Raises KeyError if there is no such port."""
        switch = self._switch
        match request:
            case {"op": "attach", "name": name, "addresses": addresses, "link": link}:
                switch.attach(name, descriptors[0], addresses, link_spec(link))
            case {"op": "change", "name": name, "link": link}:
                switch.ports[name].change(link_spec(link), switch.streams)
            case {"op": "cut", "name": name, "up": up, "down": down}:
                switch.ports[name].up.cut, switch.ports[name].down.cut = up, down
            case {"op": "counts"}:
                return self._counts()
            case _:
                return {"error": f"not understood: {request['op']}"}
        return {}

    def _counts(self) -> SwitchCounts:
        """Return the counters so far."""
        late = self._switch.lateness()
        return {
            "forwarded": self._switch.forwarded,
            "late_ms": {str(part): 1e3 * quantile(late, part) for part in (0.5, 0.99)},
            "dropped": {port.name: port.dropped for port in self._switch.ports.values()},
        }


class SwitchProcess:
    """Starts and controls the process of a switch. Use it as a context manager, which ends the
    process at its end.

    `latency` is the seconds from any port to any other.
    """

    def __init__(self, *, latency: float = 0.0, seed: int = 0) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, str(theirs.fileno()), repr(latency),
                 str(seed)],
                stdin=subprocess.DEVNULL, pass_fds=(theirs.fileno(),), start_new_session=True,
            )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def plug(self, space: Namespace, device: str, address: str, link: LinkSpec) -> None:
        """Create a device in a namespace, and connect it to the switch through an access link.

        The device gets an IPv4 address and the default route.
        """
        descriptor = space.tun(device)
        mtu = max(1500, link.up.mtu, link.down.mtu)
        try:
            space.ip(
                f"addr add {address}/32 dev {device}",
                f"link set {device} mtu {mtu} txqueuelen 5000 up",
                f"route add default dev {device}",
            )
            request = {"op": "attach", "name": f"{space.name}/{device}", "addresses": [address],
                       "link": asdict(link)}  # fmt: skip
            self._ask(request, [descriptor])
        finally:
            os.close(descriptor)

    def change(self, name: str, link: LinkSpec) -> None:
        """Replace the link of a port (`NAMESPACE/DEVICE`) from now on."""
        self._ask({"op": "change", "name": name, "link": asdict(link)})

    def cut(self, name: str, *, up: bool = True, down: bool = True) -> None:
        """Cut each direction of a port whose argument is True. Restore a direction whose argument
        is False.
        """
        self._ask({"op": "cut", "name": name, "up": up, "down": down})

    def counts(self) -> SwitchCounts:
        """Return the counters so far."""
        counts: SwitchCounts = self._ask({"op": "counts"})
        return counts

    def _ask(self, request: Mapping[str, object], descriptors: list[int] | None = None) -> Any:
        """Send a request with descriptors, and return the reply.

        Raises KernelRefused if the process has ended or refuses the request.
        """
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], descriptors or [])
            data = self._channel.recv(MESSAGE)
        except ConnectionError:
            data = b""
        if not data:
            raise KernelRefused("the switch process has ended")
        answer = json.loads(data)
        if "error" in answer:
            raise KernelRefused(answer["error"])
        return answer

    def kill(self) -> None:
        """Kill the process, as if the internet had failed."""
        self._process.kill()

    def close(self) -> None:
        """End the process. Its devices disappear with it."""
        with suppress(OSError):
            # A forked process may have the socket open, too; closing it here is then not enough.
            self._channel.shutdown(socket.SHUT_RDWR)
        self._channel.close()
        self._process.wait()


def main() -> None:
    """Run the switch until the control socket is closed."""
    number, latency, seed = sys.argv[1:]
    channel = socket.socket(fileno=int(number))
    switch = Switch(latency=float(latency), seed=int(seed))
    control = RequestServer(channel, switch)
    switch.watch(channel.fileno(), control.serve)
    hurry()
    gc.freeze()
    gc.disable()  # not needed, because no code here makes reference cycles; it would cost time
    while control.open:
        switch.turn()


if __name__ == "__main__":
    main()
