"""`shoal demo`: starts real daemons on this machine, which together answer one prompt."""

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from .. import defaults, render
from ..errors import CommandError
from ..options import example

if TYPE_CHECKING:
    from ...node.control.messages.generation import GeneratedText
    from ...node.control.messages.node import Status
    from ..progress import WaitingStatus
    from ..swarm import LocalSwarm

    Statuses = list[Status | None]


@click.command(
    short_help="Start daemons here, split a model, generate text.",
    epilog=example("shoal demo", 'shoal demo --nodes 5 --prompt "And God said" --keep'),
)
@click.option("--nodes", type=click.IntRange(1, defaults.DEMO_MAX_NODES), metavar="N",
              default=defaults.DEMO_NODES, show_default=True, help="How many daemons.")  # fmt: skip
@click.option("--prompt", default=defaults.DEMO_PROMPT, show_default=True, help="Text to continue.")
@click.option("--max-tokens", type=click.IntRange(1, 900), default=defaults.DEMO_TOKENS,
              show_default=True, metavar="N", help="Stop after N tokens.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), default=7, show_default=True,
              metavar="S", help="Random seed of the text.")  # fmt: skip
@click.option("--keep", is_flag=True, help="Leave the daemons running.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def demo(nodes: int, prompt: str, max_tokens: int, seed: int, keep: bool, as_json: bool) -> None:
    """Start daemons on this machine, split the embedded model between them, generate text.

    The daemons are real processes that talk over the encrypted transport. The others fetch
    their layers from the first one. Afterwards all are stopped and their files removed, unless
    you give `--keep`.
    """
    _need_engine()
    from ..swarm import LocalSwarm

    with LocalSwarm() as swarm:
        statuses = _start(swarm, nodes)
        if not as_json:
            _print_nodes(statuses)
        answer = _generate(swarm, prompt, max_tokens, seed, as_json)
        if as_json:
            _print_json(prompt, answer, statuses)
        else:
            _print_figures(answer)
        if keep:
            swarm.keep()
            _print_kept(swarm)


def _need_engine() -> None:
    from importlib.util import find_spec

    if find_spec("torch") is None:
        raise CommandError(
            "cannot-serve",
            "torch is not installed, so daemons on this machine cannot serve layers",
            hint=f"`{sys.executable} -m pip install torch==2.13.0`",
        )


def plan(nodes: int, layers: int) -> list[tuple[int, int]]:
    """Return the layers of each node, as pairs (start, stop). If there are more nodes than layers,
    the ranges repeat."""
    from ...tasks.placement.holes import split_layers

    parts = split_layers(layers, min(nodes, layers))
    return [parts[number % len(parts)] for number in range(nodes)]


def _start(swarm: "LocalSwarm", nodes: int) -> "list[Status]":
    """Start all daemons and wait until every layer is served.

    The first daemon starts alone, because the others use its address as their bootstrap address.
    """
    from ...node.daemon.embedded import embedded_layers
    from ...transport.host.real import RealHost
    from ..progress import WaitingStatus

    model_layers = embedded_layers(RealHost())
    ranges = plan(nodes, model_layers)
    daemons = render.count(nodes, "daemon")
    print(f"starting {daemons} with the {model_layers} layers of `tiny`", file=sys.stderr)
    deadline = time.monotonic() + defaults.DEMO_START_TIMEOUT
    with WaitingStatus() as waiting:
        if nodes > model_layers:
            waiting.show(f"the model has {model_layers} layers: further nodes serve replicas")
        swarm.start(_arguments(ranges[0], None))
        first = swarm.wait_for(_all_answer, lambda found: _show(waiting, found), deadline)[0]
        for part in ranges[1:]:
            swarm.start(_arguments(part, first.addresses[0]))
        return swarm.wait_for(_all_ready, lambda found: _show(waiting, found), deadline)


def _arguments(part: tuple[int, int], bootstrap: str | None) -> list[str]:
    more = ["--bootstrap", bootstrap, "--model", "tiny"] if bootstrap else []
    layers = f"{part[0]}:{part[1]}"
    return ["--listen", "127.0.0.1:0", "--threads", "1", "--layers", layers, *more]


def _all_answer(found: "Statuses") -> bool:
    return all(status is not None and status.addresses for status in found)


def _all_ready(found: "Statuses") -> bool:
    """Return whether every node serves, and the first node, which will get the prompt, knows all
    others."""
    known = [status for status in found if status is not None]
    return (
        len(known) == len(found)
        and all(status.serving.phase == "serving" for status in known)
        and known[0].peers == len(known) - 1
        and any(model.complete for model in known[0].models)
    )


def _show(waiting: "WaitingStatus", found: "Statuses") -> None:
    words = [
        f"node {number}: {'starting' if status is None else _phase(status)}"
        for number, status in enumerate(found, 1)
    ]
    waiting.show(*words)


def _phase(status: "Status") -> str:
    phase = status.serving.phase
    return f"{phase} layers" if phase in ("choosing", "fetching", "loading") else phase


def _print_nodes(statuses: "Sequence[Status]") -> None:
    rows = [
        [f"node {number}", render.short(status.peer), f"layers {_layers(status)}"]
        for number, status in enumerate(statuses, 1)
    ]
    click.echo(render.table(rows[0], rows[1:]))
    click.echo()


def _layers(status: "Status") -> str:
    assert status.serving.shard is not None  # it serves
    return status.serving.shard.layers


def _generate(
    swarm: "LocalSwarm", prompt: str, max_tokens: int, seed: int, as_json: bool
) -> "GeneratedText":
    from ...node.control.messages.generation import Run
    from ..client import request

    with render.Streamed(silent=as_json) as text, swarm.ends_explained():
        text.write(prompt, "bold")
        ask = Run(
            model="tiny", prompt=prompt, raw=True, max_tokens=max_tokens, temperature=0.6,
            top_p=0.9, seed=seed,
        )  # fmt: skip
        return request(swarm.nodes[0].data, ask, on_event=text.take, wait=True)


def _print_figures(answer: "GeneratedText") -> None:
    from .run import figures

    click.echo(f"\n{figures(answer)}")


def _print_json(prompt: str, answer: "GeneratedText", statuses: "Sequence[Status]") -> None:
    nodes = [{"peer": status.peer, "layers": _layers(status)} for status in statuses]
    words = ("text", "reason", "tokens", "ttft_ms", "tokens_per_s", "hop_ms")
    found = {word: getattr(answer, word) for word in words}
    click.echo(render.as_json({"nodes": nodes, "prompt": prompt, **found}))


def _print_kept(swarm: "LocalSwarm") -> None:
    """Print how to use the daemons that keep running.

    The text goes to standard error, so that `--json` prints only one object on standard output.
    """
    first = swarm.nodes[0].data
    for line in (
        "the daemons keep running; use them with",
        f'  shoal run tiny "Let there be" --data {first}',
        f"  shoal status --data {first}",
        f"  shoal peers --data {first}",
        "and stop all of them with",
        f"  shoal stop --data {swarm.folder}",
    ):
        print(line, file=sys.stderr)
