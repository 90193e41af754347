"""`shoal run` whose connection to the daemon drops."""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.cli import defaults
from shoal.cli.errors import CommandError
from shoal.cli.resuming import answer
from shoal.node.control.messages.generation import Run
from shoal.node.control.server import Emit
from shoal.node.errors import ControlError
from tests.cli.conftest import FakeDaemon

TOKEN = "ab" * 32
REPLY = {
    "text": "01234", "reason": "stop", "prompt_tokens": 1, "tokens": 5, "ttft_ms": 1.0,
    "tokens_per_s": 1.0, "hop_ms": 1.0, "seed": 1, "nodes": [],
}  # fmt: skip


async def drop(emit: Any) -> None:
    """Close the connection of a client, as its loss does."""
    await emit.__self__._stream.aclose()
    await trio.sleep_forever()


class Kept:
    """A daemon's answer of five pieces, whose connections drop after some of them."""

    def __init__(self, *drops: int) -> None:
        self.drops = list(drops)
        self.asked: list[dict[str, Any]] = []
        self.forgotten: list[str] = []

    async def _tell(self, since: int, emit: Emit) -> dict[str, Any]:
        for number in range(since, 5):
            if self.drops and number >= self.drops[0]:
                self.drops.pop(0)
                await drop(emit)
            await emit({"event": "text", "text": str(number)})
        return REPLY

    async def run(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        self.asked.append(request)
        await emit({"event": "resumable", "token": TOKEN, "seed": 77})
        return await self._tell(0, emit)

    async def resume(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        self.asked.append(request)
        return await self._tell(request["since"], emit)

    async def forget(self, request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        self.forgotten.append(request["token"])
        return {"forgotten": True}

    def operations(self) -> dict[str, Any]:
        return {"run": self.run, "resume": self.resume, "forget": self.forget}


def ask(data: Path, take: Callable[[Any], None]) -> str:
    return answer(data, Run(model="tiny", prompt="x"), take).text


def test_it_continues_after_what_it_has(tmp_path: Path, fake_daemon: FakeDaemon) -> None:
    kept, heard = Kept(2, 2, 4), list[str]()
    with fake_daemon(kept.operations()):
        assert ask(tmp_path, lambda event: heard.append(event.text)) == "01234"
    assert heard == ["0", "1", "2", "3", "4"]
    assert kept.asked[0]["resumable"] is True
    assert [each["since"] for each in kept.asked[1:]] == [2, 2, 4]
    assert all(each["token"] == TOKEN for each in kept.asked[1:])
    assert kept.forgotten == []


def test_a_daemon_that_is_gone_is_not_waited_for_without_end(
    tmp_path: Path, fake_daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "RESUME_PATIENCE", 0.5)
    kept = Kept(*[2] * 100)
    with fake_daemon(kept.operations()), pytest.raises(CommandError) as caught:
        ask(tmp_path, lambda event: None)
    assert caught.value.code == "not-running"
    assert "with `--seed 77` the text is the same" in str(caught.value.hint)


def test_a_daemon_that_has_ended_is_not_waited_for(
    tmp_path: Path, fake_daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "RESUME_PATIENCE", 3600.0)
    kept = Kept(2)

    async def run(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        (tmp_path / "control.sock").unlink()  # as a daemon that ends does
        return await kept.run(request, emit)

    with fake_daemon(kept.operations() | {"run": run}), pytest.raises(CommandError) as caught:
        ask(tmp_path, lambda event: None)
    assert caught.value.code == "not-running"
    assert "has ended" in caught.value.message
    assert "shoal node" in str(caught.value.hint) and "`--seed 77`" in str(caught.value.hint)


def test_a_daemon_that_was_killed_has_time_to_start_again(
    tmp_path: Path, fake_daemon: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "RESUME_PATIENCE", 0.5)
    kept = Kept(2)

    async def run(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        (tmp_path / "control.sock").unlink()
        with socket.socket(socket.AF_UNIX) as left:  # as a daemon that is killed leaves it
            left.bind(str(tmp_path / "control.sock"))
        return await kept.run(request, emit)

    began = time.monotonic()
    with fake_daemon(kept.operations() | {"run": run}), pytest.raises(CommandError) as caught:
        ask(tmp_path, lambda event: None)
    assert "has ended" in caught.value.message
    assert time.monotonic() - began >= 0.5


def test_a_daemon_that_was_restarted_generates_the_rest(
    tmp_path: Path, fake_daemon: FakeDaemon
) -> None:
    asked, heard = list[dict[str, Any]](), list[str]()

    async def run(request: dict[str, Any], emit: Emit) -> dict[str, Any]:
        asked.append(request)
        await emit({"event": "resumable", "token": TOKEN, "seed": 77})
        for number in range(len(request["received"]), 5):
            if len(asked) == 1 and number == 2:
                await drop(emit)
            await emit({"event": "text", "text": str(number)})
        return REPLY

    operations = Kept().operations() | {
        "run": run, "resume": ControlError("unknown-answer", "not here"),
    }  # fmt: skip
    with fake_daemon(operations):
        assert ask(tmp_path, lambda event: heard.append(event.text)) == "01234"
    assert heard == ["0", "1", "2", "3", "4"]
    assert [(each["seed"], each["received"]) for each in asked] == [(None, ""), (77, "01")]


def test_an_interrupted_command_stops_the_answer(tmp_path: Path, fake_daemon: FakeDaemon) -> None:
    kept = Kept()

    def interrupt(_event: Any) -> None:
        raise KeyboardInterrupt

    with fake_daemon(kept.operations()), pytest.raises(KeyboardInterrupt):
        ask(tmp_path, interrupt)
    assert kept.forgotten == [TOKEN]
