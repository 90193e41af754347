"""`shoal model pull`: fetches a whole model from the nodes that have it."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ... import render
from ...errors import CommandError
from ...options import data_flag, data_option, example, json_option

if TYPE_CHECKING:
    from ....node.control.messages.models import PulledModel, Resolved, VoucherView


@click.command(
    short_help="Get a whole model from other nodes.",
    epilog=example("shoal model pull Llama-3.2-1B@1f2e3d4c", f"shoal model pull {'ab' * 32}"),
)
@click.argument("name")
@data_option
@json_option
def pull(name: str, data: Path, as_json: bool) -> None:
    """Get all of the model NAME from other nodes, and verify every chunk.

    NAME is a name, NAME@HASH with the first digits of the root, or the root. If a name means
    several models, a hash is needed. If the command is interrupted, repeat it to continue where it
    stopped. Needs a running daemon.
    """
    from ....node.control.messages.models import BytesDone, PullModel, Resolved
    from ...client import request
    from ...progress import Bar

    seen = PullProgress(quiet=as_json)
    with Bar("fetching") as bar:

        def on_event(event: Resolved | BytesDone) -> None:
            if isinstance(event, Resolved):
                seen.resolved(event)
            else:
                seen.done, seen.total = event.done, event.total
                bar.show(seen.done, seen.total)

        try:
            answer = request(data, PullModel(name=name), wait=True, on_event=on_event)
        except KeyboardInterrupt:
            raise seen.interrupted(name, data) from None
    click.echo(render.as_json(answer) if as_json else report(answer, data))


class PullProgress:
    """The state of a pull, as its events report it: the progress, and the model that the name
    means."""

    def __init__(self, *, quiet: bool) -> None:
        self.done = self.total = 0
        self._quiet = quiet
        self._root = ""

    def resolved(self, event: "Resolved") -> None:
        """Print which model the name means, and which nodes vouch for it, before the fetch
        starts."""
        self._root = event.root
        if not self._quiet:
            name = event.name or "the model"
            print(
                f"{render.name(name)} is {render.safe(self._root)}, {vouched(event.vouchers)}",
                file=sys.stderr,
            )

    def interrupted(self, name: str, data: Path) -> CommandError:
        """Return the error for Ctrl-C. Its hint has the command that continues the pull."""
        came = f", {render.size(self.done)} of {render.size(self.total)} are here"
        again = name if "@" in name or not self._root else f"{name}@{self._root[:16]}"
        again = self._root if name == self._root[: len(name)] else again
        return CommandError(
            "interrupted",
            f"interrupted{came if self.total else ''}; finished chunks are kept",
            hint=f"`shoal model pull {shlex.quote(again)}{data_flag(data)}` continues from there",
        )


def report(answer: "PulledModel", data: Path) -> str:
    """Format the result of a pull as text."""
    name, peers = render.name(answer.name), answer.peers
    if not peers:
        got = "was here already"
    else:
        nodes = render.count(peers, "node")
        got = f"{render.size(answer.fetched)} from {nodes} in {answer.seconds:.1f} s"
    lines = [f"{name}: {got}, root {render.safe(answer.root, 64)}"]
    lines += dropped(answer.liars)
    lines.append(f"serve it with `shoal node --model {name}{data_flag(data)}`")
    return "\n".join(lines)


def dropped(liars: Sequence[str]) -> list[str]:
    """Return a line that lists peers which sent wrong bytes. Returns no line if `liars` is
    empty."""
    lied = ", ".join(render.short(peer) for peer in liars[:4])
    return [f"dropped for sending wrong bytes: {lied}"] if liars else []


def vouched(vouchers: "Sequence[VoucherView]") -> str:
    """Describe in a few words which nodes vouch for a model's name."""
    if not vouchers:
        return "known only by its hash"
    more = f" and {len(vouchers) - 1} more" if len(vouchers) > 1 else ""
    return f"according to {voucher(vouchers[0])}{more}"


def voucher(one: "VoucherView") -> str:
    """Describe a node that vouches for a model's name, and how this node learned of that."""
    if one.source == "here":
        return "this node"
    if one.source == "members":
        return f"{render.short(one.peer)}, a member"
    return f"{render.short(one.peer)}, {render.duration(one.age_s)} ago"
