"""Options that several commands share, and how their values are read."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def default_data() -> Path:
    """The data folder by the platform's convention."""
    from platformdirs import user_data_path

    return user_data_path("shoal")


def data_flag(data: Path) -> str:
    """` --data DIR` as a hint's command needs it, or nothing where it is the usual folder."""
    import shlex

    return "" if data == default_data() else f" --data {shlex.quote(str(data))}"


def _data_path(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path:
    return Path(os.path.abspath(os.path.expanduser(value))) if value else default_data()


def data_option(command: Command) -> Command:
    """`--data DIR`, on every command."""
    return click.option(
        "--data",
        envvar="SHOAL_DATA",
        metavar="DIR",
        callback=_data_path,
        help="Data folder of the node (default: the platform's; SHOAL_DATA).",
    )(command)


def json_option(command: Command) -> Command:
    """`--json`, where a program may read the answer."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")(command)


def example(*lines: str) -> str:
    """The end of a command's help: what a person would type."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


class Commands(click.Group):
    """A group of commands; a mistyped command is answered with the nearest one."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], self.commands, n=1, cutoff=0.5)
            hint = f"did you mean `{ctx.command_path} {near[0]}`?" if near else None
            raise UnknownCommand(f"no such command `{args[0]}`", ctx, hint)
        return super().resolve_command(ctx, args)


class UnknownCommand(click.UsageError):
    """A command that does not exist, with the nearest that does."""

    def __init__(self, message: str, ctx: click.Context, hint: str | None) -> None:
        super().__init__(message, ctx)
        self.hint = hint


class Misused(click.BadParameter):
    """A value that cannot be understood, with what could be written instead."""

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
    """The text of a setting, checked by the setting's own reader."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> str:
        from ..node.settings import KEYS, Setting
        from ..transport.errors import ShoalError

        try:
            return Setting.of(KEYS[self.name], value, "option").text or DEFAULT
        except ShoalError as error:
            raise Misused(error.message, error.hint, context, parameter) from None


DEFAULT = "default"  # as a value: forget what was kept


def _setting(name: str, metavar: str, help: str, **more: Any) -> Callable[[Command], Command]:
    return click.option(f"--{name}", type=_Value(name), metavar=metavar, help=help, **more)


def _switch(name: str, help: str) -> Callable[[Command], Command]:
    return click.option(f"--{name}/--no-{name}", default=None, help=help)


def node_options(command: Command) -> Command:
    """What `shoal node` and `shoal join` both take."""
    options = [
        data_option,
        _setting("listen", "ADDR", "Listen there: IP:PORT, IP, or :PORT (default: all addresses, "
                 "a free port that is remembered)."),
        _setting("bootstrap", "ADDR", "A node to learn of the others from; may be repeated.",
                 multiple=True),
        _setting("model", "NAME", "Serve this model: a name, NAME@HASH or a root (default: what "
                 "the swarm needs; alone, the embedded one)."),
        _setting("layers", "A:B", "Serve layers A to B-1 (default: chosen by memory and need)."),
        _setting("memory", "SIZE", "Memory for layers and the state of answers, e.g. 4GiB "
                 "(default: half of what is free). The programs take about 450 MiB beside it; "
                 "`shoal status` counts them. A layer of a model of 1 billion parameters needs "
                 "about 150MiB."),
        _setting("disk", "SIZE", "Let models and blobs take so much of the disk, e.g. 200GiB; "
                 "what was fetched and is not used is evicted. none: no limit. auto, the default: "
                 "half of what is free, at most 100 GiB, and 5 % or 1 GiB stay free; what you add "
                 "or ask for by name may take more."),
        _setting("threads", "N", "Threads of the engine (default: one a core)."),
        _setting("dtype", "[auto|float32|bfloat16]",
                 "Precision of the layers held (default: auto)."),
        _setting("state", "[auto|all|needed]", "Keep all that the nodes say of themselves, or what "
                 "this one needs; auto, the default: all with 4 GiB of memory and of free disk."),
        _setting("links", "N", "Dial members of the swarm until there are N links (default: 8, and "
                 "16 where this node would not see all members otherwise)."),
        _setting("relay", "RATE", "Relay traffic of other nodes at up to RATE bytes per second, "
                 "e.g. 1MB, or none (default: 64kB while other nodes can reach this one)."),
        _switch("port-443", "Also listen on TCP port 443, which nearly every network lets out "
                "(default: while other nodes can reach this one and the port is free)."),
        _setting("up", "RATE", "Send at most so many bytes a second, e.g. 500kB or 4Mbit "
                 "(default: no limit)."),
        _setting("down", "RATE", "Receive at most so many bytes a second (default: no limit)."),
        _switch("lan", "Announce this node on the own network and look for others (default: yes)."),
        _switch("port-mapping", "Ask the router to open a port: UPnP, NAT-PMP, PCP (default: "
                "yes)."),
        _switch("udp", "Use UDP beside TCP (default: yes)."),
        _setting("libp2p-relay", "ADDR", "Be reached through this relay of the libp2p kind as "
                 "well; may be repeated.", multiple=True),
        _setting("browsers", "IP:PORT", "Let browsers in there (default: none): a page to join "
                 "by, and WebRTC."),
        _switch("jobs", "Do jobs of any node of the swarm, one at a time and only while no request "
                "waits for this node; they cost its computing time, its electricity and some "
                "traffic (default: while it serves layers)."),
        click.option("--private", is_flag=True,
                     help="Found a private swarm: only invited nodes are let in."),
        click.option("--parent-fd", type=int, hidden=True),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def given_settings(options: dict[str, Any]) -> dict[str, str]:
    """The settings among the options that a person typed, as texts by key."""
    given = {}
    for name, value in options.items():
        if isinstance(value, bool):
            value = "yes" if value else "no"
        elif isinstance(value, tuple):
            value = " ".join(value)
        if value:
            given[name.replace("_", "-")] = value
    return given
