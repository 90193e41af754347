"""Options that several commands share, and the parsing of their values."""

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


NodeOption = str | bool | tuple[str, ...] | None
"""Value of an option of `shoal node` and `shoal join`. None means that it was not given."""


class TextOptions(TypedDict):
    """Values of the options that `shoal run` and `shoal job submit` share. They control the
    generation of text."""

    max_tokens: int | None
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    seed: int | None
    stop: tuple[str, ...]
    raw: bool


def default_data() -> Path:
    """Return the default data folder, which follows the convention of the platform."""
    from platformdirs import user_data_path

    return user_data_path("shoal")


def data_flag(data: Path) -> str:
    """Return ` --data DIR`, to be appended to a command in a hint. Returns "" for the default
    folder."""
    import shlex

    return "" if data == default_data() else f" --data {shlex.quote(str(data))}"


def _data_path(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path:
    return Path(os.path.abspath(os.path.expanduser(value))) if value else default_data()


def data_option(command: Command) -> Command:
    """Add the option `--data DIR`, which every command has, to a command."""
    return click.option(
        "--data",
        envvar="SHOAL_DATA",
        metavar="DIR",
        callback=_data_path,
        help="Data folder of the node (default: the platform's; SHOAL_DATA).",
    )(command)


def json_option(command: Command) -> Command:
    """Add the option `--json` to a command whose output a program may read."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def example(*lines: str) -> str:
    """Return example commands in the form in which click prints them at the end of the help."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


class Commands(click.Group):
    """A group of commands. For a mistyped command, the error suggests the one with the nearest
    name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.5)
            hint = f"did you mean `{ctx.command_path} {near[0]}`?" if near else None
            raise UnknownCommand(f"no such command `{args[0]}`", ctx, hint)
        return super().resolve_command(ctx, args)


class UnknownCommand(click.UsageError):
    """A command does not exist. The hint names the one with the nearest name."""

    def __init__(self, message: str, ctx: click.Context, hint: str | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


class Misplaced(click.UsageError):
    """An argument or option does not go with the others. The hint says what to do."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message, click.get_current_context())
        self.hint = hint


class Misused(click.BadParameter):
    """The value of an option is invalid. The hint describes valid values."""

    def __init__(
        self,
        message: str,
        hint: str | None,
        context: click.Context | None,
        parameter: click.Parameter | None,
    ) -> None:
        super().__init__(message, context, parameter)
        self.hint = hint


class _Value(click.ParamType[str]):
    """Type of the option for a setting. The text is checked by the parser of that setting."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        from ..node.settings.settings import KEYS, Setting
        from ..transport.errors import ShoalError

        try:
            return Setting.of(KEYS[self.name], value, "option").text or DEFAULT
        except ShoalError as error:
            raise Misused(error.message, error.hint, context, parameter) from None


DEFAULT = "default"  # this text as a value removes the stored setting


def _setting(
    name: str, metavar: str, help: str, *, multiple: bool = False
) -> Callable[[Command], Command]:
    return click.option(
        f"--{name}", type=_Value(name), metavar=metavar, help=help, multiple=multiple
    )


def _switch(name: str, help: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}/--no-{name}", default=None, help=help)


def node_options(command: Command) -> Command:
    """Add the options that `shoal node` and `shoal join` share to a command."""
    options = [
        data_option,
        _setting("listen", "ADDR", "Address to listen on: IP:PORT, IP, or :PORT (default: all "
                 "addresses, and a free port that is stored for later starts)."),
        _setting("bootstrap", "ADDR", "Address of a node to connect to first; may be repeated.",
                 multiple=True),
        _setting("model", "NAME", "Serve this model: a name, NAME@HASH or a root (default: what "
                 "the swarm needs; without a swarm, the embedded model)."),
        _setting("layers", "A:B", "Serve layers A to B-1 (default: chosen by memory and need)."),
        _setting("memory", "SIZE", "Memory for layers and KV caches, e.g. 4GiB (default: half of "
                 "the free memory). The programs take about 450 MiB more; `shoal status` shows "
                 "their use. A layer of a model of 1 billion parameters needs about 150MiB."),
        _setting("disk", "SIZE", "Disk limit for models and blobs, e.g. 200GiB; unused downloads "
                 "are evicted first. none: no limit. auto, the default: half of the free space, "
                 "at most 100 GiB, and 5 % or 1 GiB stay free; what you add or request by name "
                 "may exceed it."),
        _setting("threads", "N", "Threads of the engine (default: one per core)."),
        _setting("device", "NAME", "Device to compute on: cpu, or a graphics card that `shoal "
                 "doctor` shows, such as cuda:0; may be repeated (default: all cards, else the "
                 "CPU).", multiple=True),
        _setting("dtype", "[auto|float32|bfloat16]",
                 "Precision of the served layers (default: auto)."),
        _setting("state", "[auto|all|needed]", "Store all shared state, or only what this node "
                 "needs. auto, the default: all if memory and free disk are at least 4 GiB each."),
        _setting("links", "N", "Dial members of the swarm until there are N links (default: 8, or "
                 "16 if this node would not see all members otherwise)."),
        _setting("relay", "RATE", "Relay traffic of other nodes at up to RATE bytes per second, "
                 "e.g. 1MB, or none (default: 64kB while other nodes can reach this one)."),
        _switch("port-443", "Also listen on TCP port 443, which nearly every network allows "
                "(default: while other nodes can reach this one and the port is free)."),
        _setting("up", "RATE", "Upload limit in bytes or bits per second, e.g. 500kB or 4Mbit "
                 "(default: no limit)."),
        _setting("down", "RATE", "Download limit, like --up (default: no limit)."),
        _switch("lan", "Announce this node on its local network and look for others there "
                "(default: yes)."),
        _switch("port-mapping", "Ask the router to open a port: UPnP, NAT-PMP, PCP (default: "
                "yes)."),
        _switch("udp", "Use UDP as well as TCP (default: yes)."),
        _setting("libp2p-relay", "ADDR", "Also accept peers through this libp2p relay; "
                 "may be repeated.", multiple=True),
        _setting("browsers", "IP:PORT", "Accept browsers on this address, with a page for joining "
                 "and WebRTC (default: none)."),
        _setting("api", "PORT", "Port on 127.0.0.1 of the OpenAI-compatible HTTP API, 0 for a free "
                 "one, or no for none (default: 8462). `shoal api` shows how to use it."),
        _switch("measure", "Measure the speed of this machine, in a few seconds, at the first "
                "start and when its hardware has changed (default: yes)."),
        _switch("jobs", "Do jobs of other nodes, only when no interactive request "
                "is running here; they cost computing time, electricity and some traffic "
                "(default: while this node serves layers)."),
        click.option("--private", is_flag=True,
                     help="Create a private swarm, which only invited nodes can join."),
        click.option("--parent-fd", type=int, hidden=True),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def given_settings(options: Mapping[str, NodeOption]) -> dict[str, str]:
    """Return the options that the user gave, as texts by the key of their setting."""
    given = {}
    for name, value in options.items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, tuple):
            value = " ".join(value)
        if value:
            given[name.replace("_", "-")] = value
    return given
