"""Answers that outlive the daemon which their client asked, with real daemons as processes.

One node has all layers. The gateways have none. No token may be lost, repeated or changed.
"""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import pytest

from shoal.cli import defaults
from shoal.cli.resuming import answer
from shoal.node.control.messages.generation import Run, TextPiece, TokenBias

from .daemons import Daemon, daemons

pytestmark = pytest.mark.ci

PROMPT = "Once upon a time"
ASKED = {
    "model": "tiny", "prompt": PROMPT, "max_tokens": 1500, "temperature": 1.0, "seed": 5,
    "stream": True, "logit_bias": {"0": -100, "1": -100, "2": -100},
}  # fmt: skip


def knows_the_model(status: dict[str, Any]) -> bool:
    return any(model["complete"] for model in status["models"])


@pytest.fixture(scope="module")
def gateways(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Daemon]]:
    """Start a node with all layers. Yields a function that starts a gateway, which knows it."""
    folder, names = tmp_path_factory.mktemp("swarm"), count()
    with daemons() as start:
        worker = start(folder / "worker", "--model", "tiny")
        worker.wait_until(lambda status: bool(status["serving"]["phase"] == "serving"))

        def begin(data: Path | None = None) -> Daemon:
            at = data or folder / f"gateway{next(names)}"
            found = start(at, "--bootstrap", worker.address, "--api", "0", torch=False)
            found.wait_until(knows_the_model)
            return found

        yield begin


@pytest.fixture(scope="module")
def gateway(gateways: Callable[[], Daemon]) -> Daemon:
    return gateways()


@pytest.fixture(scope="module")
def whole(gateway: Daemon) -> str:
    """Return the answer to ASKED."""
    with stream(gateway, ASKED) as pieces:
        return text_of(pieces)


@contextmanager
def stream(
    at: Daemon, body: dict[str, Any] | None = None, *, after: str = ""
) -> Iterator[Iterator[tuple[str, str]]]:
    """Send a request to the API of a daemon, or have it continue `after` the event with an id.

    Yields the pieces of text, each with its id or "".
    """
    api = at.ask("api")
    where = urlsplit(api["url"])
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=120)
    header = {"Authorization": f"Bearer {api['token']}", "Content-Type": "application/json"}
    header |= {"Last-Event-ID": after} if after else {}
    path = "/v1/resume" if after else "/v1/completions"
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, header)
    response = connection.getresponse()
    try:
        assert response.status == 200, response.read()
        yield _pieces(response)
    finally:
        connection.close()


def _pieces(response: http.client.HTTPResponse) -> Iterator[tuple[str, str]]:
    """Yield what arrives until the stream or its connection ends."""
    number = ""
    try:
        for line in response:
            if not line.endswith(b"\n"):  # the connection has ended within it
                return
            name, _, value = line.decode().rstrip("\n").partition(": ")
            if name == "id":
                number = value
            elif name == "data" and value != "[DONE]":
                for choice in json.loads(value)["choices"]:
                    yield choice["text"], number
                number = ""
    except (http.client.IncompleteRead, ConnectionError):
        return


def text_of(pieces: Iterator[tuple[str, str]]) -> str:
    return "".join(text for text, _ in pieces)


def test_another_gateway_continues_an_answer_whose_gateway_is_killed(
    gateways: Callable[[], Daemon], gateway: Daemon, whole: str
) -> None:
    lost = gateways()
    with stream(lost, ASKED) as pieces:
        received = "".join(next(pieces)[0] for _ in range(3))
        lost.kill()
        received += text_of(pieces)
    assert 0 < len(received) < len(whole), "it was killed in the middle of its answer"
    with stream(gateway, ASKED | {"received": received}) as pieces:
        assert received + text_of(pieces) == whole


def test_a_dropped_connection_continues_with_its_token(gateway: Daemon, whole: str) -> None:
    received, last = "", ""
    with stream(gateway, ASKED | {"stream_options": {"resumable": True}}) as pieces:
        while not last:
            text, last = next(pieces)
            received += text
    assert 0 < len(received) < len(whole)
    with stream(gateway, after=last) as pieces:
        assert received + text_of(pieces) == whole


def test_a_command_continues_an_answer_whose_daemon_was_killed_and_started_again(
    gateways: Callable[..., Daemon], whole: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `shoal run` does, with more patience, because starting takes long on a busy machine."""
    monkeypatch.setattr(defaults, "RESUME_PATIENCE", 120.0)
    killed, restarted = gateways(), list[Daemon]()
    received = ""

    def take(event: object) -> None:
        nonlocal received
        if isinstance(event, TextPiece):
            received += event.text
            if not restarted:
                killed.kill()
                restarted.append(killed)
                restart.start()

    restart = Thread(target=lambda: gateways(killed.data))
    bias = tuple(TokenBias(token, -100.0) for token in range(3))
    asked = Run(model="tiny", prompt=PROMPT, raw=True, max_tokens=1500, temperature=1.0, seed=5,
                logit_bias=bias)  # fmt: skip
    text = answer(killed.data, asked, take).text
    restart.join()
    assert received == text == whole
