"""Settings: their keys, their file, and the origin of each value."""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.cli.commands import node as commands
from shoal.node import defaults
from shoal.node.control.messages.encoding import encode
from shoal.node.defaults import API_PORT
from shoal.node.errors import BadSetting, NodeError
from shoal.node.settings.applying import LIVE
from shoal.node.settings.config import DataFolder, NodeConfig
from shoal.node.settings.settings import (
    HEAD,
    KEYS,
    Setting,
    Settings,
    SettingsFile,
    key_named,
    read_file,
    remember,
    set_key,
    view,
)
from shoal.transport.errors import ShoalError
from shoal.transport.host.real import RealHost
from shoal.transport.strategies.dialer import Strategies

HOST = RealHost()
SPEC = Path(__file__).resolve().parents[3] / "docs" / "spec" / "settings.md"


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path)


def written(folder: DataFolder, text: str) -> SettingsFile:
    folder.settings.write_text(text)
    return read_file(HOST, folder)


def test_the_default_of_every_key_is_the_daemon_s() -> None:
    config = NodeConfig(Path("/x"), api=API_PORT, measure=True)  # as `shoal node` runs it
    for key in KEYS.values():
        assert key.change(config, key.default) == config, key.name


def test_every_key_has_an_option_and_is_specified() -> None:
    options = {
        name.removeprefix("--")
        for command in (commands.node, commands.join)
        for option in command.params
        for name in option.opts
    }
    apart = {"data", "private", "yes", "parent-fd", "file", "code"}
    assert options - apart == set(KEYS)
    row = r"^\| `([a-z0-9-]+)` \|.*\| (at once|next start) \|$"
    listed = re.findall(row, SPEC.read_text(), re.M)
    assert dict(listed) == {
        key.name: "at once" if key.live else "next start" for key in KEYS.values()
    }


def test_every_live_key_reaches_its_part() -> None:
    assert {key.name for key in KEYS.values() if key.live} == set(LIVE)


def test_options_are_stored_and_take_precedence(folder: DataFolder) -> None:
    first = remember(HOST, folder, {"memory": "1GiB", "lan": "no", "up": "4Mbit"})
    assert {s.origin for s in first.given.values()} == {"option"}
    second = remember(HOST, folder, {"memory": "2GiB", "up": "default"})
    assert (second.of("memory").value, second.of("memory").origin) == (2 << 30, "option")
    assert (second.of("lan").value, second.of("lan").origin) == (False, "file")
    assert (second.of("up").value, second.of("up").origin) == (None, "default")
    config = remember(HOST, folder, {}).applied(NodeConfig(folder.path))
    assert (config.memory, config.strategies, config.up) == (2 << 30, Strategies(lan=False), None)
    assert folder.settings.read_text() == f"{HEAD}memory = 2GiB\nlan = no\n"
    assert folder.settings.stat().st_mode & 0o777 == 0o600


def test_a_start_without_options_writes_nothing(folder: DataFolder) -> None:
    assert remember(HOST, folder, {}) == Settings()
    assert not folder.settings.exists()


def test_lines_written_by_a_person_are_preserved(folder: DataFolder) -> None:
    written(folder, "# mine\n\n  memory=1GiB  \n# about links\nlinks = 20\n")
    set_key(HOST, folder, "memory", "3GiB")
    set_key(HOST, folder, "disk", "none")
    set_key(HOST, folder, "links", None)
    text = "# mine\n\nmemory = 3GiB\n# about links\ndisk = none\n"
    assert folder.settings.read_text() == text


@pytest.mark.parametrize(
    ("text", "line", "message", "hint"),
    [
        ("memory = 4\n", 1, "`memory`: `4` has no unit", "unset memory`"),
        ("# x\nmemroy = 4GiB\n", 2, "`memroy`: there is no setting", "did you mean `memory`"),
        ("up = 1MB\nlinks\n", 2, "expected `KEY = VALUE`, got `links`", "edit `"),
        ("= 4\n", 1, "expected `KEY = VALUE`", "edit `"),
        ("up = 1MB\n\nup = 2MB\n", 3, "`up` is already set in line 1", "edit `"),
        ("links = 1\n", 1, "`links`: `1` is not a whole number from 2 to 512", "unset links`"),
        ("lan = \x1b[2J\n", 1, "`lan`: expected 1 to 2000 printable characters", "unset lan`"),
        ("lan =\n", 1, "`lan`: expected 1 to 2000 printable characters", "unset lan`"),
        ("model = " + "m" * 3000 + "\n", 1, "`model`: expected 1 to 2000", "unset model`"),
        ("bootstrap = 1.2.3.4:1 nonsense\n", 1, "`bootstrap`: ", "unset bootstrap`"),
    ],
)  # fmt: skip
def test_errors_name_file_line_and_key(
    folder: DataFolder, text: str, line: int, message: str, hint: str
) -> None:
    file = written(folder, text)
    with pytest.raises(BadSetting) as raised:
        file.settings()
    assert raised.value.message.startswith(f"{folder.settings}:{line}: {message}")
    assert hint in str(raised.value.hint)
    with pytest.raises(BadSetting):
        remember(HOST, folder, {"threads": "1"})
    assert folder.settings.read_text() == text, "the file is not overwritten"


def test_invalid_line_can_be_removed_and_replaced(folder: DataFolder) -> None:
    written(folder, "memory = 4\nfoo = 3\n")
    assert set_key(HOST, folder, "foo", None) is None
    assert remember(HOST, folder, {"memory": "4GiB"}).of("memory").value == 4 << 30
    with pytest.raises(BadSetting, match="there is no setting `foo`"):
        set_key(HOST, folder, "foo", None)
    with pytest.raises(BadSetting, match="there is no setting `foo`"):
        set_key(HOST, folder, "foo", "4")


def test_values_that_are_empty_or_too_long(folder: DataFolder) -> None:
    folder.settings.write_bytes(b"lan = no\nup = \xff\n")
    with pytest.raises(BadSetting, match=r"settings\.conf:2: this is not UTF-8 text"):
        read_file(HOST, folder)
    folder.settings.write_bytes(b"#" * (defaults.SETTINGS_FILE_LIMIT + 1))
    with pytest.raises(ShoalError):
        read_file(HOST, folder)
    folder.settings.unlink()
    folder.settings.mkdir()
    with pytest.raises(NodeError, match="cannot use"):
        read_file(HOST, folder)


def test_random_bytes_are_read_or_refused(folder: DataFolder) -> None:
    for seed in range(200):
        folder.settings.write_bytes(os.urandom(seed) + b"\nlan = yes\n")
        try:
            read_file(HOST, folder).settings()
        except BadSetting as error:
            assert str(folder.settings) in error.message


def test_view_shows_current_and_next_values(folder: DataFolder) -> None:
    now = remember(HOST, folder, {"memory": "1GiB"})
    set_key(HOST, folder, "memory", "2GiB")
    shown = {each.key: encode(each) for each in view(HOST, folder, now).settings}
    assert list(shown) == list(KEYS)
    assert shown["memory"] == {
        "key": "memory", "text": "1GiB", "origin": "option", "unit": "bytes, as 4GiB",
        "default": "half of what is free", "applies": "start", "next": "2GiB",
    }  # fmt: skip
    assert (shown["up"]["text"], shown["up"]["origin"]) == (None, "default")
    stopped = {each.key: encode(each) for each in view(HOST, folder, None).settings}
    assert (stopped["memory"]["text"], stopped["memory"]["origin"]) == ("2GiB", "file")


def test_settings_are_never_changed_in_place() -> None:
    before = Settings()
    after = before.with_(Setting.of(key_named("links"), "20", "command"))
    assert before == Settings() and after.of("links").value == 20
    assert after.with_(Setting.of(key_named("links"), "default", "command")) == before
    config = NodeConfig(Path("/x"))
    assert after.applied(config) == replace(config, links=20)
