"""Jobs in real daemons: submitted on a node without torch, done by a node that is killed
meanwhile.
"""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.daemons import Daemon, daemons, shoal

PROMPTS = [f"In the beginning {number}" for number in range(3)]
TOKENS = 40
PATIENCE_S = 120.0


def serves(status: dict[str, Any]) -> bool:
    return bool(status["serving"]["phase"] == "serving")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Any]]:
    with daemons() as start:
        server = start(tmp_path / "server")
        server.wait_until(serves)
        asker = start(tmp_path / "asker", "--bootstrap", server.address, torch=False)
        asker.wait_until(lambda status: status["peers"] == 1)
        yield [server, asker, start]


def said(node: Daemon, *args: str) -> Any:
    done = shoal(*args, "--json", "--data", str(node.data))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def until_done(node: Daemon, count: int) -> None:
    began = time.monotonic()
    while len(said(node, "job", "list", "--mine", "--state", "done")["jobs"]) < count:
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.2)


@pytest.mark.ci
def test_jobs_are_done_by_another_node_though_it_is_killed(pair: list[Any], tmp_path: Path) -> None:
    server, asker, start = pair
    path = tmp_path / "prompts"
    path.write_text("\n".join(PROMPTS))
    options = ("--raw", "--max-tokens", str(TOKENS))
    jobs = said(asker, "job", "submit", "tiny", "--file", str(path), *options)["jobs"]
    assert len(jobs) == len(PROMPTS)
    until_done(asker, 1)
    server.kill()
    again = start(server.data)
    again.wait_until(serves)
    for job, prompt in zip(jobs, PROMPTS, strict=True):
        found = said(asker, "job", "result", job, "--wait")
        expected = said(asker, "run", "tiny", prompt, *options)
        assert (found["text"], found["tokens"]) == (expected["text"], expected["tokens"])
        assert found["state"] == "done"
    text = shoal("job", "result", jobs[0][:10], "--data", str(asker.data)).stdout
    assert text.strip() == said(asker, "job", "result", jobs[0])["text"].strip()
    asker.end()
    assert again.end() == 0, again.log.read_text()
    assert "error" not in again.log.read_text()
