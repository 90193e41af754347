"""`shoal run`: sends a prompt to a model and prints its answer as it arrives."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import click

from .. import defaults, render
from ..errors import CommandError
from ..options import Misused, TextOptions, data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.generation import GeneratedText


class _Options(TextOptions):
    exact: bool
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float


class _Bias(click.ParamType[tuple[int, float]]):
    """A token id and what is added to its logit, as `ID=N`."""

    name = "bias"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> tuple[int, float]:
        if isinstance(value, tuple):
            return value
        token, _, added = str(value).partition("=")
        with suppress(ValueError):
            if token.isdecimal() and int(token) < 2**31 and -100 <= float(added) <= 100:
                return int(token), float(added)
        what = f"expected a token id and a number from -100 to 100, got `{value}`"
        raise Misused(what, "for example `--logit-bias 42=-100`", context, parameter)


BIAS = _Bias()
PROMPT_HINT = "give a text, or `-` to read one from standard input"


@click.command(
    short_help="Run a model on a prompt.",
    epilog=example(
        'shoal run tiny "In the beginning" --max-tokens 50',
        'shoal run Llama-3.2-1B "Why is the sky blue?" --temperature 0.7 --seed 1',
        "shoal run tiny - --raw < prompt.txt",
        'shoal run tiny "Once" --adapter poet',
    ),
)
@click.argument("name")
@click.argument("prompt")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N",
              help="Stop after N tokens (default: where the model ends).")  # fmt: skip
@click.option("--temperature", type=click.FloatRange(0, 100), metavar="T", default=0.0,
              show_default=True, help="0 takes the likeliest token, 1 samples.")  # fmt: skip
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), default=1.0, metavar="P",
              help="Sample among the likeliest tokens that sum to P.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(0, 2**31), default=0, metavar="K",
              help="Sample among the K likeliest tokens.")  # fmt: skip
@click.option("--min-p", type=click.FloatRange(0, 1), default=0.0, metavar="P",
              help="Sample among tokens at least P times as likely as the likeliest.")  # fmt: skip
@click.option("--frequency-penalty", type=click.FloatRange(-2, 2), default=0.0, metavar="N",
              help="Lower a token's logit by N for each time that the answer has it.")  # fmt: skip
@click.option("--presence-penalty", type=click.FloatRange(-2, 2), default=0.0, metavar="N",
              help="Lower a token's logit by N if the answer has it.")  # fmt: skip
@click.option("--repetition-penalty", type=click.FloatRange(0.01, 100), default=1.0, metavar="N",
              help="Above 1, make tokens of the prompt and the answer less likely.")  # fmt: skip
@click.option("--logit-bias", multiple=True, type=BIAS, metavar="ID=N",
              help="Add N (-100 to 100) to the logit of a token; may be repeated.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), metavar="S",
              help="Random seed, to repeat a text (default: a new one).")  # fmt: skip
@click.option("--stop", multiple=True, metavar="TEXT", help="Stop before TEXT; may be repeated.")
@click.option("--adapter", metavar="NAME",
              help="Use this LoRA adapter of the model: a name or a hash.")  # fmt: skip
@click.option("--exact", is_flag=True, help="Let nothing between nodes travel in int8.")
@click.option("--raw", is_flag=True, help="Continue the prompt without a chat template.")
@data_option
@json_option
def run(
    name: str,
    prompt: str,
    adapter: str | None,
    logit_bias: tuple[tuple[int, float], ...],
    data: Path,
    as_json: bool,
    **options: Unpack[_Options],
) -> None:
    """Run the model NAME on PROMPT and print its answer. The PROMPT `-` reads standard input.

    `MODEL+ADAPTER` names a model with a LoRA adapter, as `--adapter` does.
    Works on any node of the swarm, even one with no layers and no PyTorch. The answer goes to
    standard output, a line of figures to standard error. Control characters in the answer are
    escaped; `--json` gives the text exactly.
    """
    from ...node.control.messages.generation import Run, TokenBias
    from ..resuming import answer

    if prompt == "-":
        prompt = read_prompt()
    if not prompt:
        raise CommandError("failed", "the prompt is empty", hint=PROMPT_HINT)
    bias = tuple(TokenBias(*each) for each in logit_bias)
    model, _, named = name.partition("+")
    if named and adapter not in (None, named):
        raise CommandError(
            "failed", "two adapters are named", hint="name it after `+`, or with `--adapter`"
        )
    ask = Run(model=model, prompt=prompt, adapter=named or adapter, logit_bias=bias, **options)
    with render.Streamed(silent=as_json) as text:
        found = answer(data, ask, text.take)
    if as_json:
        click.echo(render.as_json(found))
        return
    sys.stdout.flush()
    print(render.coloured(figures(found), "dim", sys.stderr), file=sys.stderr)


def read_prompt() -> str:
    """Return the prompt from standard input. Raises CommandError if it is too long or not UTF-8."""
    data = sys.stdin.buffer.read(defaults.PROMPT_LIMIT + 1)
    if len(data) > defaults.PROMPT_LIMIT:
        raise CommandError(
            "failed",
            f"the prompt is longer than {defaults.PROMPT_LIMIT} bytes",
            hint="shorten the prompt",
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandError(
            "failed",
            "the prompt on standard input is not UTF-8 text",
            hint="convert it, for example from Latin-1: `iconv -f ISO-8859-1 -t UTF-8`",
        ) from None


ENDS = {
    "stop": "complete",
    "length": "cut at `--max-tokens`",
    "context": "cut: the model's context is full",
}
"""Maps the `reason` for which an answer ended (docs/spec/control.md) to words."""


def figures(answer: "GeneratedText") -> str:
    """Format the figures of an answer as one line: tokens, time to the first token, rate, what
    computed it, and how it ended."""
    first = render.number(answer.ttft_ms, ".0f")
    return (
        f"{render.tokens(answer.tokens)} · first token {first} ms · "
        f"{render.number(answer.tokens_per_s)} tokens/s · "
        f"{_computed_by(answer)} · "
        f"{ENDS.get(answer.reason) or render.safe(answer.reason)}"
    )


def _computed_by(answer: "GeneratedText") -> str:
    """Return the number of nodes, and the time between two of them, or the sharer, as words."""
    if answer.shared_by is not None:
        return f"shared by {render.short(answer.shared_by)}, no root"
    nodes = len({stage.peer for stage in answer.nodes})
    if nodes < 2:
        return "1 node"
    return f"{nodes} nodes, {render.number(answer.hop_ms, '.2f')} ms from one to the next"
