"""Stored settings of a node: their keys, the origin of each value, and the settings file.

A value has the same text form in the settings file and in the command-line option of the same name.
`Settings` is immutable, so a change returns a new object. Specified in docs/spec/settings.md.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...state.defaults import MEMBER_LINKS, MORE_LINKS
from ...transport.address import Address
from ...transport.errors import ShoalError
from ...transport.host.seam import Host
from .. import defaults
from ..control.messages.settings import Origin, SettingsView, SettingView
from ..errors import BadSetting
from ..folder import disk_errors
from . import values
from .config import DataFolder, NodeConfig

Change = Callable[[NodeConfig, Any], NodeConfig]
DEFAULT = "default"  # this text as a value removes the setting
HEAD = "# Settings of this node, kept by `shoal config` and by the options of `shoal node`.\n"


def _field(name: str) -> Change:
    return lambda config, value: replace(config, **{name: value})


def _strategy(name: str) -> Change:
    return lambda config, value: replace(
        config, strategies=replace(config.strategies, **{name: value})
    )


def _addresses(read: Callable[[str], Address], text: str) -> tuple[Address, ...]:
    return tuple(read(word) for word in text.split())


@dataclass(frozen=True, slots=True)
class Key:
    """One kind of setting. Its command-line option is `--NAME`."""

    name: str
    unit: str
    """Unit or form of the values, as `shoal config show` prints it."""
    read: Callable[[str], Any]
    """Parses the text of a value. Raises BadSetting and TransportError."""
    change: Change
    """Returns a copy of the configuration with a new value."""
    usual: str
    """The default value, described in words."""
    default: Any = None
    live: bool = False
    """Whether a running daemon applies a change at once instead of at its next start."""


def _switch(name: str, usual: str, change: Change, default: bool | None = None) -> Key:
    return Key(name, "yes or no", values.parse_yes, change, usual, default)


def _word(name: str, *words: str) -> Key:
    read = partial(values.parse_word, words=words)
    return Key(name, ", ".join(words), read, _field(name), words[0], words[0])


def _count(
    name: str, least: int, most: int, usual: str, default: int | None, *, live: bool = False
) -> Key:
    read = partial(values.parse_count, least=least, most=most)
    return Key(name, f"{least} to {most}", read, _field(name), usual, default, live)


def _rate(name: str) -> Key:
    read = partial(values.parse_rate, option=name)
    return Key(
        name, "bytes or bits per second, as 4Mbit", read, _field(name), "no limit", live=True
    )


KEYS = {
    key.name: key
    for key in (
        Key("listen", "IP:PORT, IP or :PORT", values.parse_listen,
            lambda config, value: replace(config, listen=value[0], port=value[1]),
            "all addresses, a remembered port", (defaults.LISTEN_ADDRESS, None)),
        Key("bootstrap", "addresses", partial(_addresses, Address.parse),
            _field("bootstrap"), "nodes known from before", ()),
        Key("model", "a name, NAME@HASH or a root", values.parse_model,
            _field("model"), "what the swarm needs"),
        Key("layers", "A:B, B exclusive", values.parse_layers, _field("layers"), "chosen"),
        Key("memory", "bytes, as 4GiB", values.parse_memory,
            _field("memory"), "half of what is free"),
        Key("disk", "bytes, as 200GiB; auto; none", values.parse_disk,
            _field("disk"), "auto", "auto", live=True),
        _count("threads", 1, 1024, "one per core", None),
        Key("device", "auto, cpu or as cuda:0", values.parse_devices, _field("device"),
            "auto", ("auto",)),
        _word("dtype", "auto", "float32", "bfloat16"),
        _word("state", "auto", "all", "needed"),
        _count("links", 2, 512, f"{MEMBER_LINKS}, {MORE_LINKS} if needed", None, live=True),
        Key("relay", "bytes or bits per second, as 1MB; none", values.parse_relay,
            _field("relay"), "64kB while others reach this node"),
        _switch("port-443", "while others reach this node", _field("port_443")),
        _rate("up"),
        _rate("down"),
        _switch("lan", "yes", _strategy("lan"), True),
        _switch("port-mapping", "yes", _strategy("mapping"), True),
        _switch("udp", "yes", _strategy("udp"), True),
        Key("libp2p-relay", "addresses", partial(_addresses, values.parse_libp2p_relay),
            _field("libp2p_relays"), "none", ()),
        Key("browsers", "IP:PORT", values.parse_browsers, _field("browsers"), "none"),
        Key("api", "a port, yes or no", values.parse_api, _field("api"),
            f"port {defaults.API_PORT} on {defaults.API_ADDRESS}", defaults.API_PORT),
        _switch("measure", "yes", _field("measure"), True),
        _switch("jobs", "while this node serves layers", _field("jobs")),
    )
}  # fmt: skip


def key_named(name: str) -> Key:
    """Return the key with this name. Raises BadSetting if there is none; its hint suggests the
    nearest name."""
    key = KEYS.get(name)
    if key is None:
        near = difflib.get_close_matches(name, KEYS, n=1, cutoff=0.6)
        hint = f"did you mean `{near[0]}`?" if near else "`shoal config show` lists the settings"
        raise BadSetting(f"there is no setting `{name}`", hint=hint)
    return key


@dataclass(frozen=True, slots=True)
class Setting:
    """Value of a key: its text, its parsed value and its origin. The text is None for the default
    value."""

    key: Key
    text: str | None = None
    value: Any = None
    origin: Origin = "default"

    @classmethod
    def of(cls, key: Key, text: str, origin: Origin) -> "Setting":
        """Parse the text of a value. The text `default` gives the default value.

        Raises BadSetting or TransportError if the value is invalid.
        """
        text = " ".join(text.split())
        if text == DEFAULT:
            return cls(key, None, key.default)
        if not text or len(text) > defaults.SETTING_LIMIT or not text.isprintable():
            raise BadSetting(
                f"expected 1 to {defaults.SETTING_LIMIT} printable characters on one line"
            )
        return cls(key, text, key.read(text), origin)


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings that differ from the default, by the name of their key."""

    given: Mapping[str, Setting] = field(default_factory=dict)

    def of(self, name: str) -> Setting:
        """Return the setting of this name; it has the default value if none is given."""
        key = KEYS[name]
        return self.given.get(name) or Setting(key, value=key.default)

    def with_(self, *changes: Setting) -> "Settings":
        """Return a copy in which `changes` replace the settings of the same keys. A change to the
        default removes its key."""
        after = {**self.given, **{change.key.name: change for change in changes}}
        return Settings({name: each for name, each in after.items() if each.text is not None})

    def applied(self, config: NodeConfig) -> NodeConfig:
        """Return a copy of `config` with these settings applied. Fields without a setting keep
        their values."""
        for each in self.given.values():
            config = each.key.change(config, each.value)
        return config


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """The lines of the settings file. Changes preserve comments and other lines that the owner
    wrote."""

    path: Path
    lines: tuple[str, ...] = ()

    def texts(self) -> dict[str, tuple[int, str]]:
        """Return (line number, text of the value) for every key in the file.

        Raises BadSetting if a line is malformed or a key appears twice.
        """
        found: dict[str, tuple[int, str]] = {}
        for number, line in enumerate(self.lines, 1):
            bare = line.strip()
            if not bare or bare.startswith("#"):
                continue
            name, equals, text = (part.strip() for part in bare.partition("="))
            if not equals or not name:
                raise self._wrong(number, f"expected `KEY = VALUE`, got `{bare[:80]}`", self._edit)
            if name in found:
                message = f"`{name[:80]}` is already set in line {found[name][0]}"
                raise self._wrong(number, message, self._edit)
            found[name] = number, text
        return found

    def settings(self) -> Settings:
        """Parse the settings of the file. Raises BadSetting if one is invalid; the message names
        the file, the line and the key."""
        checked = []
        for name, (number, text) in self.texts().items():
            try:
                checked.append(Setting.of(key_named(name), text, "file"))
            except ShoalError as error:
                hint = f"`shoal config unset {name}` removes that line; or {self._edit}"
                if name not in KEYS and error.hint:
                    hint = f"{error.hint} {hint}"
                message = f"`{name[:80]}`: {error.message}"
                raise self._wrong(number, message, hint) from None
        return Settings().with_(*checked)

    def changed(self, name: str, text: str | None) -> "SettingsFile":
        """Return a copy with a new value for a key. If `text` is None, the key's line is removed.
        Raises BadSetting if the file is malformed."""
        found = self.texts().get(name)
        new = [] if text is None else [f"{name} = {text}"]
        at = found[0] - 1 if found else len(self.lines)
        lines = [*self.lines[:at], *new, *self.lines[at + 1 :]]
        return replace(self, lines=tuple(lines))

    def encode(self) -> bytes:
        text = "".join(f"{line}\n" for line in self.lines)
        return (text if text.startswith("#") else HEAD + text).encode()

    @property
    def _edit(self) -> str:
        return f"edit `{self.path}`"

    def _wrong(self, line: int, message: str, hint: str) -> BadSetting:
        return BadSetting(f"{self.path}:{line}: {message}", hint=hint)


def read_file(host: Host, folder: DataFolder) -> SettingsFile:
    """Read the settings file. It is empty if it does not exist. Blocks.

    Raises BadSetting if it is not UTF-8, NodeError `disk` if it cannot be read, and HostError if it
    is larger than 64 KiB.
    """
    path = folder.settings
    with disk_errors(folder):
        try:
            data = host.files.read(path, limit=defaults.SETTINGS_FILE_LIMIT)
        except FileNotFoundError:
            data = b""
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadSetting(f"{path}:{line}: this is not UTF-8 text", hint=f"edit `{path}`") from None
    return SettingsFile(path, tuple(lines))


def write_file(host: Host, folder: DataFolder, file: SettingsFile) -> None:
    """Write the settings file. Blocks. Raises NodeError `disk` if that fails."""
    with disk_errors(folder):
        host.files.write(folder.settings, file.encode())


def remember(host: Host, folder: DataFolder, options: Mapping[str, str]) -> Settings:
    """Store the given command-line options in the settings file, and return the settings of this
    start.

    Options take precedence over the file. Blocks; the caller holds the lock of the folder. Raises
    BadSetting if the file or an option is invalid, and NodeError if the disk fails.
    """
    file = read_file(host, folder)
    given = [Setting.of(key_named(name), text, "option") for name, text in options.items()]
    after = file
    for each in given:
        after = after.changed(each.key.name, each.text)
    before = after.settings()  # also checks lines that no option replaces
    if after != file:
        write_file(host, folder, after)
    return before.with_(*given)


def set_key(host: Host, folder: DataFolder, name: str, text: str | None) -> Setting | None:
    """Store a value in the settings file, and return the new setting.

    If `text` is None or `default`, the key is removed. Returns None if a line was removed whose key
    this version does not know. Blocks; the caller holds the lock of the folder. Raises BadSetting
    or TransportError if the value is invalid, and NodeError if the disk fails.
    """
    file = read_file(host, folder)
    if text is None and name not in KEYS:
        if name not in file.texts():
            key_named(name)
        write_file(host, folder, file.changed(name, None))
        return None
    setting = Setting.of(key_named(name), DEFAULT if text is None else text, "command")
    after = file.changed(name, setting.text)
    if after != file:
        write_file(host, folder, after)
    return setting


def view(host: Host, folder: DataFolder, now: Settings | None) -> SettingsView:
    """Describe every setting for `shoal config show`.

    `now` has the settings of the running daemon, or is None if none runs. Blocks.
    """
    file = read_file(host, folder).settings()
    views = (_key_view(key, file.of(key.name), now) for key in KEYS.values())
    return SettingsView(str(folder.settings), now is not None, tuple(views))


def _key_view(key: Key, kept: Setting, now: Settings | None) -> SettingView:
    """Describe one setting.

    `text` is the daemon's current value or, if no daemon runs, the value at the next start. It is
    None for the default.
    """
    holds = kept if now is None else now.of(key.name)
    return SettingView(
        key=key.name,
        text=holds.text,
        origin=holds.origin,
        unit=key.unit,
        default=key.usual,
        applies="live" if key.live else "start",
        next=kept.text,
    )
