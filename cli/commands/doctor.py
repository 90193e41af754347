"""`shoal doctor`: explains how this node and other nodes reach each other, what it computes with,
and what its owner can change."""

import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import defaults, render
from ..options import data_option, example, json_option
from .share import share_line
from .status import device_name, not_chosen, rate, speed_words

if TYPE_CHECKING:
    from ...node.control.messages.machine import MachineView
    from ...node.control.messages.reach import DiagnosisView, Measuring, ReachabilityView

LOCAL = ("loopback", "offline")  # verdicts for which other nodes cannot make a measurement
STRATEGY = "strategy-"  # prefix of the codes of findings about one strategy


@click.command(
    short_help="Explain how other nodes reach this one.",
    epilog=example("shoal doctor", "shoal doctor --again", "shoal doctor --json"),
)
@data_option
@click.option("--again", is_flag=True, help="Measure again, which takes 2 to 20 seconds.")
@json_option
def doctor(data: Path, again: bool, as_json: bool) -> None:
    """Explain how other nodes reach this one, which strategies work, and what you can change. Name
    the devices that it computes on, how fast they are, and why a graphics card is not used.

    Other nodes of the swarm measure the reachability; no central service is involved. Waits up to
    25 seconds for the first measurement of a node that has just started.
    """
    from ...node.control.messages.reach import Diagnose
    from ..client import request

    answer = request(data, Diagnose(again=again), on_event=_tell)
    if as_json:
        click.echo(render.as_json(answer))
        return
    width = min(max(shutil.get_terminal_size().columns, 40), defaults.TEXT_WIDTH)
    click.echo("\n".join(report(answer, width)))


def _tell(_event: "Measuring") -> None:
    note = "measuring with the help of other nodes, up to 25 s …"
    print(render.coloured(note, "dim", sys.stderr), file=sys.stderr, flush=True)


def report(answer: "ReachabilityView", width: int) -> Iterator[str]:
    """Yield the lines of the report, each of at most `width` characters."""
    yield from _wrapped("reachable: ", answer.verdict.sentence, width)
    general = [each for each in answer.findings if not each.code.startswith(STRATEGY)]
    strategies = [each for each in answer.findings if each.code.startswith(STRATEGY)]
    if general:
        yield from ("", "findings")
    for each in general:
        yield from _wrapped("  ", each.sentence, width)
        if each.hint:
            yield from _wrapped("    → ", each.hint, width)
    if strategies:
        yield from ("", "strategies to reach other nodes")
        yield from (
            f"  {line}" for line in render.fields(list(map(_strategy, strategies))).splitlines()
        )
    if answer.verdict.code not in LOCAL:
        yield from ("", *_wrapped("", _measured(answer), width))
    yield from _devices(answer.machine, width)
    if answer.shares:
        yield from ("", *_wrapped("", f"shared with {answer.audience}", width))
    for share in answer.shares:
        yield from _wrapped("  ", share_line(share), width, indent=4)


def _devices(machine: "MachineView", width: int) -> Iterator[str]:
    """Yield the lines about what this node computes with."""
    yield from ("", "devices")
    for device in machine.devices:
        name = device_name(device)
        if not device.unused:
            words = speed_words(device, machine) + not_chosen(device)
            yield from _wrapped("  ", f"{name}: {words}", width, indent=4)
            continue
        yield from _wrapped("  ", f"{name}: not used: {device.unused}", width, indent=4)
        if device.hint:
            yield from _wrapped("    → ", device.hint, width)
    yield from _kernels(machine, width)
    if machine.load_rate:
        yield f"  disk: reads {rate(machine.load_rate)}"
    if machine.failure:
        yield from _wrapped("  ", f"not measured: {machine.failure}", width)


def _kernels(machine: "MachineView", width: int) -> Iterator[str]:
    """Yield the lines about the native kernels of the CPU: those in use, and why others are not."""
    if not machine.kernels:
        return
    used = [each for each in machine.kernels if not each.unused]
    names = ", ".join(each.name for each in used) or "none, torch computes everything"
    yield from _wrapped("  ", f"kernels of the cpu: {names}", width, indent=4)
    for each in used:
        if each.beside:
            yield from _wrapped("    ", f"torch computes {each.beside}", width, indent=6)
    reasons: dict[str, list[str]] = {}
    for each in machine.kernels:
        if each.unused:
            reasons.setdefault(each.unused, []).append(each.name)
    for reason, several in reasons.items():
        yield from _wrapped("    ", f"not used: {', '.join(several)}: {reason}", width, indent=6)


def _strategy(finding: "DiagnosisView") -> tuple[str, str]:
    name, _, state = render.safe(finding.sentence, 200).partition(": ")
    return name, state


def _measured(answer: "ReachabilityView") -> str:
    if answer.measured_s is None:
        linked = "there are no links" if not answer.links else "no node was asked"
        return f"not measured yet: {linked}"
    peers = answer.observers
    helpers = "no other node" if not peers else render.count(peers, "node")
    ago = render.duration(answer.measured_s)
    return f"measured {ago} ago with the help of {helpers}; `shoal doctor --again` measures again"


def _wrapped(start: str, text: str, width: int, *, indent: int | None = None) -> list[str]:
    """Wrap a sentence into lines of at most `width` characters. The first one begins with `start`,
    and the others are indented by `indent`, or to the end of `start`."""
    shown = render.sentence(text)
    spaces = " " * (len(start) if indent is None else indent)
    return textwrap.wrap(
        shown, width, initial_indent=start, subsequent_indent=spaces, break_on_hyphens=False
    ) or [start.rstrip()]
