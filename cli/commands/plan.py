"""`shoal plan`: shows a placement of a model, and what it would deliver, before anything moves."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..options import data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.plans import MakePlan, OutcomeView, PlanView

HEADS = ("NODE", "LAYERS", "MEMORY", "SESSIONS", "STEP")
NOTHING = "these machines cannot hold the model for such sessions"
NOT_NOW = "members do not serve all layers of the model"


@click.command(
    short_help="Show how a model would be placed, and how fast it would be.",
    epilog=example(
        "shoal plan tiny",
        "shoal plan tiny --nodes machines.toml",
        "shoal plan tiny --add memory=24GiB,bandwidth=1008,tflops=165",
    ),
)
@click.argument("name")
@click.option(
    "--nodes", type=click.Path(path_type=Path), metavar="FILE",
    help="Plan for the machines in this file (docs/plan.md), without a daemon.",
)  # fmt: skip
@click.option(
    "--add", metavar="MACHINE",
    help="Also plan with one more machine: memory=SIZE,bandwidth=GB/s,tflops=N,round_trip_ms=N.",
)  # fmt: skip
@click.option("--remove", metavar="NODE", help="Also plan without this node.")
@click.option(
    "--sessions", type=click.IntRange(1, 64), metavar="N", help="Sessions at once (default: 8)."
)
@click.option(
    "--prompt",
    type=click.IntRange(1, 10**7),
    metavar="N",
    help="Tokens of a prompt (default: 1024).",
)
@click.option(
    "--answer",
    type=click.IntRange(1, 10**7),
    metavar="N",
    help="Tokens of an answer (default: 256).",
)
@data_option
@json_option
def plan(
    name: str,
    nodes: Path | None,
    data: Path,
    as_json: bool,
    **more: "str | int | None",
) -> None:
    """Show the best placement of model NAME that is found, with predicted speeds. Nothing moves.

    Without --nodes, the running daemon plans for the live members, by the speeds that they have
    measured and published. With it, NAME is a model of this machine's library. Speeds are
    predictions from the machines' rates and links; drafts and other users' load are not counted.
    """
    from ...node.control.messages.encoding import decode
    from ...node.control.messages.plans import MakePlan

    ask = decode(MakePlan, {"name": name, **more})
    answer = _from_file(data, ask, nodes) if nodes is not None else _from_daemon(data, ask)
    click.echo(render.as_json(answer) if as_json else report(answer))


def _from_daemon(data: Path, ask: "MakePlan") -> "PlanView":
    from ..client import request

    return request(data, ask, wait=True)


def _from_file(data: Path, ask: "MakePlan", path: Path) -> "PlanView":
    import trio

    from ...node.control.plans import plan_from_file
    from ...transport.host.real import RealHost

    return trio.run(plan_from_file, RealHost(), data, ask, path)


def report(answer: "PlanView") -> str:
    """Format a plan as a table and a few sentences."""
    model = render.name(answer.model)
    machines = render.count(answer.machines, "machine")
    lines = [
        f"{model} ({answer.layers} layers, {answer.dtype}) on {machines}, for "
        f"{render.count(answer.sessions, 'session')} of {answer.prompt} and {answer.answer} tokens",
    ]
    if answer.best.nodes:
        lines.append(render.table(HEADS, _rows(answer.best)))
    lines.append(f"predicted  {_speed(answer.best)}")
    for word, outcome in (
        ("now", answer.present), ("with it", answer.added), ("without it", answer.removed)
    ):  # fmt: skip
        if outcome is not None:
            nothing = NOT_NOW if word == "now" else NOTHING
            change = _change(outcome, answer.best, word)
            lines.append(f"{word:<10} {_speed(outcome, nothing)}{change}")
    for each in answer.smaller:
        loss = f" (at most {100 * each.loss:g} % more loss)" if each.stages else ""
        lines.append(f"{f'in {each.precision}':<10} {_speed(each)}{loss}")
    return "\n".join(lines)


def _rows(outcome: "OutcomeView") -> list[list[str]]:
    return [
        [
            render.short(node.node),
            node.layers,
            render.size(node.bytes),
            str(node.sessions) if node.sessions else "standby",
            f"{node.step_ms:.1f} ms",
        ]
        for node in outcome.nodes
    ]


def _speed(outcome: "OutcomeView", nothing: str = NOTHING) -> str:
    """Describe the speed of a placement. `nothing` stands for one that cannot answer."""
    if not outcome.stages:
        return nothing
    return (
        f"{outcome.tokens_per_s:.1f} tokens/s in all, {outcome.single_per_s:.1f} for one session "
        f"alone, first token after {outcome.first_token_s:.2f} s, "
        f"{render.count(outcome.stages, 'stage')}"
    )


def _change(outcome: "OutcomeView", best: "OutcomeView", word: str) -> str:
    """Return by how much a placement with other machines differs from the best one, in percent."""
    if word == "now" or not (outcome.tokens_per_s and best.tokens_per_s):
        return ""
    return f" ({100 * (outcome.tokens_per_s / best.tokens_per_s - 1):+.0f} %)"
