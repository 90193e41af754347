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

PROMPTS = [f"In the beginning {number}" for number in range(12)]
TOKENS = 40


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


@pytest.mark.ci
def test_jobs_are_done_by_another_node_though_it_is_killed(pair: list[Any], tmp_path: Path) -> None:
    server, asker, start = pair
    path, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows = [json.dumps({"prompt": prompt}) for prompt in PROMPTS]
    path.write_text("\n".join([*rows, "broken", ""]))
    options = ("--raw", "--max-tokens", str(TOKENS))
    sent = said(asker, "job", "submit", "tiny", "--file", str(path), *options)
    assert sent["replicated"], sent["lack"]
    assert [line["line"] for line in sent["broken"]] == [len(PROMPTS) + 1]
    (job,) = sent["jobs"]
    while not said(asker, "job", "list", "--mine")["jobs"][0]["claimant"]:
        time.sleep(0.05)
    server.kill()
    again = start(server.data)
    again.wait_until(serves)
    done = shoal("job", "result", job[:10], "--wait", "-o", str(output), "--data", str(asker.data))
    assert done.returncode == 1 and f"1 of {len(PROMPTS) + 1} rows failed" in done.stderr
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row["line"] for row in found] == list(range(1, len(PROMPTS) + 2))
    for row, prompt in zip(found, PROMPTS, strict=False):
        expected = said(asker, "run", "tiny", prompt, *options)
        assert (row["text"], row["tokens"]) == (expected["text"], expected["tokens"])
    assert found[-1]["error"] == "bad-row"
    asker.end()
    assert again.end() == 0, again.log.read_text()
    assert "error" not in again.log.read_text()


@pytest.mark.ci
def test_a_model_is_evaluated_on_another_node(pair: list[Any], tmp_path: Path) -> None:
    _, asker, _ = pair
    path, output = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"text": "And God said, Let there be light: and there was light."},
        {"text": "Xq zzv 93 blorp kkkj."},
        {"prompt": "And God saw the light, that it was", "choices": [" zebra", " good:"],
         "answer": 1},
    ]  # fmt: skip
    path.write_text("\n".join(map(json.dumps, rows)))
    sent = said(asker, "job", "submit", "tiny", "--file", str(path), "--kind", "evaluate")
    (job,) = sent["jobs"]
    done = said(asker, "job", "result", job, "--wait", "-o", str(output))
    text, noise, question = [json.loads(line) for line in output.read_text().splitlines()]
    assert text["perplexity"] < 100 < 1000 < noise["perplexity"]
    assert question["right"] and question["choice"] == 1
    assert done["figures"]["tokens"] == text["tokens"] + noise["tokens"]
    assert done["figures"]["accuracy"] == 1
