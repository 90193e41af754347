"""Fine-tuning from end to end: a real daemon, the embedded model, and the commands of a user."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from shoal.cli.errors import CommandError
from tests.cli.daemons import Daemon, daemons, shoal

pytestmark = pytest.mark.ci

ARGS = ("--no-lan", "--model", "tiny", "--memory", "1GiB")
OPTIONS = ("--steps", "16", "--batch", "2", "--length", "32", "--rank", "4", "--seed", "5")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Daemon]]:
    folder = tmp_path_factory.mktemp("finetune")
    with daemons() as run:

        def start(name: str) -> Daemon:
            node = run(folder / name, *ARGS)
            node.wait_until(lambda status: status["serving"]["phase"] == "serving")
            return node

        yield start


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "fish.jsonl"
    lines = [{"text": f"A shoal of {n} fish swims to the {n % 7}th island."} for n in range(30)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + "broken\n")
    return path


def finetune(node: Daemon, *args: str) -> Any:
    return shoal("finetune", *args, "--data", str(node.data))


def begin(node: Daemon, data: Path, name: str, *more: str) -> Any:
    return shoal("finetune", "tiny", "--data", str(data), "--node", str(node.data), *OPTIONS,
                 "--name", name, *more)  # fmt: skip


def until(node: Daemon, name: str, true: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(2400):
        found = node.ask("tuning_show", tuning=name)["tuning"]
        if true(found):
            return found
        time.sleep(0.1)
    raise AssertionError(found)


def weights(view: dict[str, Any]) -> bytes:
    return (Path(view["folder"]) / "adapter" / "adapter_model.safetensors").read_bytes()


def test_tuned_stopped_killed_and_used(
    start: Callable[[str], Daemon], data: Path, tmp_path: Path
) -> None:
    node = start("node")
    done = begin(node, data, "fish", "--out", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert "30 rows" in done.stdout and "line 31: not JSON" in done.stdout
    assert "--adapter fish" in done.stdout and "step 0 of 16" in done.stderr
    whole = node.ask("tuning_show", tuning="fish")
    losses = [point["loss"] for point in whole["curve"]]
    assert len(losses) == 16 and sum(losses[-3:]) < sum(losses[:3])
    assert (tmp_path / "out" / "adapter_config.json").exists()

    # A second run is stopped in the middle, resumed, and killed: it makes the same bytes.
    assert begin(node, data, "again", "--detach").returncode == 0
    until(node, "again", lambda view: view["step"] >= 3)
    node.ask("tuning_stop", tuning="again")  # the command would take longer than some steps
    stopped = node.ask("tuning_show", tuning="again")["tuning"]
    assert stopped["state"] == "stopped" and 3 <= stopped["saved"] < 16
    assert finetune(node, "resume", "again").returncode == 0
    node.kill()
    gone = finetune(node, "follow", "again")
    assert gone.returncode == 10 and "shoal node" in gone.stderr
    node = start("node")
    again = until(node, "again", lambda view: view["state"] == "done")
    assert weights(again) == weights(whole["tuning"])

    def text(**more: Any) -> str:
        asked = {"model": "tiny", "prompt": "A shoal of", "raw": True, "max_tokens": 12, **more}
        return str(node.ask("run", wait=True, **asked)["text"])

    assert text(adapter="fish") == text(adapter="again") != text()
    assert "fish" in finetune(node, "list").stdout
    shown = shoal("job", "show", "fish", "--data", str(node.data))
    assert "loss per token" in shown.stdout, shown.stderr
    assert finetune(node, "rm", "again", "--yes").returncode == 0
    with pytest.raises(CommandError, match="is not a fine-tuning"):
        node.ask("tuning_show", tuning="again")


def test_what_cannot_be_tuned_says_why(start: Callable[[str], Daemon], data: Path) -> None:
    node = start("other")
    for args, code, words in (
        (("tiny", "--modules", "qkv_proj"), 1, "it has q_proj"),
        (("nix",), 1, "nix"),
        (("tiny", "--length", "2048"), 1, "longer than the model's context of 1024"),
    ):
        found = shoal("finetune", *args, "--data", str(data), "--node", str(node.data))
        assert found.returncode == code and words in found.stderr, found.stderr
        assert "hint: " in found.stderr
    assert not [*(node.data / "tuning").glob("*")]


def test_killed_and_moved_between_nodes_it_ends_with_the_same_bytes(
    tmp_path: Path, data: Path
) -> None:
    """The user's node does no jobs. One trainer is killed, and the next one is told to move."""
    with daemons() as run:

        def start(name: str, *words: str) -> Daemon:
            node = run(tmp_path / name, *words)
            node.wait_until(lambda status: bool(status["addresses"]))
            return node

        trainers = {"a": start("a", *ARGS)}
        known = ("--bootstrap", trainers["a"].address)
        trainers["b"] = start("b", *ARGS, *known)
        home = start("home", "--no-lan", "--no-jobs", *known)
        for node in trainers.values():
            node.wait_until(lambda status: status["serving"]["phase"] == "serving")
        home.wait_until(lambda status: status["peers"] >= 2)
        names = {node.ask("status")["peer"]: name for name, node in trainers.items()}

        def tune(name: str, **more: Any) -> str:
            ask = {"model": "tiny", "path": str(data), "name": name, "steps": 120, "batch": 4,
                   "length": 64, "rank": 4, "seed": 5, **more}  # fmt: skip
            return str(home.ask("tuning_begin", wait=True, **ask)["tuning"]["id"])

        moving = tune("moving", moves=True)
        first = until(home, moving, lambda view: view["trainer"])["trainer"]
        time.sleep(2)
        trainers[names[first]].kill()
        second = until(home, moving, lambda view: view["trainer"] not in (None, first))["trainer"]
        trainers[names[first]] = start(names[first], *ARGS, "--bootstrap",
                                       trainers[names[second]].address)  # fmt: skip
        trainers[names[first]].wait_until(lambda status: status["serving"]["phase"] == "serving")
        view = home.ask("tuning_show", tuning=moving)["tuning"]
        assert view["trainer"] == second and view["state"] != "done", view
        assert finetune(home, "move", "moving").returncode == 0
        third = until(home, moving, lambda view: view["trainer"] not in (None, second))
        assert third["trainer"] == first
        until(home, moving, lambda view: view["saved"] > 0)  # it has seen the checkpoint
        shown = shoal("job", "show", view["job"][:12], "--data", str(home.data))
        assert "loss per token" in shown.stdout, shown.stderr
        found = until(home, moving, lambda view: view["state"] == "done")
        assert found["step"] == 120 and found["job"] is None
        staying = until(home, tune("staying"), lambda view: view["state"] == "done")
        assert weights(found) == weights(staying)
        curves = [home.ask("tuning_show", tuning=name)["curve"] for name in ("moving", "staying")]
        assert curves[0] == curves[1] and len(curves[0]) == 120


def test_two_daemons_average_and_the_result_answers_over_http(data: Path, tmp_path: Path) -> None:
    """Two rounds of eight steps. Each node has an order of rows of its own."""
    with daemons() as run:
        one = run(tmp_path / "one", *ARGS, "--api", "0")
        one.wait_until(lambda status: bool(status["addresses"]))
        two = run(tmp_path / "two", *ARGS, "--bootstrap", one.address)
        nodes = (one, two)
        for node in nodes:
            node.wait_until(lambda status: status["serving"]["phase"] == "serving")
            node.wait_until(lambda status: status["peers"] == 1)
        asked = {"model": "tiny", "path": str(data), "name": "ours", "together": "ours", "every": 8,
                 "steps": 16, "batch": 2, "length": 32, "rank": 4, "held_out": 0.0}  # fmt: skip

        def begin(number: int) -> None:
            nodes[number].ask("tuning_begin", wait=True, seed=number, **asked)

        with ThreadPoolExecutor(2) as pool:  # in the same seconds, so that they are in all rounds
            list(pool.map(begin, range(2)))
        found = [until(node, "ours", lambda view: view["state"] == "done") for node in nodes]
        for company in (view["company"] for view in found):
            assert (company["round"], company["refused"]) == (2, 0), company
        assert weights(found[0]) == weights(found[1])
        curves = [node.ask("tuning_show", tuning="ours")["curve"] for node in nodes]
        assert curves[0] != curves[1], "each has trained"

        api = one.ask("api")
        with OpenAI(base_url=api["url"], api_key=api["token"], max_retries=0) as client:
            texts = [
                client.completions.create(
                    model=model, prompt="A shoal of", max_tokens=12, temperature=0
                ).choices[0].text
                for model in ("tiny+ours", "tiny")
            ]  # fmt: skip
        expected = one.ask("run", wait=True, model="tiny", adapter="ours", prompt="A shoal of",
                           raw=True, max_tokens=12)  # fmt: skip
        assert texts[0] == expected["text"] != texts[1]


def test_all_weights_are_trained_killed_and_the_model_answers(data: Path, tmp_path: Path) -> None:
    """The node has no `--model`, so it serves the result beside the embedded model."""
    plain = ("--no-lan", "--memory", "1GiB")
    options = ("--full", "--steps", "12", "--batch", "2", "--length", "32", "--seed", "5")

    def weights_of(view: dict[str, Any]) -> bytes:
        return (Path(view["folder"]) / "model" / "model.safetensors").read_bytes()

    with daemons() as run:

        def start() -> Daemon:
            node = run(tmp_path / "node", *plain)
            node.wait_until(lambda status: status["serving"]["phase"] == "serving")
            return node

        def tune(name: str, *more: str) -> Any:
            return shoal("finetune", "tiny", "--data", str(data), "--node", str(node.data),
                         *options, "--name", name, *more)  # fmt: skip

        node = start()
        done = tune("whole", "--out", str(tmp_path / "out"))
        assert done.returncode == 0, done.stderr
        assert "12 steps, model whole" in done.stdout and "`shoal run whole" in done.stdout
        first = node.ask("tuning_show", tuning="whole")
        losses = [point["loss"] for point in first["curve"]]
        assert losses[-1] < losses[0] and first["tuning"]["full"]
        assert (tmp_path / "out" / "model.safetensors").read_bytes() == weights_of(first["tuning"])

        assert tune("again", "--detach").returncode == 0
        until(node, "again", lambda view: view["step"] >= 3)
        node.kill()
        node = start()
        again = until(node, "again", lambda view: view["state"] == "done")
        assert weights_of(again) == weights_of(first["tuning"])
        assert again["adapter"] == first["tuning"]["adapter"], "it is the same model"

        def text(model: str) -> str | None:
            asked = {"model": model, "prompt": "A shoal of", "raw": True, "max_tokens": 12}
            try:
                return str(node.ask("run", wait=True, **asked)["text"])
            except CommandError:
                return None  # no node has loaded its layers yet

        for _ in range(120):
            if (told := text("whole")) is not None:
                break
            time.sleep(0.5)
        assert told is not None and told != text("tiny")
        for args, words in (
            (("--rank", "4"), "--rank is about an adapter"),
            (("--movable",), "stays on this node"),
            (("--name", "whole"), "is called `whole`"),
        ):
            refused = tune("more", *args)
            assert refused.returncode in (1, 2) and words in refused.stderr, refused.stderr
