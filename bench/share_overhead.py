"""Cost of a shared engine beside asking that engine directly.

A real llama.cpp server (bench/worlds/llama.py) with 85 million random parameters in float16 answers
the same streamed chats on two ways, interleaved: over its own HTTP API, and over the HTTP API of a
daemon that forwards to another daemon, which shares the engine. All are on loopback. Goals: at most
3 reference ms more until the first text (median of the differences of pairs), and 0.98 of the
throughput after it (median of the ratios). `yardstick.py` measures a reference ms by the same
clock. The texts of both ways must be equal.
"""

import argparse
import http.client
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import TypeVar
from urllib.parse import urlsplit

from api_overhead import Times
from worlds import llama
from yardstick import Yardstick

from shoal.cli.client import request
from shoal.cli.swarm import LocalSwarm
from shoal.node.control.messages.api import GetApi
from shoal.node.control.messages.models import ListModels
from shoal.node.control.messages.sharing import AddShare

MEASURES = ("tasks", "transport", "node", "cli")

GOALS = {"first_text_reference_ms": 3.0, "ratio": 0.98}
NAME = "shared"
TOKENS = 64
START_SECONDS = 60.0

T = TypeVar("T")


class Side:
    """A server with OpenAI's API. Each question gets a new connection, as the sharer makes too."""

    def __init__(self, url: str, token: str) -> None:
        place = urlsplit(url)
        self._host, self._port, self._path = str(place.hostname), place.port, place.path
        self._headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}

    def ask(self, prompt: str) -> Times:
        """Stream one chat. Returns its times."""
        times = Times()
        body = {"model": NAME, "messages": [{"role": "user", "content": prompt}], "stream": True,
                "max_tokens": TOKENS, "temperature": 0, "seed": 1}  # fmt: skip
        connection = http.client.HTTPConnection(self._host, self._port)
        path = f"{self._path}/chat/completions"
        connection.request("POST", path, json.dumps(body), self._headers)
        response = connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"refused: {response.read().decode()}")
        for line in response:
            event = line.removeprefix(b"data: ").strip()
            if event and event != b"[DONE]":
                for choice in json.loads(event)["choices"]:
                    if text := choice["delta"].get("content"):
                        times.note(text)
        connection.close()
        return times


def measure(direct: Side, shared: Side, rounds: int) -> dict[str, object]:
    """Ask both sides in turns. Returns the figures."""
    sides = [direct.ask, shared.ask]
    for ask in sides:
        ask("warm")
    stick = Yardstick(time.perf_counter)
    first: list[float] = []
    ratios: list[float] = []
    both: dict[str, list[float]] = {"direct": [], "shared": []}
    for number in range(rounds):
        prompt = f"Question {number}: say something long"
        order = [1, 0] if number % 2 else [0, 1]
        found = {at: sides[at](prompt) for at in order}
        if found[0].text != found[1].text:
            raise SystemExit(f"different texts: {found[0].text!r} and {found[1].text!r}")
        first.append(1e3 * (found[1].first - found[0].first))
        ratios.append((found[0].last - found[0].first) / (found[1].last - found[1].first))
        both["direct"].append(1e3 * found[0].first)
        both["shared"].append(1e3 * found[1].first)
        stick.sample(3)
    return {
        "first_text_reference_ms": stick.reference_ms(median(first)),
        "ratio": median(ratios),
        "first_text_ms": {name: round(median(times), 3) for name, times in both.items()},
        "reference_ms": stick.ms,
        "rounds": rounds,
        "differences_ms": [round(each, 3) for each in first],
        "ratios": [round(each, 4) for each in ratios],
    }


def start(swarm: LocalSwarm, url: str) -> Side:
    """Start a sharer and a gateway, and share the engine. Returns the gateway's API."""
    args = ["--listen", "127.0.0.1:0", "--memory", "64MiB", "--api", "0", "--no-jobs"]
    swarm.start(args)
    status = _until(swarm.nodes[0].status)
    assert status is not None
    swarm.start([*args, "--bootstrap", status.addresses[0]])
    _until(swarm.nodes[1].status)
    request(swarm.nodes[0].data, AddShare(url=url, name=NAME), wait=True)
    _until(lambda: request(swarm.nodes[1].data, ListModels()).shared)
    api = request(swarm.nodes[1].data, GetApi())
    return Side(api.url, api.token)


def _until(found: Callable[[], T]) -> T:
    deadline = time.monotonic() + START_SECONDS
    while not (value := found()):
        if time.monotonic() > deadline:
            raise SystemExit(f"the daemons were not ready in {START_SECONDS:g} s")
        time.sleep(0.1)
    return value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 60 s, once llama.cpp is built")
    parser.add_argument("--llama", type=Path, help="the program llama-server")
    args = parser.parse_args()
    program = args.llama or llama.build()
    with tempfile.TemporaryDirectory() as folder, LocalSwarm() as swarm:
        model = Path(folder) / "random.gguf"
        llama.write_model(model, llama.SMALL)
        # Without its cache, the second question of a pair costs as much as the first one.
        with llama.serving(program, model, "-np", "1", "--no-cache-prompt") as url:
            shared = start(swarm, url)
            value = measure(Side(f"{url}/v1", ""), shared, 10 if args.quick else 60)
    shown = {name: round(float(str(value.pop(name))), 4) for name in GOALS}
    ok = (
        shown["first_text_reference_ms"] <= GOALS["first_text_reference_ms"]
        and shown["ratio"] >= GOALS["ratio"]
    )
    print(json.dumps({"name": "share_overhead", "value": shown, "goal": GOALS, "ok": ok, **value}))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
