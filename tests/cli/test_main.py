"""Every way in which a command can fail: exit code, error line, hint, and no traceback."""

import errno
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from shoal.cli import main as edge
from shoal.cli.errors import CommandError
from shoal.cli.main import invoke, sentence, shoal
from shoal.node.errors import ControlError

Captured = pytest.CaptureFixture[str]

# command line -> exit code, a pattern of the error line, a pattern of the hint
FAILURES: list[tuple[list[str], int, str, str]] = [
    (["modle", "list"], 2, "no such command `modle`", "did you mean `shoal model`"),
    (["model", "ad"], 2, "no such command `ad`|no such command", "shoal model"),
    (["xyzzy"], 2, "no such command `xyzzy`", "`shoal --help`"),
    (["--nope"], 2, "no such option `?--nope", "`shoal --help`"),
    (["run"], 2, "missing argument `NAME`", "`shoal run --help`"),
    (["run", "tiny"], 2, "missing argument `PROMPT`", "`shoal run --help`"),
    (["run", "tiny", "x", "--max-tokens", "0"], 2, "number of at least 1, got 0", "`shoal run"),
    (["run", "tiny", "x", "--top-p", "0"], 2, "number above 0, at most 1, got 0.0", "--help"),
    (["run", "tiny", "x", "--logit-bias", "7"], 2, "a token id and a number", "42=-100"),
    (["run", "tiny", "x", "--logit-bias", "7=101"], 2, "from -100 to 100, got `7=101`", "42=-100"),
    (["run", "tiny", "x", "--logit-bias", "x=1"], 2, "got `x=1`", "42=-100"),
    (["run", "tiny", "x", "--min-p", "2"], 2, "--min-p", "`shoal run --help`"),
    (["run", "tiny", "x", "--presence-penalty", "3"], 2, "--presence-penalty", "--help"),
    (["run", "tiny", "x", "--repetition-penalty", "0"], 2, "--repetition-penalty", "--help"),
    (["run", "tiny", "x", "--max-tokens", "ten"], 2, "--max-tokens", "`shoal run --help`"),
    (["run", "tiny", "x", "--temperature", "-1"], 2, "--temperature", "`shoal run --help`"),
    (["run", "tiny", "x", "--temprature", "1"], 2, "no such option `--temprature", "--help"),
    (["run", "tiny", "x", "y"], 2, "unexpected extra argument", "`shoal run --help`"),
    (["node", "--layers", "5:2"], 2, "`5:2` is not a layer range", "--layers 0:8"),
    (["node", "--layers", "x"], 2, "`x` is not a layer range", "--layers 0:8"),
    (["node", "--memory", "4"], 2, "`4` has no unit", "`--memory 4GiB`"),
    (["join", "x", "--down", "8"], 2, "`8` has no unit", "--down 8Mbit`"),
    (["node", "--memory", "lots"], 2, "`lots` is not a size", "--memory 4GiB"),
    (["node", "--listen", "example.org:1"], 2, "is not an address to listen on", "--listen"),
    (["node", "--bootstrap", "1.2.3.4"], 2, "is not an address: the port is missing", ":4001"),
    (["node", "--model", "a/b"], 2, "`a/b` cannot be a model's name: it has other", "up to 64"),
    (["node", "--memory", "0"], 2, "`0` has no unit", "`--memory 4GiB`"),
    (["model", "show", "d201"], 1, "known on this disk, and .*; the beginning of a root", "`shoal"),
    (["node", "--relay", "lots"], 2, "`lots` is not a rate", "--relay 1MB`"),
    (["node", "--relay", "-1"], 2, "`-1` is not a rate", "--relay 8Mbit`"),
    (["node", "--up", "5B"], 2, "`5B` is too little: at least 10 kB a second", "--up 1MB`"),
    (["node", "--down", "1e9"], 2, "`1e9` is not a rate", "--down 8Mbit`"),
    (["join", "x", "--down", "fast"], 2, "`fast` is not a rate", "--down 1MB`"),
    (["node", "--browsers", ":80"], 2, "not an address and port for browsers", "--browsers 127"),
    (["node", "--api", "on"], 2, "`on` is not a port for the API", "--api 8462`"),
    (["node", "--libp2p-relay", "1.2.3.4"], 2, "the port is missing", ":4001"),
    (["node", "--no-lan", "x"], 2, "unexpected extra argument", "`shoal node --help`"),
    (["doctor"], 10, "no daemon is running on", "`shoal node --data"),
    (["doctor", "--agian"], 2, "no such option `--agian`, did you mean", "`shoal doctor --help`"),
    (["status", "--links"], 10, "no daemon is running on", "`shoal node --data"),
    (["node", "--dtype", "int4"], 2, "--dtype", "`shoal node --help`"),
    (["node", "--threads", "0"], 2, "--threads", "`shoal node --help`"),
    (["join", "ABC", "--file", "-"], 2, "either a CODE or --file", "`shoal join --help`"),
    (["join", "--file", "/does/not/exist"], 2, "/does/not/exist", "`shoal join --help`"),
    (["join", "ABC"], 1, "invitation code is cut short", "shoal invite"),
    (["join", "0" * 47], 1, "invitation code .*typing error|version", "shoal"),
    (["invite", "--uses", "0"], 2, "--uses", "`shoal invite --help`"),
    (["invite"], 10, "no daemon is running on", "`shoal node --data"),
    (["status"], 10, "no daemon is running on", "`shoal node --data"),
    (["peers", "--json"], 10, "no daemon is running on", "`shoal node --data"),
    (["run", "tiny", "x"], 10, "no daemon is running on", "`shoal node --data"),
    (["stop"], 10, "no daemon is running on", "there is nothing to stop"),
    (["model", "add"], 2, "missing argument `SOURCE`", "`shoal model add --help`"),
    (["model", "add", "/does/not/exist"], 2, "/does/not/exist", "`shoal model add --help`"),
    (["model", "show", "nothing"], 1, "no daemon is running to ask", "`shoal node"),
    (["blob", "add", "/does/not/exist"], 2, "there is no `/does/not/exist`", "`shoal blob add"),
    (["blob", "get", "ab", "/"], 2, "`/` is a folder", "`shoal blob get --help`"),
    (["job", "submit", "tiny", "--file", "no where/x"], 1, "no such file", "`ls 'no where'`"),
    (["demo", "--nodes", "0"], 2, "number from 1 to 16, got 0", "`shoal demo --help`"),
    (["demo", "--nodes", "99"], 2, "--nodes", "`shoal demo --help`"),
]


def assert_two_lines(text: str, message: str, hint: str) -> None:
    lines = text.splitlines()
    assert len(lines) == 2, text
    assert re.match(rf"error: .*(?:{message})", lines[0]), lines[0]
    assert re.match(rf"hint: .*(?:{hint})", lines[1]), lines[1]
    words = lines[0].removeprefix("error: ")
    assert not words.endswith("."), "no full stop"
    assert words[0] == words[0].lower(), "lower-case start"


@pytest.mark.parametrize(
    ("line", "code", "message", "hint"), FAILURES, ids=[" ".join(row[0])[:40] for row in FAILURES]
)
def test_failure(line: list[str], code: int, message: str, hint: str, capsys: Captured) -> None:
    assert invoke(line) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert_two_lines(err, message, hint)


def test_quotation_marks_become_backticks_and_apostrophes_stay() -> None:
    assert sentence("No such option '--x'. Did you mean '--y'?").startswith("no such option `--x`,")
    assert (
        sentence("The node's key 'a' isn't the model's.") == "the node's key `a` isn't the model's"
    )


# Error of the daemon -> exit code
REFUSALS = [
    ("unknown-model", 1),
    ("no-route", 13),
    ("no-fit", 13),
    ("stage-lost", 1),
    ("prompt-too-long", 1),
    ("locked", 11),
    ("invite-refused", 12),
    ("a-code-of-the-future", 1),
]


@pytest.mark.parametrize(("word", "code"), REFUSALS)
def test_errors_of_the_daemon(word: str, code: int, fake_daemon: Any, capsys: Captured) -> None:
    refusal = ControlError(word, "it cannot be done", hint="`shoal status`")
    with fake_daemon({"run": refusal}):
        assert invoke(["run", "tiny", "x"]) == code
    assert_two_lines(capsys.readouterr().err, "it cannot be done", "`shoal status`")


def commands(group: click.Command = shoal, path: str = "shoal") -> Iterator[tuple[str, Any]]:
    yield path, group
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, f"{path} {name}")


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_every_command_has_help_with_an_example(path: str, capsys: Captured) -> None:
    assert invoke([*path.split()[1:], "--help"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert re.search(rf"Example:\n +{path}", out), f"no example in `{path} --help`"


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_examples_are_existing_commands(path: str) -> None:
    """Every command and option in an example is real."""
    known = dict(commands())
    for line in re.findall(r"^ +(shoal .*)$", known[path].epilog or "", re.MULTILINE):
        words = line.split()
        if re.match(r"shoal finetune \w+ --data", line):  # short for `start`
            line = line.replace("finetune ", "finetune start ", 1)
        name = max((p for p in known if line.startswith(p)), key=len)
        options = {o for parameter in known[name].params for o in parameter.opts}
        for option in (word for word in words if word.startswith("--")):
            assert option in options, f"`{line}`: `{name}` has no {option}"


@pytest.mark.parametrize(
    ("near", "words"),
    [
        ("public", None),
        ("private", "only machines on this network"),
        ("loopback", "only programs on this machine"),
    ],
)
def test_invite_explains_a_code_with_a_local_address(
    near: str, words: str | None, fake_daemon: Any, answers: dict[str, Any], capsys: Captured
) -> None:
    with fake_daemon({"invite": answers["invite"] | {"near": near}}):
        assert invoke(["invite"]) == 0
    out, err = capsys.readouterr()
    assert out == "ABCDE-FGHJK\n", "only the code, for scripts"
    first, *more = err.splitlines()
    assert first == "on the other machine: run `shoal join` and enter this code"
    assert len(more) == (words is not None)
    assert words is None or (words in more[0] and "`shoal invite --address IP:PORT`" in more[0])


def test_version(capsys: Captured) -> None:
    assert invoke(["--version"]) == 0
    assert re.fullmatch(r"shoal \d+\.\d+\.\d+\n", capsys.readouterr().out)


def failing(error: BaseException) -> Any:
    def invoke_(_context: object) -> None:
        raise error

    return invoke_


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KeyboardInterrupt(), 130, None),
        (click.Abort(), 130, None),
        (BaseExceptionGroup("", [KeyboardInterrupt(), ValueError()]), 130, None),
        (CommandError("locked", "it is locked", hint="look"), 11, "it is locked"),
        (ExceptionGroup("", [CommandError("x", "it fails", hint="look")]), 1, "it fails"),
        (CommandError("x", "it has no hint of its own"), 1, "it has no hint"),
        (OSError(errno.ENOSPC, "No space left on device", "/f"), 1, "`/f`: no space left"),
        (OSError(errno.EIO, "Input/output error", "/f"), 1, "`/f`: input/output"),
        (ValueError("boom"), 1, "internal: ValueError: boom"),
        (ExceptionGroup("", [CommandError("x", "y"), ValueError("boom")]), 1, "internal: ValueErr"),
    ],
)
def test_exit_codes_of_exceptions(
    error: BaseException, code: int, message: str | None, capsys: Captured,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(shoal, "invoke", failing(error))
    assert invoke(["status"]) == code
    err = capsys.readouterr().err
    assert "Traceback" not in err
    if message is None:
        assert err == "", "no output"
    else:
        assert_two_lines(err, message, ".")
    reports = list(tmp_path.glob("shoal-error-*.txt"))
    assert bool(reports) == ("internal" in err)
    if reports:
        assert "Traceback" in reports[0].read_text()
        assert str(reports[0]) in err


def test_errors_are_coloured_on_a_terminal_only(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    invoke(["status"])
    assert "\x1b[31merror\x1b[0m: " in capsys.readouterr().err
    monkeypatch.setenv("NO_COLOR", "1")
    invoke(["status"])
    assert "\x1b" not in capsys.readouterr().err


def shell(*args: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal.cli.main", *args],
        capture_output=True, text=True, timeout=30, **more,
    )  # fmt: skip


def test_as_a_process(tmp_path: Path) -> None:
    ended = shell("status", "--data", str(tmp_path))
    assert ended.returncode == 10
    assert ended.stdout == ""
    assert ended.stderr.startswith("error: no daemon is running")


def test_a_broken_pipe_is_quiet() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "--help"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(10) == 0
    process.stderr.close()


def test_ctrl_c_is_130_and_silent(tmp_path: Path) -> None:
    """A daemon accepts and never replies; the command waits and is interrupted."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "control.sock"))
    listener.listen()
    process = subprocess.Popen(
        [sys.executable, "-m", "shoal.cli.main", "run", "tiny", "x", "--data", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    connection, _ = listener.accept()
    assert json.loads(connection.recv(65536))["op"] == "run"
    time.sleep(0.05)
    os.kill(process.pid, 2)
    out, err = process.communicate(timeout=10)
    connection.close()
    listener.close()
    assert (process.returncode, out, err) == (130, b"", b"")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from shoal.cli.main import invoke; invoke(['--help']); "
        "heavy = {'torch', 'libp2p', 'trio', 'rich', 'numpy', 'cryptography'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 0, ended.stderr


def test_catch_all_has_a_reason() -> None:
    """This process has one catch-all, with a reason."""
    assert "except Exception" in Path(edge.__file__).read_text()
