"""Options that several commands share, and how their values are read."""

import difflib
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..state.defaults import MEMBER_LINKS

if TYPE_CHECKING:
    from ..node.config import NodeConfig
    from ..transport.address import Address

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


class _Parsed(click.ParamType[Any]):
    """A value read by one of our parsers, whose errors become usage errors."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Any:
        if not isinstance(value, str):
            return value
        from ..transport.errors import ShoalError

        try:
            return self.parse(value)
        except ShoalError as error:
            raise Misused(error.message, error.hint, context, parameter) from None

    def parse(self, text: str) -> Any:
        from ..node import config
        from ..transport.address import Address

        parsers: dict[str, Callable[[str], Any]] = {
            "model": config.parse_model,
            "layers": config.parse_layers,
            "memory": config.parse_memory,
            "disk": config.parse_disk,
            "rate": config.parse_rate,
            "relay": config.parse_relay,
            "listen": config.parse_listen,
            "browsers": config.parse_browsers,
            "address": Address.parse,
            "libp2p": config.parse_libp2p_relay,
        }
        return parsers[self.name](text)


def node_options(command: Command) -> Command:
    """What `shoal node` and `shoal join` both take."""
    options = [
        data_option,
        click.option("--listen", type=_Parsed("listen"), metavar="ADDR",
                     help="Listen there: IP:PORT, IP, or :PORT (default: all addresses, "
                     "a free port that is remembered)."),
        click.option("--bootstrap", type=_Parsed("address"), metavar="ADDR", multiple=True,
                     help="A node to learn of the others from; may be repeated."),
        click.option("--model", type=_Parsed("model"), metavar="NAME",
                     help="Serve this model: a name, NAME@HASH "
                     "or a root (default: what the swarm needs; alone, the embedded one)."),
        click.option("--layers", type=_Parsed("layers"), metavar="A:B",
                     help="Serve layers A to B-1 (default: chosen by memory and need)."),
        click.option("--memory", type=_Parsed("memory"), metavar="SIZE",
                     help="Memory to offer, e.g. 4GiB (default: measured)."),
        click.option("--disk", type=_Parsed("disk"), metavar="SIZE", default="auto",
                     show_default=True,
                     help="Let models and blobs take so much of the disk, e.g. 200GiB; what was "
                     "fetched and is not used is evicted. none: no limit. auto: half of what is "
                     "free, at most 100 GiB, and 5 % or 1 GiB stay free; what you add or ask for "
                     "by name may take more."),
        click.option("--threads", type=click.IntRange(1, 1024), metavar="N",
                     help="Threads of the engine (default: one a core)."),
        click.option("--dtype", type=click.Choice(["auto", "float32", "bfloat16"]),
                     default="auto", show_default=True, help="Precision of the layers held."),
        click.option("--state", type=click.Choice(["auto", "all", "needed"]),
                     default="auto", show_default=True,
                     help="Keep all that the nodes say of themselves, or what this one needs; "
                     "auto: all with 4 GiB of memory and of free disk."),
        click.option("--links", type=click.IntRange(2, 512), metavar="N", default=MEMBER_LINKS,
                     show_default=True,
                     help="Dial members of the swarm up to so many links."),
        click.option("--relay", type=_Parsed("relay"), metavar="RATE",
                     help="Relay traffic of other nodes at up to RATE bytes per second, e.g. "
                     "1MB, or none (default: 64kB while other nodes can reach this one)."),
        click.option("--port-443/--no-port-443", "port_443", default=None,
                     help="Also listen on TCP port 443, which nearly every network lets out "
                     "(default: while other nodes can reach this one and the port is free)."),
        click.option("--up", type=_Parsed("rate"), metavar="RATE",
                     help="Send at most so many bytes a second, e.g. 500kB or 4Mbit "
                     "(default: no limit)."),
        click.option("--down", type=_Parsed("rate"), metavar="RATE",
                     help="Receive at most so many bytes a second (default: no limit)."),
        click.option("--no-lan", is_flag=True,
                     help="Neither announce this node on the own network nor look for others."),
        click.option("--no-port-mapping", is_flag=True,
                     help="Do not ask the router to open a port (UPnP, NAT-PMP, PCP)."),
        click.option("--no-udp", is_flag=True, help="Use TCP only."),
        click.option("--libp2p-relay", "libp2p_relays", type=_Parsed("libp2p"), metavar="ADDR",
                     multiple=True, help="Be reached through this relay of the libp2p kind as "
                     "well; may be repeated."),
        click.option("--browsers", type=_Parsed("browsers"), metavar="IP:PORT",
                     help="Let browsers in there (default: none): a page to join by, and WebRTC."),
        click.option("--jobs/--no-jobs", "jobs", default=None,
                     help="Do jobs that anybody in the swarm submits, one at a time and only while "
                     "nobody waits for an answer of this node; they cost its computing time, its "
                     "electricity and some traffic (default: while it serves layers)."),
        click.option("--private", is_flag=True,
                     help="Found a private swarm: only invited nodes are let in."),
        click.option("--parent-fd", type=int, hidden=True),
    ]  # fmt: skip
    for option in reversed(options):
        command = option(command)
    return command


def node_config(
    *,
    data: Path,
    listen: tuple[str, int | None] | None,
    bootstrap: "tuple[Address, ...]",
    no_lan: bool,
    no_port_mapping: bool,
    no_udp: bool,
    **more: Any,
) -> "NodeConfig":
    """The daemon's settings out of what the person typed."""
    import tempfile

    from ..node.config import NodeConfig
    from ..node.defaults import LISTEN_ADDRESS
    from ..transport.ladder import Rungs

    host, port = listen or (LISTEN_ADDRESS, None)
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    rungs = Rungs(udp=not no_udp, lan=not no_lan, mapping=not no_port_mapping)
    return NodeConfig(
        data=data,
        listen=host,
        port=port,
        bootstrap=bootstrap,
        rungs=rungs,
        runtime=runtime,
        **more,
    )
