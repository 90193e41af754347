"""Real daemons as processes: they link, answer together, notice a death, and end cleanly."""

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from shoal.node.daemon.embedded import embedded_folder
from shoal.node.invite import decode, encode
from shoal.node.settings.config import DataFolder

from .daemons import Daemon, daemons, shoal

Start = Callable[..., Daemon]


@pytest.fixture
def start() -> Iterator[Start]:
    with daemons() as begin:
        yield begin


def serves(status: dict[str, Any]) -> bool:
    return bool(status["serving"]["phase"] == "serving")


def is_up(status: dict[str, Any]) -> bool:
    return bool(status["addresses"])


def knows(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda status: status["peers"] == count


def complete(status: dict[str, Any]) -> bool:
    return any(model["complete"] for model in status["models"])


def greedy(prompt: str, count: int) -> str:
    """Return how transformers continues the prompt, with the embedded model in float32."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    torch.set_num_threads(1)  # two wait for each other where the cores are busy
    tokenizer = Tokenizer.from_file(str(embedded_folder() / "tokenizer.json"))
    model = transformers.LlamaForCausalLM.from_pretrained(embedded_folder(), dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode(prompt).ids])
    with torch.inference_mode():
        out = model.generate(ids, do_sample=False, max_new_tokens=count)
    text: str = tokenizer.decode(out[0, ids.shape[1] :].tolist(), skip_special_tokens=True)
    return text


@pytest.mark.ci
def test_three_daemons(start: Start, tmp_path: Path) -> None:
    """Two serve the layers, and a third without torch sends prompts; then one is killed."""
    first = start(tmp_path / "1", "--layers", "0:3")
    first.wait_until(is_up)
    assert (tmp_path / "1").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "1" / "control.sock").stat().st_mode & 0o777 == 0o600
    bootstrap = ("--bootstrap", first.address, "--model", "tiny")
    second = start(tmp_path / "2", *bootstrap, "--layers", "3:6")
    asker = start(tmp_path / "3", *bootstrap[:2], torch=False)
    for daemon in (first, second):
        daemon.wait_until(serves)
    asker.wait_until(lambda status: status["peers"] == 2 and complete(status))

    answer = shoal("run", "tiny", "In the beginning", "--raw", "--max-tokens", "12", "--json",
                   "--data", str(asker.data))  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    said = json.loads(answer.stdout)
    assert said["tokens"] == 12 and said["text"] == greedy("In the beginning", 12)
    assert [stage["layers"] for stage in said["nodes"]] == ["0:3", "3:6"]
    peers = json.loads(shoal("peers", "--json", "--data", str(asker.data)).stdout)["peers"]
    shards = {peer["peer"]: [s["layers"] for s in peer["shards"]] for peer in peers}
    assert sorted(shards.values()) == [["0:3"], ["3:6"]]
    processes = first.ask("status")["memory"]["processes"]
    assert [each["name"] for each in processes] == ["daemon", "engine"]
    assert all(each["resident_bytes"] > 30 * 2**20 for each in processes)
    status = asker.ask("status")
    assert status["serving"]["phase"] == "no-engine" and not status["capacity"]["engine"]
    assert any("torch" in condition["sentence"] for condition in status["health"])
    unknown = shoal("run", "tinny", "x", "--data", str(asker.data))
    assert unknown.returncode == 1 and "did you mean `tiny`" in unknown.stderr
    long = shoal("run", "tiny", "word " * 3000, "--raw", "--data", str(asker.data))
    assert long.returncode == 1 and "context" in long.stderr

    second.kill()
    assert asker.wait_until(knows(1), limit=5.0) < 5.0
    refused = shoal("run", "tiny", "x", "--data", str(asker.data))
    assert refused.returncode == 13, refused.stderr
    assert "layers 3:6 of `tiny`" in refused.stderr
    again = start(tmp_path / "2", *bootstrap, "--layers", "3:6")
    again.wait_until(serves)
    asker.wait_until(complete)
    assert asker.end() == 0
    assert asker.log.read_text().rstrip().endswith("stopped")
    assert not DataFolder(asker.data).control_socket.exists()


def workers(daemon: Daemon) -> list[int]:
    """Return the ids of the engine workers of a daemon, the oldest first."""
    children = psutil.Process(daemon.process.pid).children()
    found = [each for each in children if "shoal.tasks.engine.worker" in each.cmdline()]
    return [each.pid for each in sorted(found, key=lambda each: each.create_time())]


def has_restarted(times: str, status: dict[str, Any]) -> bool:
    """Return whether engines have restarted so often, and all serve."""
    told = any(f"restarted {times}" in each["sentence"] for each in status["health"])
    return told and serves(status)


@pytest.mark.ci
def test_a_node_with_two_devices_is_two_stages_and_each_may_crash(
    start: Start, tmp_path: Path
) -> None:
    """The model fits on neither device. The text is that of transformers, also while one worker is
    killed; the other one and the daemon go on."""
    daemon = start(
        tmp_path / "1", "--model", "tiny", "--memory", "32MiB", "--device", "cpu", "--device", "cpu"
    )
    daemon.wait_until(serves)
    status = daemon.ask("status")
    assert sum("engine" in each["name"] for each in status["memory"]["processes"]) == 2
    expected = greedy("Once upon a time", 400)
    words = ["-m", "shoal.cli.main", "run", "tiny", "Once upon a time", "--raw"]
    words += ["--max-tokens", "400", "--json", "--data", str(daemon.data)]
    for times in ("once", "2 times"):  # first one device, then the other
        killed, left = workers(daemon)
        with subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as asking:
            daemon.wait_until(lambda status: any(status["sessions"].values()))
            os.kill(killed, signal.SIGKILL)
            said = json.loads(asking.communicate(timeout=300)[0])
        assert [stage["layers"] for stage in said["nodes"]] == ["0:3", "3:6"]
        assert said["text"] == expected and said["tokens"] == 400
        daemon.wait_until(partial(has_restarted, times))
        after = workers(daemon)
        assert len(after) == 2 and left in after and killed not in after
    assert daemon.end() == 0


@pytest.mark.ci
def test_dead_worker_is_restarted(start: Start, tmp_path: Path) -> None:
    daemon = start(tmp_path / "1")
    daemon.wait_until(serves)
    (worker,) = (
        child
        for child in psutil.Process(daemon.process.pid).children()
        if "shoal.tasks.engine.worker" in child.cmdline()
    )
    worker.kill()
    daemon.wait_until(lambda status: any("restarted" in c["sentence"] for c in status["health"]))
    daemon.wait_until(serves)
    answer = shoal("run", "tiny", "x", "--raw", "--max-tokens", "2", "--data", str(daemon.data))
    assert answer.returncode == 0, answer.stderr
    worker_gone = not psutil.pid_exists(worker.pid)
    assert worker_gone and daemon.end() == 0


def test_a_second_daemon_is_refused(start: Start, tmp_path: Path) -> None:
    first = start(tmp_path / "1", "--memory", "1KiB")
    first.wait_until(is_up)
    second = shoal("node", "--data", str(first.data), "--listen", "127.0.0.1")
    assert second.returncode == 11
    assert f"process {first.process.pid}" in second.stderr
    assert f"shoal status --data {first.data}" in second.stderr
    assert first.end(signal.SIGINT) == 0


@pytest.mark.ci
def test_model_that_fits_on_no_node(start: Start, tmp_path: Path) -> None:
    """The error names the layers, the memory they need, and what each node offers."""
    small = start(tmp_path / "1", "--memory", "2MiB")
    small.wait_until(lambda status: status["serving"]["phase"] == "failed" and status["models"])
    refused = shoal("run", "tiny", "x", "--data", str(small.data))
    assert refused.returncode == 13
    assert "layers 0:6 of `tiny` (6 layers) are served by no node that answers" in refused.stderr
    assert "they take about 9 MiB" in refused.stderr
    assert f"{small.ask('status')['peer'][:14]} offers 2 MiB" in refused.stderr
    assert "hint: " in refused.stderr and "--memory" in refused.stderr


def write_model(folder: Path) -> None:
    """Write 48 MiB of random weights in Llama's shape, with the embedded model's tokenizer."""
    import torch
    from safetensors.torch import save_file

    from shoal.tasks.engine.families import architecture, tensor_shapes
    from shoal.tasks.engine.interface import Parts

    config = json.loads((embedded_folder() / "config.json").read_text())
    config |= {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 7}
    config |= {"head_dim": 64}
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(embedded_folder() / "tokenizer.json", folder)
    arch = architecture(config)
    shapes = tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    tensors = {name: torch.randn(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def chunk_files(data: Path) -> dict[str, tuple[int, int]]:
    """Return the chunks in a node's store, with file data that a second write would change."""
    files = (data / "models" / "chunks").glob("[0-9a-f]*")
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


@pytest.mark.ci
def test_daemon_killed_during_a_fetch_continues_it(start: Start, tmp_path: Path) -> None:
    write_model(tmp_path / "big")
    holder = start(tmp_path / "1", torch=False)
    holder.wait_until(is_up)
    added = shoal("model", "add", str(tmp_path / "big"), "--data", str(holder.data))
    assert added.returncode == 0, added.stderr
    everything = len(chunk_files(holder.data))
    more = ("--bootstrap", holder.address, "--model", "big")

    getter = start(tmp_path / "2", *more)
    deadline = time.monotonic() + 300
    while len(chunk_files(getter.data)) < everything // 4:
        assert time.monotonic() < deadline, getter.log.read_text()
    getter.kill()
    kept = chunk_files(getter.data)
    assert everything // 4 <= len(kept) < everything, "it was not killed in the middle"

    again = start(tmp_path / "2", *more)
    again.wait_until(serves)
    assert kept.items() <= chunk_files(again.data).items(), "a chunk was fetched twice"
    assert not list(again.data.glob("models/chunks/.*")), "a partial file stayed"
    answer = shoal("run", "big", "x", "--raw", "--max-tokens", "2", "--data", str(again.data))
    assert answer.returncode == 0, answer.stderr


@pytest.mark.ci
def test_model_commands_use_the_daemon_or_the_folder(
    start: Start, tmp_path: Path, model_folder: Path
) -> None:
    data = ("--data", str(tmp_path / "1"))
    added = shoal("model", "add", str(model_folder), "--name", "mine", *data, "--json")
    assert added.returncode == 0, added.stderr
    root = json.loads(added.stdout)["root"]
    assert "mine" in shoal("model", "list", *data).stdout
    assert root in shoal("model", "show", "mine", *data).stdout
    daemon = start(tmp_path / "1", "--memory", "1KiB")
    daemon.wait_until(is_up)
    again = shoal("model", "add", str(model_folder), "--name", "again", *data, "--json")
    assert json.loads(again.stdout)["root"] == root
    names = {
        m["name"] for m in json.loads(shoal("model", "list", "--json", *data).stdout)["models"]
    }
    assert names >= {"mine", "again"}, "the same weights under two names are both listed"
    shown = json.loads(shoal("model", "show", "mine", "--json", *data).stdout)
    assert (shown["name"], shown["root"]) == ("mine", root), "the name in the request is shown"
    bad = shoal("model", "add", str(tmp_path), *data)
    assert bad.returncode == 1 and bad.stderr.startswith("error: ") and "hint: " in bad.stderr


@pytest.mark.ci
def test_invite_and_join_a_private_swarm(start: Start, tmp_path: Path) -> None:
    first = start(tmp_path / "1", "--private", "--memory", "1KiB")
    first.wait_until(is_up)
    stranger = start(tmp_path / "2", "--bootstrap", first.address, "--memory", "1KiB")
    stranger.wait_until(lambda status: any("refused" in c["sentence"] for c in status["health"]))
    code = shoal("invite", "--data", str(first.data)).stdout.strip()
    joiner = start(tmp_path / "3", command=f"join {code}")
    joiner.wait_until(lambda _: (tmp_path / "3" / "group.json").exists())
    joiner.wait_until(knows(1))
    joiner.wait_until(lambda status: status["group"] == {"role": "operator", "members": 2})
    used = shoal("join", code, "--data", str(tmp_path / "4"), "--listen", "127.0.0.1")
    assert used.returncode == 12, used.stderr
    assert "new code" in used.stderr
    assert joiner.end() == 0
    back = start(tmp_path / "3")  # without code or address: it remembers its peers
    back.wait_until(knows(1))


@pytest.mark.ci
def test_revoked_member_is_refused(start: Start, tmp_path: Path) -> None:
    """Create, invite, join, show, revoke, and be refused, even by a node that was not running."""
    first = start(tmp_path / "1", "--private", "--memory", "1KiB")
    first.wait_until(is_up)
    data = ("--data", str(first.data))
    nodes = []
    for name, role in (("2", "operator"), ("3", "client")):
        code = shoal("invite", "--role", role, *data).stdout.strip()
        nodes.append(start(tmp_path / name, "--memory", "1KiB", command=f"join {code}"))
        nodes[-1].wait_until(lambda status: status["group"] is not None and status["group"]["role"])
    second, third = nodes
    assert (
        third.wait_until(lambda status: status["serving"]["phase"] in ("barred", "no-engine")) >= 0
    )
    shown = json.loads(shoal("group", "--json", *data).stdout)
    assert [member["role"] for member in shown["members"]] == ["owner", "operator", "client"]
    peer = third.ask("status")["peer"]
    refused = shoal("group", "revoke", peer[:14], "--data", str(second.data))
    assert refused.returncode == 1 and "operators cannot revoke" in refused.stderr
    assert shown["founder"][:14] in refused.stderr
    done = shoal("group", "revoke", peer[:14], *data)
    assert done.returncode == 0, done.stderr
    for node in (first, second):
        assert node.wait_until(lambda status: status["group"]["members"] == 2) < 10
        node.wait_until(knows(1))
    third.wait_until(
        lambda status: any("revoked this node" in c["sentence"] for c in status["health"])
    )
    assert third.end() == 0
    again = start(tmp_path / "3", "--bootstrap", second.address, "--memory", "1KiB")
    again.wait_until(
        lambda status: any("revoked this node" in c["sentence"] for c in status["health"])
    )
    assert again.ask("status")["peers"] == 0
    text = shoal("group", *data).stdout
    assert "revoked: 12D3KooW" in text and "founder" in text


@pytest.mark.ci
def test_invitation_answered_by_another_node(start: Start, tmp_path: Path) -> None:
    first = start(tmp_path / "1", "--memory", "1KiB")
    other = start(tmp_path / "2", "--memory", "1KiB")
    first.wait_until(is_up)
    other.wait_until(is_up)
    ours, theirs = (decode(d.ask("invite", uses=1)["code"]) for d in (first, other))
    forged = encode(type(ours)(theirs.host, theirs.port, ours.fingerprint, theirs.secret))
    answer = shoal("join", forged, "--data", str(tmp_path / "3"), "--listen", "127.0.0.1")
    assert answer.returncode == 1
    assert "not the one that made this invitation" in answer.stderr


@pytest.mark.ci
def test_ports(start: Start, tmp_path: Path) -> None:
    """A configured port in use is an error; a remembered one is replaced, with a line."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        refused = shoal("node", "--data", str(tmp_path / "1"), "--listen", f"127.0.0.1:{port}")
        assert refused.returncode == 1
        assert (
            f"port {port} on 127.0.0.1 is in use" in refused.stderr and "hint: " in refused.stderr
        )
        (tmp_path / "1" / "port").write_text(str(port))
        daemon = start(tmp_path / "1", "--memory", "1KiB")
        daemon.wait_until(is_up)
        assert f"port {port} of the last run is in use" in daemon.log.read_text()
        address = daemon.address
        assert f"/tcp/{port}/" not in address
    daemon.end()
    daemon = start(tmp_path / "1", "--memory", "1KiB")
    daemon.wait_until(is_up)
    assert daemon.address == address, "identity and port are stable"


def test_stop(start: Start, tmp_path: Path) -> None:
    daemon = start(tmp_path / "1", "--memory", "1KiB")
    daemon.wait_until(is_up)
    stopped = shoal("stop", "--data", str(daemon.data))
    assert stopped.returncode == 0 and stopped.stdout.startswith("stopped")
    assert daemon.process.wait(5) == 0


def test_a_node_ends_with_its_parent(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    node = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "node", "--data", str(tmp_path / "1"),
         "--listen", "127.0.0.1", "--parent-fd", str(ours)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(ours,),
    )  # fmt: skip
    os.close(ours)
    time.sleep(0.2)
    assert node.poll() is None
    os.close(theirs)
    assert node.wait(15) == 0


@pytest.mark.ci
def test_fetch_shows_a_bar_on_a_terminal_and_restores_the_cursor(
    start: Start, tmp_path: Path
) -> None:
    """Ctrl-C comes in the middle of the fetch, as from a person."""
    holder = start(tmp_path / "1", "--up", "500kB", "--no-lan", torch=False)
    holder.wait_until(lambda status: bool(status["models"]))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "node", "--data", str(tmp_path / "2"),
         "--listen", "127.0.0.1", "--no-lan", "--bootstrap", holder.address, "--model", "tiny"],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = b""
    until = time.monotonic() + 300
    while b"of 9.0 MiB" not in shown and time.monotonic() < until:
        shown += os.read(ours, 1 << 16)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):  # Linux reports a closed terminal this way
        while piece := os.read(ours, 1 << 16):
            shown += piece
    os.close(ours)
    assert process.wait(20) == 0
    assert b"of 9.0 MiB" in shown and b"% fetched: " not in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert shown.endswith(b"stopped\r\n")


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_three_daemons_give_the_text_of_one_with_a_quantised_model(
    precision: str, start: Start, tmp_path: Path
) -> None:
    """Quantised on the first node, fetched and split by the others."""

    def answer(data: Path) -> dict[str, Any]:
        done = shoal("run", f"tiny-{precision}", "In the beginning", "--raw", "--max-tokens", "24",
                     "--json", "--data", str(data))  # fmt: skip
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)
        return said

    alone = start(tmp_path / "0", "--model", "tiny")
    alone.wait_until(serves)
    made = shoal("model", "quantize", "tiny", "--to", precision, "--data", str(alone.data))
    assert made.returncode == 0, made.stderr
    assert alone.end() == 0
    alone = start(tmp_path / "0", "--model", f"tiny-{precision}")
    alone.wait_until(serves)
    expected = answer(alone.data)
    assert [stage["layers"] for stage in expected["nodes"]] == ["0:6"]
    assert alone.end() == 0

    first = start(tmp_path / "0", "--model", f"tiny-{precision}", "--layers", "0:2")
    first.wait_until(serves)
    more = ("--bootstrap", first.address, "--model", f"tiny-{precision}", "--layers")
    others = [start(tmp_path / cut, *more, cut) for cut in ("2:4", "4:6")]
    for each in others:
        each.wait_until(serves)
    others[1].wait_until(lambda status: status["peers"] == 2 and complete(status))
    said = answer(others[1].data)
    assert [stage["layers"] for stage in said["nodes"]] == ["0:2", "2:4", "4:6"]
    assert said["text"] == expected["text"] and said["tokens"] == 24
