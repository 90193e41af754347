"""Cost of the HTTP API beside the control socket, which `shoal run` uses.

One real daemon with all layers of the embedded model answers the same prompts on both ways,
interleaved: a streamed completion on a kept connection, and `run`. Times are those of the client,
in this process. Goals: at most 1 reference ms more until the first text (median of the differences
of pairs), and 0.95 of the speed after it. `yardstick.py` measures a reference ms by the same clock.
"""

import argparse
import http.client
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from urllib.parse import urlsplit

from yardstick import Yardstick

from shoal.cli.client import request
from shoal.cli.swarm import LocalSwarm
from shoal.node.control.messages.api import ApiView, GetApi
from shoal.node.control.messages.generation import Run, TextEvent, TextPiece

MEASURES = ("tasks", "dht", "state", "transport", "node", "cli", "shoal/models")

GOALS = {"first_text_reference_ms": 1.0, "ratio": 0.95}
PROMPTS = ("In the beginning", "And God said", "Return the", "The LORD", "A function that")
TOKENS = 100
START_SECONDS = 60.0


@dataclass
class Times:
    """When the client had the pieces of one answer, in seconds since it asked."""

    began: float = field(default_factory=time.perf_counter)
    first: float = 0.0
    last: float = 0.0
    text: str = ""

    def note(self, text: str) -> None:
        """Note that a piece of the text has arrived."""
        self.last = time.perf_counter() - self.began
        self.first = self.first or self.last
        self.text += text


class ControlSide:
    """`run` over the control socket, as `shoal run` asks."""

    def __init__(self, swarm: LocalSwarm) -> None:
        self._data = swarm.nodes[0].data

    def ask(self, prompt: str) -> Times:
        times = Times()

        def hear(event: TextEvent) -> None:
            if isinstance(event, TextPiece):
                times.note(event.text)

        ask = Run(model="tiny", prompt=prompt, raw=True, max_tokens=TOKENS)
        request(self._data, ask, wait=True, on_event=hear)
        return times


class ApiSide:
    """A streamed completion over HTTP."""

    def __init__(self, api: ApiView) -> None:
        place = urlsplit(api.url)
        self._path = f"{place.path}/completions"
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port)
        self._headers = {
            "Authorization": f"Bearer {api.token}",
            "Content-Type": "application/json",
        }

    def ask(self, prompt: str) -> Times:
        times = Times()
        body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0,
                "stream": True}  # fmt: skip
        self._connection.request("POST", self._path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"the API refused: {response.read().decode()}")
        for line in response:
            event = line.removeprefix(b"data: ").strip()
            if event and event != b"[DONE]" and (text := json.loads(event)["choices"][0]["text"]):
                times.note(text)
        return times


def _measure(swarm: LocalSwarm, rounds: int) -> dict[str, object]:
    control = ControlSide(swarm)
    api = ApiSide(request(swarm.nodes[0].data, GetApi()))
    sides: list[Callable[[str], Times]] = [control.ask, api.ask]
    for ask in sides:  # imports, and the text process
        ask(PROMPTS[0])
    stick = Yardstick(time.perf_counter)
    first: list[float] = []
    ratios: list[float] = []
    both: dict[str, list[float]] = {"control": [], "api": []}
    for number in range(rounds):
        prompt = PROMPTS[number % len(PROMPTS)]
        turned = number // len(PROMPTS) % 2 == 1  # each side is the first one in half of the rounds
        found = [ask(prompt) for ask in (reversed(sides) if turned else sides)]
        run, http_ = reversed(found) if turned else found
        if run.text != http_.text:
            raise SystemExit(f"different texts: {run.text!r} and {http_.text!r}")
        first.append(1e3 * (http_.first - run.first))
        ratios.append((run.last - run.first) / (http_.last - http_.first))
        both["control"].append(1e3 * run.first)
        both["api"].append(1e3 * http_.first)
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


def _serves(swarm: LocalSwarm) -> bool:
    status = swarm.nodes[0].status()
    return status is not None and any(model.complete for model in status.models)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="under 50 s")
    quick = parser.parse_args().quick
    with LocalSwarm() as swarm:
        swarm.start(["--listen", "127.0.0.1:0", "--threads", "1", "--api", "0"])
        deadline = time.monotonic() + START_SECONDS
        while not _serves(swarm):
            if time.monotonic() > deadline:
                raise SystemExit(f"the daemon was not ready in {START_SECONDS:g} s")
            time.sleep(0.05)
        value = _measure(swarm, 30 if quick else 300)
    figures = {name: value.pop(name) for name in GOALS}
    assert all(isinstance(each, float) for each in figures.values())
    shown = {name: round(float(str(each)), 4) for name, each in figures.items()}
    ok = (
        shown["first_text_reference_ms"] <= GOALS["first_text_reference_ms"]
        and shown["ratio"] >= GOALS["ratio"]
    )
    print(json.dumps({"name": "api_overhead", "value": shown, "goal": GOALS, "ok": ok, **value}))
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
