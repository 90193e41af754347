"""General control socket operations, such as `status` and `run`, and readers of request values.

Specified in docs/spec/control.md.
"""

import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from ... import __version__
from ...tasks.engine.interface import Sampling
from ...tasks.inference.generation import GatewayEvent, GenerateRequest, Routed, Summary
from ...tasks.inference.routing import Hop
from ...transport.address import Address
from ...transport.errors import TransportError
from ...transport.host.seam import Host
from ...transport.networks import nearness_at
from .. import defaults
from ..daemon.memory import memory_view
from ..errors import ControlError
from . import links as linkviews
from . import views
from .dht import Lookups
from .diagnosis import finding_view
from .group import invited_role, may_invite, status_view
from .server import Emit, Operation, only_shoal_error

if TYPE_CHECKING:
    from ..daemon.daemon import Node

T = TypeVar("T")
NAME_LIMIT = 256  # characters of a model's name or root
STOP_LIMIT = 16  # stop strings of one request


class Operations:
    """General operations on one node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._host = node.host

    def table(self) -> Mapping[str, Operation]:
        return {
            "ping": self.ping,
            "status": self.status,
            "peers": self.peers,
            "links": self.links,
            "doctor": self.doctor,
            "run": self.run,
            "invite": self.invite,
            "stop": self.stop,
            **Lookups(self._node).table(),
        }

    async def ping(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        return {"pid": self._host.pid(), "version": __version__}

    async def stop(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        self._node.stop()
        return {"pid": self._host.pid()}

    async def status(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        node = self._node
        members = node.directory.members()
        own = node.directory.own()
        names = views.known_models(members)
        shard = next(iter(own.shards), None)
        return {
            "peer": own.peer,
            "version": __version__,
            "data": str(node.config.data),
            "pid": self._host.pid(),
            "uptime_s": self._host.now() - node.began,
            "addresses": list(own.addresses),
            "private": node.credentials.private,
            "group": status_view(node),
            "reach": finding_view(node.diagnosis.verdict()),
            "relays": linkviews.relay_views(node.dialer, self._host.now()),
            "relaying": linkviews.relaying_view(node.dialer),
            "peers": len(members) - 1,
            "serving": views.serving_view(
                node.serving.status(), shard, names, node.stage.room_for(own.peer)
            ),
            "models": views.swarm_models(node.directory, node.library),
            "capacity": views.capacity_view(own.capacity),
            "memory": memory_view(node),
            "disk": views.disk_view(node.quota.allowance, node.library.store.used_bytes),
            "sessions": {"stage": node.stage.sessions, "gateway": node.gateway.sessions},
            "stalls": views.stall_view(node.stalls),
            "health": [
                views.condition_view(item)
                for item in [*node.health.conditions(), *node.diagnosis.conditions()]
            ],
        }

    async def peers(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        node = self._node
        members = node.directory.members()
        names = views.known_models(members)
        own = node.directory.own().peer
        shown = [
            views.peer_view(record, node.endpoint.link(peer), names, self._host.now())
            for peer, record in sorted(members.items())
            if peer != own
        ]
        return {"peers": shown, "may_invite": may_invite(node)}

    async def links(self, _request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        """Describe every link, with its rates between two samples RATE_SPAN seconds apart."""
        node, began = self._node, self._host.now()
        before = linkviews.look(node.endpoint.links())
        await trio.sleep(defaults.RATE_SPAN)
        now = self._host.now()
        shown = [
            linkviews.link_view(link, node.dialer, before, now - began, now)
            for link in sorted(node.endpoint.links(), key=lambda link: link.peer)
        ]
        return {"links": shown, "span_s": now - began}

    async def doctor(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        """Return what is known about reachability. Measures if there is no measurement yet or the
        request asks for a new one."""
        node = self._node
        if request.get("again") is True or node.dialer.reach.reachability.measured_at is None:
            await self._measure(emit, again=request.get("again") is True)
        reach = node.dialer.reach
        measured = reach.reachability.measured_at
        return {
            "peer": node.identity.peer,
            "port": node.endpoint.port,
            "verdict": finding_view(node.diagnosis.verdict()),
            "findings": [finding_view(item) for item in node.diagnosis.findings()],
            "measured_s": None if measured is None else self._host.now() - measured,
            "observers": reach.reachability.observers,
            "links": len(node.endpoint.links()),
        }

    async def _measure(self, emit: Emit, *, again: bool) -> None:
        """Wait at most MEASURING seconds for a measurement; return at once if none is possible."""
        node, reach = self._node, self._node.dialer.reach
        if node.diagnosis.local:
            return
        with trio.move_on_after(defaults.MEASURING):
            while not node.endpoint.links():  # the node may just have started
                if self._host.now() - node.began > defaults.ALONE:
                    return
                await trio.sleep(defaults.WATCH)
            await emit({"event": "measuring"})
            if again:
                await reach.measure()
            while reach.version == 0 or reach.measuring:
                with trio.move_on_after(defaults.WATCH):
                    await reach.changed(reach.version)

    async def run(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        if self._node.stopping:
            raise ControlError("stopping", "the daemon is stopping", hint="`shoal node`")
        asked = self._generate_request(request)
        stages: list[dict[str, Any]] = []

        async def pass_on(event: GatewayEvent) -> None:
            if isinstance(event, Routed):
                stages[:] = [_hop_view(hop) for hop in event.stages]
                await emit({"event": "routed", "stages": stages})
            elif event.text:
                await emit({"event": "text", "text": event.text})

        summary = await self._node.gateway.generate(asked, pass_on)
        return _summary_view(summary) | {"seed": asked.sampling.seed, "nodes": stages}

    def _generate_request(self, request: dict[str, Any]) -> GenerateRequest:
        return GenerateRequest(
            model=text_of(request, "model", NAME_LIMIT),
            prompt=text_of(request, "prompt", defaults.CONTROL_REQUEST_LIMIT),
            raw=request.get("raw") is True,
            max_tokens=maybe(request, "max_tokens", lambda r, k: number_of(r, k, 1, 2**24)),
            sampling=sampling_of(request, self._host),
            stop=texts_of(request, "stop"),
        )

    async def invite(self, request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        node = self._node
        uses = number_of({"uses": defaults.INVITE_USES, **request}, "uses", 1, 1000)
        text = maybe(request, "address", lambda r, k: text_of(r, k, 400))
        address = _parse_address(text) if text else self._best_address()
        role = invited_role(node, request)
        try:
            code, expires = await node.credentials.invite(
                node.identity.public_key, address.host, address.port, uses, role
            )
        except ValueError:
            raise ControlError(
                "bad-request",
                f"`{address.host}` is not an IP address, and a code cannot hold a name",
                hint="`shoal invite --address 192.0.2.7:4001`",
            ) from None
        return {
            "code": code,
            "expires": expires,
            "uses": uses,
            "role": role.word if node.credentials.private else None,
            "address": f"{address.host}:{address.port}",
            "near": nearness_at(address.host).name.lower(),
        }

    def _best_address(self) -> Address:
        if not self._node.listening.addresses:
            raise ControlError(
                "bad-request",
                "this machine has no address that other machines could reach",
                hint="give one: `shoal invite --address 192.0.2.7:4001`",
            )
        return self._node.listening.addresses[0]


@asynccontextmanager
async def progress_to(emit: Emit) -> AsyncIterator[Callable[[int, int], None]]:
    """Yield a callback for progress. A client that reads slowly gets only the latest values."""
    send, receive = trio.open_memory_channel[tuple[int, int]](1)

    def note(done: int, total: int) -> None:
        with suppress(trio.WouldBlock):
            send.send_nowait((done, total))

    async def pass_on() -> None:
        async for done, total in receive:
            await emit({"event": "progress", "done": done, "total": total})

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pass_on)
            yield note
            send.close()
    except BaseExceptionGroup as group:  # so that the operation can catch a single ShoalError
        raise only_shoal_error(group) from None


def _parse_address(text: str) -> Address:
    try:
        return Address.parse(text)
    except TransportError as error:
        raise ControlError("bad-request", error.message, hint=error.hint) from None


def _hop_view(hop: Hop) -> dict[str, Any]:
    return {"peer": hop.peer, "layers": f"{hop.parts.start}:{hop.parts.stop}"}


def _summary_view(summary: Summary) -> dict[str, Any]:
    return {
        "text": summary.text,
        "reason": summary.reason,
        "prompt_tokens": summary.prompt_tokens,
        "tokens": summary.tokens,
        "ttft_ms": summary.ttft_s * 1000,
        "tokens_per_s": summary.tokens_per_s,
        "hop_ms": summary.hop_ms,
    }


# Typed and bounded values of a request. All readers raise ControlError `bad-request`.


def maybe(request: dict[str, Any], key: str, read: Callable[[dict[str, Any], str], T]) -> T | None:
    return None if request.get(key) is None else read(request, key)


def text_of(request: dict[str, Any], key: str, limit: int) -> str:
    value = request.get(key)
    if not isinstance(value, str) or not value or len(value) > limit:
        raise ControlError("bad-request", f"`{key}` is not a text of 1 to {limit} characters")
    try:
        value.encode()
    except UnicodeEncodeError:  # bytes of a command line that are not text
        raise ControlError(
            "bad-request",
            f"`{key}` is not UTF-8 text",
            hint="convert it, for example from Latin-1: `iconv -f ISO-8859-1 -t UTF-8`",
        ) from None
    return value


def sampling_of(request: dict[str, Any], host: Host) -> Sampling:
    """Return how tokens are sampled, with a random seed if the request has none."""
    seed = maybe(request, "seed", lambda r, k: number_of(r, k, 0, 2**64 - 1))
    if seed is None:
        seed = int.from_bytes(host.entropy(8), "big")
    return Sampling(
        temperature=_number(request, "temperature", 0.0, 100.0, 0.0),
        top_k=number_of({"top_k": 0, **request}, "top_k", 0, 2**31),
        top_p=_number(request, "top_p", 0.0, 1.0, 1.0),
        seed=seed,
    )


def path_of(request: dict[str, Any], key: str) -> Path:
    text = text_of(request, key, 4096)
    try:
        if b"\0" not in os.fsencode(text):
            return Path(text)
    except UnicodeEncodeError:
        pass
    raise ControlError("bad-request", f"{text[:64]!a} cannot be a file name")


def texts_of(request: dict[str, Any], key: str) -> tuple[str, ...]:
    values = request.get(key) or []
    if not isinstance(values, list) or len(values) > STOP_LIMIT:
        raise ControlError("bad-request", f"`{key}` is not a list of at most {STOP_LIMIT} texts")
    return tuple(text_of({key: value}, key, NAME_LIMIT) for value in values)


def number_of(request: dict[str, Any], key: str, low: int, high: int) -> int:
    value = request.get(key)
    if type(value) is not int or not low <= value <= high:
        raise ControlError("bad-request", f"`{key}` is not a whole number from {low} to {high}")
    return value


def _number(request: dict[str, Any], key: str, low: float, high: float, default: float) -> float:
    value = request.get(key, default)
    if type(value) not in (int, float) or not low <= value <= high:
        raise ControlError("bad-request", f"`{key}` is not a number from {low:g} to {high:g}")
    return float(value)
