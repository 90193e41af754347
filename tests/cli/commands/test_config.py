"""`shoal config`, with and without a daemon."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import invoke
from shoal.node.folder import open_folder
from shoal.node.settings.config import DataFolder
from shoal.node.settings.settings import KEYS
from shoal.transport.host.real import RealHost

from ..conftest import FakeDaemon

SHOWN: dict[str, Any] = {
    "file": "/data/settings.conf", "running": True,
    "settings": [{"key": "memory", "text": "1GiB", "origin": "option", "unit": "bytes, as 4GiB",
                  "default": "half of what is free", "applies": "start", "next": "2GiB"},
                 {"key": "up", "text": None, "origin": "default", "unit": "bytes a second",
                  "default": "no limit", "applies": "live", "next": None}],
}  # fmt: skip


def test_without_a_daemon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["config", "set", "memory", "4GiB"]) == 0
    assert invoke(["config", "set", "bootstrap", "1.2.3.4:1 [::1]:2"]) == 0
    assert "memory: 4GiB, from the next `shoal node --data" in capsys.readouterr().out
    assert (
        "memory = 4GiB\nbootstrap = 1.2.3.4:1 [::1]:2\n" in (tmp_path / "settings.conf").read_text()
    )
    assert invoke(["config", "show", "--json"]) == 0
    out, err = capsys.readouterr()
    shown = {each["key"]: each for each in json.loads(out)["settings"]}
    assert shown["memory"]["text"] == "4GiB" and list(shown) == list(KEYS) and not err
    assert invoke(["config", "show", "memory"]) == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2 and "these apply to the next `shoal node" in err
    assert invoke(["config", "unset", "memory"]) == 0
    assert invoke(["config", "set", "bootstrap", "default"]) == 0
    assert "memory: default" in capsys.readouterr().out
    assert "=" not in (tmp_path / "settings.conf").read_text()


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["set", "memory", "4"], "`4` has no unit", "`shoal config set memory 4GiB`"),
        (["set", "memroy", "4GiB"], "there is no setting `memroy`", "did you mean `memory`?"),
        (["unset", "memroy"], "there is no setting `memroy`", "did you mean `memory`?"),
        (["unset", "nothing"], "there is no setting `nothing`", "`shoal config show` lists"),
        (["show", "x"], "there is no setting `x`", "`shoal config show` lists"),
        (["set", "lan", "\x1b[2J"], "printable characters", "hint: "),
    ],
)
def test_invalid_settings_are_refused(
    words: list[str], error: str, hint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["config", *words]) == 1
    err = capsys.readouterr().err
    assert error in err and hint in err and "\x1b" not in err
    assert not (tmp_path / "settings.conf").exists()


@pytest.mark.trio
async def test_folder_locked_by_another_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The daemon has not opened its socket yet."""
    import trio

    lock = await open_folder(RealHost(), DataFolder(tmp_path))
    try:
        assert await trio.to_thread.run_sync(invoke, ["config", "set", "lan", "no"]) == 11
    finally:
        lock.release()
    assert "another daemon" in capsys.readouterr().err


def test_with_a_daemon(fake_daemon: FakeDaemon, capsys: pytest.CaptureFixture[str]) -> None:
    asked: list[dict[str, Any]] = []

    async def change(request: dict[str, Any], _emit: Any) -> dict[str, Any]:
        asked.append(request)
        return {"key": request["key"], "text": request["text"], "applied": request["key"] == "up"}

    with fake_daemon({"config": SHOWN, "config_set": change}):
        assert invoke(["config", "show"]) == 0
        lines = capsys.readouterr().out.splitlines()
        rows = [" ".join(line.split()) for line in lines]
        assert rows[1] == "memory 1GiB; next 2GiB option at next start bytes, as 4GiB"
        assert rows[2] == "up no limit default at once bytes a second"
        assert max(map(len, lines)) < 100
        assert invoke(["config", "set", "up", "4Mbit"]) == 0
        assert capsys.readouterr().out == "up: 4Mbit, now\n"
        assert invoke(["config", "unset", "memory", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] is None
    assert [(each["key"], each["text"]) for each in asked] == [("up", "4Mbit"), ("memory", None)]
