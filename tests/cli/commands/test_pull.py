"""`shoal model pull`: its output, interruptions, and real daemons."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.commands.models.pull import PullProgress, vouched
from shoal.cli.main import invoke
from shoal.dht.errors import FetchFailed
from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.models import Resolved, VoucherView
from shoal.node.errors import ControlError

from ..daemons import Daemon, daemons, shoal
from ..test_render import NASTY, poisoned

ROOT = "ab" * 32
VOUCHERS = [
    {"peer": "12D3KooWFar", "source": "dht", "age_s": 75.0},
    {"peer": "12D3KooWOther", "source": "dht", "age_s": 1.0},
]
RESOLVED: dict[str, Any] = {"event": "resolved", "name": "tiny", "root": ROOT, "vouchers": VOUCHERS}
ANSWER: dict[str, Any] = {
    "name": "tiny", "root": ROOT, "layers": 6, "weight_bytes": 8 << 20, "local": True,
    "complete": None, "missing": None, "room_tokens": None, "vouchers": VOUCHERS,
    "fetched": 8 << 20, "peers": 2, "liars": [], "seconds": 2.5,
}  # fmt: skip
PROGRESS = {"event": "progress", "done": 1 << 20, "total": 8 << 20}
Captured = pytest.CaptureFixture[str]


def test_output(fake_daemon: Any, capfd: Captured) -> None:
    with fake_daemon({"model_pull": [RESOLVED, PROGRESS, ANSWER]}):
        assert invoke(["model", "pull", "tiny"]) == 0
        out, err = capfd.readouterr()
        assert f"tiny: 8.0 MiB from 2 nodes in 2.5 s, root {ROOT}" in out
        assert "serve it with `shoal node --model tiny" in out
        assert err == f"tiny is {ROOT}, according to 12D3KooWFar, 1 min ago and 1 more\n"
        assert invoke(["model", "pull", "tiny", "--json"]) == 0
        out, err = capfd.readouterr()
        assert json.loads(out) == ANSWER and err == ""


def test_output_with_local_chunks_and_a_liar(fake_daemon: Any, capfd: Captured) -> None:
    with fake_daemon({"model_pull": ANSWER | {"peers": 0, "fetched": 0, "liars": ["12D3KooWBad"]}}):
        assert invoke(["model", "pull", "tiny"]) == 0
    out, _ = capfd.readouterr()
    assert "tiny: was here already" in out and "dropped for sending wrong bytes: 12D3KooWBad" in out


@pytest.mark.parametrize("text", NASTY[:4])
def test_peer_text_is_escaped(text: str, fake_daemon: Any, capfd: Captured) -> None:
    bad = poisoned({"resolved": RESOLVED, "answer": ANSWER}, text)
    events = [{**bad["resolved"], "event": "resolved"}, {**bad["answer"], "liars": [text]}]
    with fake_daemon({"model_pull": events}):
        assert invoke(["model", "pull", "tiny"]) == 0
    out, err = capfd.readouterr()
    assert all(c.isprintable() or c == "\n" for c in out + err), ascii(out + err)


@pytest.mark.parametrize(
    ("code", "status"), [("unknown-model", 1), ("ambiguous-model", 1), ("disk-full", 1)]
)
def test_errors(code: str, status: int, fake_daemon: Any, capfd: Captured) -> None:
    with fake_daemon({"model_pull": ControlError(code, "no such thing", hint="do this")}):
        assert invoke(["model", "pull", "tiny"]) == status
    _, err = capfd.readouterr()
    assert err.splitlines() == ["error: no such thing", "hint: do this"]


def test_no_provider(fake_daemon: Any, capfd: Captured) -> None:
    error = FetchFailed("no-source", "no node holds it", hint="try again")
    with fake_daemon({"model_pull": [RESOLVED, error]}):
        pass
    with fake_daemon({"model_pull": error}):
        assert invoke(["model", "pull", "tiny"]) == 1
    assert "error: no node holds it" in capfd.readouterr().err


def test_without_a_daemon(capfd: Captured) -> None:
    assert invoke(["model", "pull", "tiny"]) == 10
    assert "hint: start one" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("name", "again"),
    [("tiny", f"tiny@{ROOT[:16]}"), ("tiny@ab", "tiny@ab"), (ROOT, ROOT), (ROOT[:9], ROOT)],
)
def test_interruption_prints_how_to_continue(name: str, again: str, tmp_path: Path) -> None:
    seen = PullProgress(quiet=True)
    seen.resolved(decode(Resolved, RESOLVED))
    seen.done, seen.total = 1 << 20, 8 << 20
    error = seen.interrupted(name, tmp_path)
    assert "1.0 MiB of 8.0 MiB are here" in error.message
    assert error.hint is not None and error.hint.startswith(f"`shoal model pull {again} ")


def test_interrupted_before_the_name_is_resolved(tmp_path: Path) -> None:
    error = PullProgress(quiet=True).interrupted("tiny", tmp_path)
    assert error.message == "interrupted; finished chunks are kept"
    assert error.hint is not None and "pull tiny " in error.hint


def test_vouchers_in_few_words() -> None:
    assert vouched([]) == "known only by its hash"
    assert vouched([VoucherView("x", "here", 0.0)]) == "according to this node"
    assert vouched([VoucherView("x", "members", 0.0)]) == "according to x, a member"


# Real daemons.


@pytest.fixture
def start() -> Iterator[Callable[..., Daemon]]:
    with daemons() as begin:
        yield begin


@pytest.mark.ci
def test_real_daemons(start: Callable[..., Daemon], tmp_path: Path) -> None:
    """Interrupt a pull, complete it, and check the vouchers in list and show."""
    holder = start(tmp_path / "1", "--up", "1MB", "--no-lan", torch=False)
    holder.wait_until(lambda status: bool(status["models"]))
    puller = start(
        tmp_path / "2", "--bootstrap", holder.address, "--model", "none", "--no-lan", torch=False
    )
    puller.wait_until(lambda status: status["peers"] == 1 and bool(status["models"]))
    (model,) = puller.ask("models")["models"]
    name, data = f"tiny@{model['root'][:8]}", ["--data", str(puller.data)]

    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "model", "pull", name, *data],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    chunks = puller.data / "models" / "chunks"
    until = time.monotonic() + 60
    while time.monotonic() < until and len(list(chunks.glob("[0-9a-f]*"))) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == "", err
    assert "finished chunks are kept" in err and f"hint: `shoal model pull {name}" in err

    done = shoal("model", "pull", name, "--json", *data)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["name"] == "tiny" and answer["root"] == model["root"]
    held = (holder.data / "models" / "chunks").glob("[0-9a-f]*")
    assert 0 < answer["fetched"] < sum(path.stat().st_size for path in held)
    again = json.loads(shoal("model", "pull", "tiny", "--json", *data).stdout)
    assert again["fetched"] == 0

    shown = shoal("model", "show", "tiny", *data).stdout
    assert "vouched by" in shown and "this node" in shown
    assert holder.ask("status")["peer"][:14] in shown
    wide = {**os.environ, "COLUMNS": "200"}
    assert "this node and 1 more" in shoal("model", "list", *data, env=wide).stdout
    missing = shoal("model", "pull", "tini", *data)
    assert missing.returncode == 1 and "no model 'tini' is known" in missing.stderr
