"""Prompts as one job, against the same prompts one by one over one open connection.

One real daemon with all layers of the embedded model. The prompts are short, and have answers of
200 tokens. Half of the single prompts come before the job and half after it, so that a slow minute
of the machine meets both. `speed` is the ratio of their rates; goal 4. While further jobs run,
single requests over the same connection are answered too: `wait` is the median of the time until
their first text, divided by that without a job; goal at most 1.2.
"""

import argparse
import http.client
import json
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from shoal.cli.client import request
from shoal.cli.swarm import LocalSwarm
from shoal.node.control.messages.api import ApiView, GetApi
from shoal.node.control.messages.jobs import CancelJobs, SubmitJobs, WriteJobOutput

MEASURES = ("tasks", "state", "node", "cli", "shoal/models")

GOALS = {"speed": 4.0, "wait": 1.2}
PROMPT, ANSWER = 16, 200
START_SECONDS = 90.0
WORDS = ("the", "beginning", "of", "old", "story", "water", "light", "stone", "bread", "king")


def prompts(count: int, seed: int) -> list[str]:
    """Return prompts of about PROMPT tokens, of which no two begin alike."""
    lot = Random(seed)
    return [" ".join(lot.choice(WORDS) for _ in range(PROMPT)) for _ in range(count)]


class Connection:
    """One open connection to the HTTP API."""

    def __init__(self, api: ApiView) -> None:
        place = urlsplit(api.url)
        self._path = f"{place.path}/completions"
        self._connection = http.client.HTTPConnection(str(place.hostname), place.port)
        self._headers = {
            "Authorization": f"Bearer {api.token}",
            "Content-Type": "application/json",
        }

    def ask(self, prompt: str, tokens: int = ANSWER) -> tuple[str, float]:
        """Return the text of one answer, and the seconds until its first piece came."""
        body = {"model": "tiny", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
                "stream": True}  # fmt: skip
        began, first, text = time.perf_counter(), 0.0, list[str]()
        try:
            self._connection.request("POST", self._path, json.dumps(body), self._headers)
        except OSError:  # the server has closed it, because nothing was asked for long
            self._connection.close()
            self._connection.request("POST", self._path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise SystemExit(f"the API refused: {response.read().decode()}")
        for line in response:
            event = line.removeprefix(b"data: ").strip()
            if event and event != b"[DONE]":
                first = first or time.perf_counter() - began
                text.append(json.loads(event)["choices"][0]["text"])
        return "".join(text), first


def submit(swarm: LocalSwarm, folder: Path, some: list[str]) -> str:
    """Submit prompts as one job, and return its id."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": each}) + "\n" for each in some))
    ask = SubmitJobs(model="tiny", file=str(path), raw=True, max_tokens=ANSWER)
    return request(swarm.nodes[0].data, ask, wait=True).jobs[0]


def as_job(swarm: LocalSwarm, folder: Path, some: list[str]) -> tuple[list[str], float]:
    """Return the answers to prompts as one job, and the seconds until all were in a file."""
    began, output = time.perf_counter(), folder / "out.jsonl"
    job = submit(swarm, folder, some)
    ask = WriteJobOutput(job=job, path=str(output), until_done=True)
    request(swarm.nodes[0].data, ask, wait=True)
    took = time.perf_counter() - began
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    if [row["line"] for row in rows] != list(range(1, len(some) + 1)):
        raise SystemExit("the output has not one line for each prompt, in order")
    return [row["text"] for row in rows], took


def one_by_one(api: Connection, some: list[str]) -> float:
    """Return the seconds in which prompts are answered one after the other."""
    began = time.perf_counter()
    for prompt in some:
        api.ask(prompt)
    return time.perf_counter() - began


def measure(swarm: LocalSwarm, folder: Path, count: int) -> dict[str, Any]:
    api = Connection(request(swarm.nodes[0].data, GetApi()))
    api.ask("warm up")
    as_job(swarm, folder, prompts(8, 1))
    some, others = prompts(count, 10), prompts(count, 11)
    single_s = one_by_one(api, others[: count // 2])
    texts, job_s = as_job(swarm, folder, some)
    single_s += one_by_one(api, others[count // 2 :])
    for at in range(0, count, max(1, count // 8)):  # the same text either way
        if api.ask(some[at])[0] != texts[at]:
            raise SystemExit(f"another text than alone: {texts[at]!r}")
    return {
        "speed": round(single_s / job_s, 3),
        "job_s": round(job_s, 2),
        "single_s": round(single_s, 2),
        **beside(swarm, folder, api, max(12, count // 25)),
    }


def beside(swarm: LocalSwarm, folder: Path, api: Connection, rounds: int) -> dict[str, Any]:
    """Return the waits of requests without a job and beside one."""
    alone, along = list[float](), list[float]()
    for number in range(rounds):
        one, two = prompts(2, 5000 + number)
        alone.append(api.ask(one, 8)[1])
        job = submit(swarm, folder, prompts(64, 9000 + number))
        time.sleep(2 + 0.1 * (number % 7))  # the job has begun
        along.append(api.ask(two, 8)[1])
        request(swarm.nodes[0].data, CancelJobs(job=job), wait=True)
        time.sleep(0.5)
    return {
        "wait": round(median(along) / median(alone), 3),
        "alone_ms": round(1e3 * median(alone), 1),
        "beside_ms": round(1e3 * median(along), 1),
        "waits_ms": [round(1e3 * each, 1) for each in along],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="40 prompts")
    quick = parser.parse_args().quick
    with LocalSwarm() as swarm, tempfile.TemporaryDirectory() as folder:
        swarm.start(["--listen", "127.0.0.1:0", "--threads", "1", "--api", "0", "--jobs"])
        deadline = time.monotonic() + START_SECONDS
        while (status := swarm.nodes[0].status()) is None or not any(
            model.complete for model in status.models
        ):
            if time.monotonic() > deadline:
                raise SystemExit(f"the daemon was not ready in {START_SECONDS:g} s")
            time.sleep(0.05)
        time.sleep(12)  # the node begins to write its feeds
        count = 40 if quick else 1000
        found = measure(swarm, Path(folder), count)
    ok = found["speed"] >= GOALS["speed"] and found["wait"] <= GOALS["wait"]
    value = {name: found[name] for name in GOALS}
    head = {"name": "jobs_prompts", "value": value, "goal": GOALS, "ok": ok, "prompts": count}
    print(json.dumps(head | found))
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
