"""Connections through every pair of NAT kinds: whether two nodes connect, and by which path kind.

Three parts. Each cell is a world of its own with three relays, one of them on TCP 443 too:

- iroh's 4 x 4 {none, open, moderate, strict}: no NAT; endpoint-independent mapping and filtering
  (a full cone); endpoint-independent mapping with address- and port-dependent filtering (a home
  router); another random port for each peer and only from it (symmetric). Goal: 15 of 16 direct.
- 8 x 8 kinds, and the same with UDP or TCP blocked at either side or both. Every cell has to be
  connected, and direct if possible (`possible` says when that is).
- the 4 x 4 by real processes in kernel namespaces, through the kernel's own NATs. Goal: 15 direct
  here too. That needs root and `nft`; without them it says so, and the run is not a full one.

`value` is the number of direct cells of the 4 x 4, simulated and through the kernel. A cell that
failed is listed below the tables with its reason. `--quick`: the 4 x 4 and the 8 x 8 with nothing
blocked, simulated only. `--out FILE` keeps one line per table.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Final

import trio
from worlds.town import Town, meet
from worlds.transportnode import TransportNode

from shoal.netsim.netns.backend import KernelHost, KernelWorld
from shoal.netsim.netns.namespaces import available
from shoal.netsim.network.gateway import Allowed
from shoal.netsim.network.link import LinkSpec, PipeSpec
from shoal.netsim.network.packet import TCP, UDP
from shoal.netsim.seeds import Figures, measure
from shoal.netsim.world import World
from shoal.transport.strategies.dialer import Strategies

MEASURES = ("transport", "netsim", "bench/peers/matrix_side.py")

PUBLIC: Final = "public"
FOUR: Final = {"none": PUBLIC, "open": "eim-eif", "moderate": "eim-apdf", "strict": "apdm-apdf"}
EIGHT: Final = (
    PUBLIC,
    "eim-eif",
    "eim-adf",
    "eim-apdf",
    "linux-drop",
    "linux-accept",
    "adm-apdf",
    "apdm-apdf",
)
OPEN: Final = {PUBLIC, "eim-eif", "eim-adf"}
HARD: Final = {"adm-apdf", "apdm-apdf"}
BLOCKS: Final = (
    ("", ""),
    ("udp", ""),
    ("", "udp"),
    ("udp", "udp"),
    ("tcp", ""),
    ("", "tcp"),
    ("tcp", "tcp"),
    ("udp", "tcp"),
)
"""Protocols blocked at the dialing side, and at the other."""
ALLOWED: Final[dict[str, Allowed]] = {
    "udp": frozenset((TCP, port) for port in range(65536)),
    "tcp": frozenset((UDP, port) for port in range(65536)),
}
SETTLE_S: Final = 40.0
PATIENCE_S: Final = 30.0
VAIN_S: Final = 10.0
"""Seconds for a cell that cannot be direct, whose attempts are reported all the same."""
LATENCY_S: Final = 0.02
_LINK: Final = LinkSpec(up=PipeSpec(delay=0.01), down=PipeSpec(delay=0.01))
GOAL: Final = 15
SIDE: Final = Path(__file__).parent / "peers" / "matrix_side.py"
KERNEL: Final = {
    "none": None,
    "open": "full-cone",
    "moderate": "linux-drop",
    "strict": "linux-fully-random",
}
"""The nftables kinds that stand for the four."""


def possible(one: str, other: str, blocked: Sequence[str]) -> bool:
    """Whether a cell can be direct, in terms of RFC 4787.

    Over TCP the ports of both sides have to be known, or one side has to admit the other from any
    port. Over UDP a birthday search can find the port of one hard side, but not of two.
    """
    hard = {one, other} & HARD
    both_hard = one in HARD and other in HARD
    tcp = "tcp" not in blocked and (not hard or bool({one, other} & OPEN))
    return tcp or ("udp" not in blocked and not both_hard)


async def side(town: Town, name: str, kind: str, blocked: str) -> TransportNode:
    knobs: dict[str, Any] = {"allow": ALLOWED[blocked]} if blocked else {}
    if kind == PUBLIC and not blocked:
        return await town.node(town.world.host(name, link=_LINK), strategies=Strategies(lan=False))
    inside: dict[str, Any] = {"inside": "198.18.0.0/24"} if kind == PUBLIC else {}
    made = "router" if kind == PUBLIC else kind
    gateway = town.world.gateway(f"{name}-router", made, link=_LINK, **knobs, **inside)
    address = town.world.public_address() if kind == PUBLIC else None
    host = town.world.host(name, behind=gateway, address=address)
    return await town.node(host, strategies=Strategies(lan=False))


def cell(one: str, other: str, blocked: Sequence[str], seed: int) -> dict[str, Any]:
    """Let two sides join by the relays, and one dial the other."""
    world = World(seed, latency=LATENCY_S)
    found: dict[str, Any] = {}

    async def main() -> None:
        town = Town(world)
        for number in range(3):
            host = world.host(f"relay{number}")
            await town.relay(host, everywhere=number == 0, strategies=Strategies(lan=False))
        for relay in town.relays:
            await town.introduce(relay, town.relays)
        await trio.sleep(5)
        a = await side(town, "a", one, blocked[0])
        b = await side(town, "b", other, blocked[1])
        for node in a, b:
            await town.introduce(node, town.relays)
        await trio.sleep(SETTLE_S)
        patience = PATIENCE_S if possible(one, other, blocked) else VAIN_S
        met, _ = await meet(a, b, patience=patience)
        found.update(
            connected=met.connected,
            direct=met.direct,
            path_kind=f"{met.path_kind} {met.medium}".strip(),
            why=f"{met.code} {met.why}".strip(),
        )

    world.run(main)
    return found


def grid(kinds: Sequence[str], blocked: Sequence[str], seed: int) -> Figures:
    """Return a table of cells, by the kinds of both sides."""
    began = time.process_time()
    cells = [
        {
            "kinds": (a, b),
            "possible": possible(a, b, blocked),
            **cell(a, b, blocked, seed),
        }
        for a, b in product(kinds, repeat=2)
    ]
    return {"cells": cells, "blocked": blocked, "cpu_s": time.process_time() - began}


# Results.


def is_good(item: dict[str, Any]) -> bool:
    direct = item["direct"] is not None or not item["possible"]
    return item["connected"] is not None and direct


def reasons(cells: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the reasons why cells have no direct path, by their kinds."""
    return {
        " x ".join(item["kinds"]): item["why"] or "not tried"
        for item in cells
        if item["direct"] is None
    }


def show(title: str, found: Figures, names: dict[str, str]) -> None:
    """Print one letter per cell: T, U direct over TCP or UDP; r relayed, as in theory; !
    otherwise.
    """
    print(f"\n{title}")
    kinds = list(names)
    print(" " * 14 + "".join(f"{kind:>14}" for kind in kinds))
    cells = {tuple(item["kinds"]): item for item in found["cells"]}
    for one in kinds:
        row = [_letter(cells[names[one], names[other]]) for other in kinds]
        print(f"{one:14}" + "".join(f"{word:>14}" for word in row))
    for item in found["cells"]:
        if item["direct"] is None:
            reason = item["why"] if item["possible"] else "cannot be direct"
            if item["connected"] is None or item["possible"]:
                print(f"  {' x '.join(item['kinds'])}: {reason}")


def _letter(item: dict[str, Any]) -> str:
    if item["connected"] is None:
        return "NOT CONNECTED"
    if item["direct"] is not None:
        medium = item["path_kind"].split()[-1]
        return f"{medium} {item['direct']:.2f} s"
    return "RELAYED" if item["possible"] else "relayed"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="nothing blocked")
    parser.add_argument("--out", type=Path, help="keep one line per table here, and resume")
    args = parser.parse_args()
    blocks = BLOCKS[:1] if args.quick else BLOCKS
    figures = measure(
        lambda number: grid(EIGHT, BLOCKS[number], number + 1),
        range(len(blocks)),
        settings={"bench": "connect_matrix"},
        path=args.out,
    )
    free = figures[0]
    four = [item for item in free["cells"] if set(item["kinds"]) <= set(FOUR.values())]
    direct = sum(item["direct"] is not None for item in four)
    show("iroh's 4 x 4 (seconds from the dial to the direct path)", free, FOUR)
    for (at_one, at_other), found in zip(blocks, figures, strict=True):
        blocked = [
            f"{what} blocked at {where}"
            for what, where in ((at_one, "the dialling side"), (at_other, "the other side"))
            if what
        ]
        show(f"8 x 8, {' and '.join(blocked) or 'nothing blocked'}", found, {k: k for k in EIGHT})
    print("\n4 x 4 in kernel namespaces")
    kernel = "left out by --quick" if args.quick else run_kernel()
    skipped = kernel if isinstance(kernel, str) else None
    if skipped is not None:
        print(f"  skipped: {skipped}")
    through = {} if isinstance(kernel, str) else {"kernel": kernel["direct"]}
    cells = [item for found in figures for item in found["cells"]]
    result = {
        "name": "connect_matrix",
        "value": {"simulated": direct, **through},
        "goal": {"simulated": GOAL, "kernel": GOAL},
        "ok": min([direct, *through.values()]) >= GOAL and all(map(is_good, cells)),
        "skipped": skipped,
        "of": len(four),
        "iroh": 13,
        "cells": len(cells),
        "connected": sum(item["connected"] is not None for item in cells),
        "direct": sum(item["direct"] is not None for item in cells),
        "possible": sum(item["possible"] for item in cells),
        "not_direct": reasons(four),
        "failed": reasons([item for item in cells if not is_good(item)]),
        "kernel": kernel,
        "cpu_s": round(sum(found["cpu_s"] for found in figures), 1),
    }
    print(json.dumps(result))
    return 0 if result["ok"] else 1


# The kernel.


class KernelSide:
    """Process in a namespace (`peers/matrix_side.py`)."""

    def __init__(self, host: KernelHost, seed: int, relay: int = 0) -> None:
        self._process = host.space.start(
            [sys.executable, str(SIDE), str(seed), str(relay)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self.publish()

    def ask(self, **order: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("a side has ended; its output is above")
        return json.loads(line)

    def publish(self) -> dict[str, list[str]]:
        found = self.ask(publish=1)
        self.peer: str = found["peer"]
        return {self.peer: found["addresses"]}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def run_kernel() -> dict[str, Any] | str:
    """Run the 4 x 4 by processes behind nftables; return the reason if that is impossible."""
    reason = available()
    if reason is not None:
        return reason
    with ExitStack() as stack:
        world = stack.enter_context(KernelWorld(latency=LATENCY_S))
        sides: dict[str, KernelSide] = {}

        def start(name: str, kind: str | None, relay: int = 0) -> None:
            if kind is not None:
                world.gateway(f"{name}-router", kind)
            host = world.host(name, behind=f"{name}-router" if kind is not None else None)
            sides[name] = KernelSide(host, len(sides) + 1, relay)
            stack.callback(sides[name].close)

        for number in range(3):
            start(f"relay{number}", None, 443 if number == 0 else 1)
        relays = list(sides.values())
        for each in relays:
            for other in relays:
                each.ask(book=other.publish())
        for name, kind in KERNEL.items():
            for end in "ab":
                start(f"{name}-{end}", kind)
        homes = list(sides.values())[3:]
        for each in (*relays, *homes):
            for relay in relays:
                each.ask(book=relay.publish())
            each.ask(introduce=[relay.peer for relay in relays if relay is not each])
        time.sleep(SETTLE_S)
        cells = [
            kernel_cell(one, other, sides[f"{one}-a"], sides[f"{other}-b"])
            for one, other in product(KERNEL, repeat=2)
        ]
    for line in cells:
        print("  " + line["line"])
    direct = [line["direct"] for line in cells]
    failed = [line["line"] for line in cells if not line["direct"]]
    return {"direct": sum(direct), "of": len(cells), "not_direct": failed}


def kernel_cell(one: str, other: str, a: KernelSide, b: KernelSide) -> dict[str, Any]:
    a.ask(book=b.publish())
    b.ask(book=a.publish())
    found = a.ask(meet=b.peer, patience=PATIENCE_S)
    if found["direct"] is not None:
        words = f"{found['way']} {found['medium']} after {found['direct']:.2f} s"
    else:
        words = f"{found['way'] or 'not connected'}: {found['code']} {found['why']}"
    return {"direct": found["direct"] is not None, "line": f"{one} x {other}: {words}"}


if __name__ == "__main__":
    sys.exit(main())
