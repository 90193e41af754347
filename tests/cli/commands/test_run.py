"""`shoal run`: its request, its streamed answer, and its output streams."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands.run import figures
from shoal.cli.main import invoke
from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.generation import GeneratedText
from shoal.node.control.server import Emit

from ..conftest import ANSWER


def test_text_streams_to_standard_output(
    fake_daemon: Any, answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_daemon(answers):
        assert invoke(["run", "tiny", "x"]) == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert err == ("1 token · first token 12 ms · 88.0 tokens/s · 1 node · cut at `--max-tokens`\n")


@pytest.mark.parametrize(
    ("peers", "words"),
    [("aaa", "1 node"), ("aba", "2 nodes, 0.50 ms from one to the next"), ("", "1 node")],
)
def test_the_time_between_nodes_is_shown_if_there_are_several(peers: str, words: str) -> None:
    nodes = [{"peer": peer, "layers": f"{at}:{at + 1}"} for at, peer in enumerate(peers)]
    assert f" tokens/s · {words} · " in figures(decode(GeneratedText, {**ANSWER, "nodes": nodes}))


@pytest.mark.parametrize(
    ("reason", "words"),
    [("stop", "complete"), ("context", "cut: the model's context is full"), ("\x1bx", "\\x1bx")],
)
def test_reason_why_an_answer_ended(reason: str, words: str) -> None:
    assert figures(decode(GeneratedText, {**ANSWER, "reason": reason})).endswith(f" · {words}")


def test_json_prints_one_object(
    fake_daemon: Any, answers: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with fake_daemon(answers):
        assert invoke(["run", "tiny", "x", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ANSWER


def test_options_reach_the_daemon(fake_daemon: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = []

    async def run(request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        asked.append(request)
        return ANSWER

    line = "run tiny x --max-tokens 5 --temperature 0.5 --top-p 0.9 --top-k 3 --seed 18446744073709551615"  # noqa: E501
    with fake_daemon({"run": run}):
        more = "--raw", "--stop", "\n", "--stop", "end", "--adapter", "poet", "--min-p", "0.1"
        rules = "--frequency-penalty -1 --presence-penalty 2 --repetition-penalty 1.2"
        bias = "--logit-bias 7=-100 --logit-bias 300=0.5"
        assert invoke([*line.split(), *more, *rules.split(), *bias.split()]) == 0
        assert invoke(["run", "tiny", "x"]) == 0
    assert asked[0] == {
        "op": "run", "model": "tiny", "prompt": "x", "max_tokens": 5, "temperature": 0.5,
        "top_p": 0.9, "top_k": 3, "seed": 2**64 - 1, "raw": True, "stop": ["\n", "end"],
        "adapter": "poet", "resumable": True, "min_p": 0.1, "frequency_penalty": -1.0,
        "presence_penalty": 2.0, "repetition_penalty": 1.2, "exact": False, "received": "",
        "logit_bias": [{"token": 7, "bias": -100.0}, {"token": 300, "bias": 0.5}],
    }  # fmt: skip
    assert (
        asked[1]["adapter"] is None and asked[1]["seed"] is None and asked[1]["max_tokens"] is None
    )


def test_an_adapter_may_be_named_after_its_model(
    fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[tuple[str, str]] = []

    async def run(request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        asked.append((request["model"], request["adapter"]))
        return ANSWER

    with fake_daemon({"run": run}):
        assert invoke(["run", "tiny+poet", "x"]) == 0
        assert invoke(["run", "tiny+poet", "x", "--adapter", "poet"]) == 0
        assert invoke(["run", "tiny+poet", "x", "--adapter", "other"]) == 1
    assert asked == [("tiny", "poet")] * 2
    assert "two adapters are named" in capsys.readouterr().err


class Stdin:
    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


@pytest.mark.parametrize(
    ("data", "code"), [("Grüße".encode(), 0), (b"\xff", 1), (b"x" * (600 << 10), 1)]
)
def test_prompt_from_standard_input(
    data: bytes, code: int, fake_daemon: Any, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked: list[str] = []

    async def run(request: dict[str, Any], _emit: Emit) -> dict[str, Any]:
        asked.append(request["prompt"])
        return ANSWER

    monkeypatch.setattr("sys.stdin", Stdin(data))
    with fake_daemon({"run": run}):
        assert invoke(["run", "tiny", "-"]) == code
    assert asked == (["Grüße"] if code == 0 else [])


def test_error_in_the_middle_of_the_text(
    fake_daemon: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from shoal.node.errors import ControlError

    async def run(_request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        await emit({"event": "text", "text": "half"})
        raise ControlError("stage-lost", "node B with layers 2:4 has failed", hint="run it again")

    with fake_daemon({"run": run}):
        assert invoke(["run", "tiny", "x"]) == 1
    out, err = capsys.readouterr()
    assert out == "half\n", "the error starts on a new line"
    assert err == "error: node B with layers 2:4 has failed\nhint: run it again\n"


def test_daemon_that_dies_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import socket
    import threading

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "control.sock"))
    listener.listen()

    def die() -> None:
        connection, _ = listener.accept()
        connection.recv(100)
        connection.close()

    thread = threading.Thread(target=die)
    thread.start()
    assert invoke(["run", "tiny", "x"]) == 10
    thread.join()
    listener.close()
    assert "stopped before it replied" in capsys.readouterr().err
