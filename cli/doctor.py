"""`shoal doctor`: how this node reaches others and they it, and what its owner could change."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from . import defaults, render
from .options import data_option, example, json_option

LOCAL = ("loopback", "offline")  # nobody else can reach such a node, so nobody measures it
RUNG = "rung-"  # a finding of that code is about one way to reach others


@click.command(
    short_help="Explain how this node is reached.",
    epilog=example("shoal doctor", "shoal doctor --again", "shoal doctor --json"),
)
@data_option
@click.option("--again", is_flag=True, help="Measure anew, which takes 2 to 20 seconds.")
@json_option
def doctor(data: Path, again: bool, as_json: bool) -> None:
    """Explain how others reach this node, which ways work, and what could be changed.

    What stands in the way is measured by other nodes of the swarm; no central service is asked.
    Waits up to 25 seconds for the first measurement of a node that has just started.
    """
    from .client import request

    answer = request(data, "doctor", again=again, on_event=_tell)
    if as_json:
        click.echo(render.as_json(answer))
        return
    width = min(max(shutil.get_terminal_size().columns, 40), defaults.TEXT_WIDTH)
    click.echo("\n".join(report(answer, width)))


def _tell(event: dict[str, Any]) -> None:
    if event.get("event") == "measuring":
        note = "measuring with the help of other nodes, up to 25 s …"
        print(render.coloured(note, "dim", sys.stderr), file=sys.stderr, flush=True)


def report(answer: dict[str, Any], width: int) -> Iterator[str]:
    """The answer of `doctor` as lines of at most `width` characters."""
    yield from _wrapped("reachable: ", answer["verdict"]["sentence"], width)
    general = [each for each in answer["findings"] if not each["code"].startswith(RUNG)]
    rungs = [each for each in answer["findings"] if each["code"].startswith(RUNG)]
    if general:
        yield from ("", "what was found")
    for each in general:
        yield from _wrapped("  ", each["sentence"], width)
        if each["hint"]:
            yield from _wrapped("    → ", each["hint"], width)
    if rungs:
        yield from ("", "ways to other nodes")
        yield from (f"  {line}" for line in render.fields(list(map(_rung, rungs))).splitlines())
    if answer["verdict"]["code"] not in LOCAL:
        yield from ("", *_wrapped("", _measured(answer), width))


def _rung(finding: dict[str, Any]) -> tuple[str, str]:
    name, _, state = render.safe(finding["sentence"], 200).partition(": ")
    return name, state


def _measured(answer: dict[str, Any]) -> str:
    if answer["measured_s"] is None:
        linked = "nobody is linked" if not answer["links"] else "nobody was asked"
        return f"not measured yet: {linked}"
    peers = answer["observers"]
    helpers = "no other node" if not peers else render.count(peers, "node")
    ago = render.duration(answer["measured_s"])
    return f"measured {ago} ago with the help of {helpers}; `shoal doctor --again` measures anew"


def _wrapped(start: str, text: str, width: int) -> list[str]:
    """A sentence after `start`, its further lines as far to the right."""
    shown = render.sentence(text)
    indent = " " * len(start)
    return textwrap.wrap(
        shown, width, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False
    ) or [start.rstrip()]
