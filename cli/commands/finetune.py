"""`shoal finetune MODEL --data FILE`, and `list | show | follow | stop | resume | rm`."""

import difflib
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .. import render
from ..errors import NOT_RUNNING, CommandError, exit_code
from ..jobfiles import time_of
from ..options import (
    Commands,
    Misused,
    UnknownCommand,
    data_flag,
    data_option,
    default_data,
    example,
    json_option,
)

if TYPE_CHECKING:
    from ...node.control.messages.tuning import BeginTuning, ShownTuning, TuningView


class WithDefault(Commands):
    """A group whose first word may also be the first argument of the command `default`."""

    default = "start"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        first = args[0] if args else ""
        if not first or first.startswith("-") or self.get_command(ctx, first) is not None:
            return super().resolve_command(ctx, args)
        near = difflib.get_close_matches(first, self.commands, n=1, cutoff=0.6)
        if near and not any(arg.startswith("--data") for arg in args):
            hint = f"did you mean `{ctx.command_path} {near[0]}`?"
            raise UnknownCommand(f"no such command `{first}`", ctx, hint)
        return self.default, self.get_command(ctx, self.default), args


class _TextFile(click.ParamType[Path]):
    """The file with the texts. Elsewhere, `--data` is the folder of the node."""

    name = "file"

    def convert(
        self, value: Any, parameter: click.Parameter | None, context: click.Context | None
    ) -> Path:
        path = Path(value).expanduser().absolute()
        if path.is_dir():
            hint = "here, `--data` is the file with the texts; `--node DIR` is the node's folder"
            raise Misused(f"`{value}` is a folder", hint, context, parameter)
        if not path.exists():
            hint = "write one JSON object on each line of it; docs/finetune.md shows how"
            raise Misused(f"there is no file `{value}`", hint, context, parameter)
        return path


tuning_argument = click.argument("tuning", metavar="ID")


@click.group(
    cls=WithDefault,
    epilog=example(
        "shoal finetune tiny --data poems.jsonl",
        "shoal finetune tiny --data poems.jsonl --name poet --rank 8 --epochs 5",
        "shoal finetune show poet",
    ),
)
def finetune() -> None:
    """Fine-tune a model with your own texts.

    `shoal finetune MODEL --data FILE` is short for `shoal finetune start MODEL --data FILE`. The
    layers are computed by the nodes that serve the model; the data stays on this node, but those
    nodes see its tokens. docs/finetune.md shows the way from a file to an answer.
    """


def _folder(_context: click.Context, _parameter: click.Parameter, value: str | None) -> Path:
    return Path(value).expanduser().absolute() if value else default_data()


@finetune.command(
    epilog=example(
        "shoal finetune start tiny --data chats.jsonl --steps 200 --out ./tuned",
        "shoal finetune tiny --data poems.jsonl",
        "shoal finetune tiny --data poems.jsonl --together our-poems",
        "shoal finetune tiny --data poems.jsonl --full --name poet",
    )
)
@click.argument("model", metavar="MODEL")
@click.option("--data", "file", required=True, metavar="FILE", type=_TextFile(),
              help='The texts, one JSON object on each line: {"text": …}, {"prompt": …, '
              '"completion": …} or {"messages": […]}.')  # fmt: skip
@click.option("--name", metavar="NAME",
              help="Name of the result (default: from MODEL and FILE).")  # fmt: skip
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), metavar="DIR",
              help="Also write it to this folder, for `peft` or `transformers`.")  # fmt: skip
@click.option("--rank", type=click.IntRange(1, 256), metavar="R",
              help="Rank of the adapter (default: 16).")  # fmt: skip
@click.option("--alpha", type=click.FloatRange(1e-3, 1e5), metavar="A",
              help="Its scale is A / R (default: 2 R).")  # fmt: skip
@click.option("--modules", metavar="NAMES", help="The projections that it changes, with commas "
              "between them (default: all of the model).")  # fmt: skip
@click.option("--rate", type=click.FloatRange(1e-9, 1), metavar="X",
              help="Peak of the learning rate (default: by the width of the model).")  # fmt: skip
@click.option("--warmup", type=click.IntRange(0, 1_000_000), metavar="N",
              help="Steps in which the rate rises (default: 5 % of them).")  # fmt: skip
@click.option("--decay", type=click.FloatRange(0, 1), metavar="X",
              help="Weight decay of AdamW (default: 0).")  # fmt: skip
@click.option("--batch", type=click.IntRange(1, 1024), metavar="N",
              help="Rows of one step (default: 8).")  # fmt: skip
@click.option("--length", type=click.IntRange(16, 32_768), metavar="N",
              help="Tokens of a row at most (default: 512, or the model's context).")  # fmt: skip
@click.option("--epochs", type=click.FloatRange(1e-3, 1e4), metavar="N",
              help="Passes over the data (default: 3, more for little data).")  # fmt: skip
@click.option("--steps", type=click.IntRange(1, 1_000_000), metavar="N",
              help="Steps, instead of epochs.")  # fmt: skip
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), metavar="S",
              help="Random seed, to repeat a fine-tuning (default: a new one).")  # fmt: skip
@click.option("--held-out", type=click.FloatRange(0, 0.9), metavar="X",
              help="Share of the rows that only measure it (default: 0.1).")  # fmt: skip
@click.option("--together", metavar="NAME", help="Average the adapter with those of other nodes "
              "that fine-tune this model under NAME, with the same --rank, --alpha, --modules and "
              "--every, each on texts of their own. With --full, the weights.")  # fmt: skip
@click.option("--every", type=click.IntRange(1, 1_000_000), metavar="N",
              help="With --together: steps between two exchanges (default: 30; with --full "
              "24).")  # fmt: skip
@click.option("--movable/--stay", "moves", default=None,
              help="Let other nodes train it, which then have the encoded texts; it goes on when "
              "this node is off (default: in a private swarm).")  # fmt: skip
@click.option("--priority", type=click.IntRange(0, 9), metavar="N",
              help="With --movable: among your own jobs, a higher one comes first (default: "
              "5).")  # fmt: skip
@click.option("--deadline", metavar="TIME", help="With --movable: when you need it, as for `shoal "
              "job submit`. Among your own jobs, the earliest comes first.")  # fmt: skip
@click.option("--seal", is_flag=True, help="Only members of the private group can read what other "
              "nodes store of it.")  # fmt: skip
@click.option("--full", is_flag=True, help="Train all weights of a small model on this node. The "
              "result is a model of its own.")  # fmt: skip
@click.option("--detach", is_flag=True, help="Do not follow it.")
@click.option("--node", "data", envvar="SHOAL_DATA", metavar="DIR", callback=_folder,
              help="Data folder of the node (default: the platform's; SHOAL_DATA).")  # fmt: skip
@json_option
def start(
    model: str,
    file: Path,
    out: Path | None,
    modules: str | None,
    epochs: float | None,
    steps: int | None,
    priority: int | None,
    deadline: str | None,
    detach: bool,
    data: Path,
    as_json: bool,
    **options: Any,
) -> None:
    """Fine-tune MODEL with the texts in FILE, and follow the progress.

    The result is a LoRA adapter: `shoal run MODEL --adapter NAME` uses it, and so does the HTTP API
    as `MODEL+NAME`. With --full it is a model, which `shoal run NAME` uses. The fine-tuning runs in
    the daemon. It goes on when this command ends, also after the daemon was restarted. Needs a
    running daemon.
    """
    from ...node.control.messages.tuning import BeginTuning

    if epochs is not None and steps is not None:
        raise click.UsageError("give one of --epochs and --steps")
    if options["every"] is not None and options["together"] is None:
        raise click.UsageError("--every needs --together NAME")
    if priority is not None:
        options["priority"] = priority
    if deadline is not None:
        options["deadline"] = time_of(deadline, time.time())
    if options["full"]:
        _check_full({**options, "modules": modules})
    ask = BeginTuning(
        model=model,
        path=str(file),
        out=None if out is None else str(out.absolute()),
        modules=None if modules is None else tuple(modules.replace(",", " ").split()),
        epochs=epochs,
        steps=steps,
        **options,
    )
    found = begun(data, ask)
    if not as_json:
        _say_begun(found)
    if detach:
        click.echo(render.as_json(found) if as_json else _left(found.tuning, data))
        return
    watch_tuning(data, found.tuning, as_json=as_json)


def _check_full(options: dict[str, Any]) -> None:
    """Refuse options that make no sense where all weights are trained."""
    for option in ("rank", "alpha", "modules"):
        if options[option] is not None:
            raise click.UsageError(f"--{option} is about an adapter: leave out it or --full")
    if options["moves"] or options["seal"]:
        word = "movable" if options["moves"] else "seal"
        raise click.UsageError(f"what --full trains stays on this node: leave out --{word}")


def begun(data: Path, ask: "BeginTuning") -> "ShownTuning":
    """Begin a fine-tuning, and show how much of the data was read."""
    from ..client import request
    from ..progress import Bar

    with Bar("reading the data") as bar:
        return request(data, ask, wait=True, on_event=lambda e: bar.show(e.done, e.total))


def _say_begun(found: "ShownTuning") -> None:
    from ..tuningviews import data_words, length_words, result_word

    item = found.tuning
    click.echo(f"fine-tuning {render.safe(item.id, 16)} of {render.name(item.model)}: "
               f"{item.steps} steps, {result_word(item)} {render.name(item.name)}")  # fmt: skip
    for words in (*data_words(found.data), length_words(found)):
        click.echo(words)


def _left(item: "TuningView", data: Path) -> str:
    """Say what a user can do about a fine-tuning that runs without a command."""
    flag = data_flag(data)
    return (
        f"it goes on in the daemon; `shoal finetune follow {item.id}{flag}` shows it, "
        f"`shoal finetune stop {item.id}{flag}` ends it"
    )


def watch_tuning(data: Path, item: "TuningView", *, as_json: bool) -> None:
    """Show the progress of a fine-tuning until it ends. Ctrl-C leaves it running."""
    from ...node.control.messages.tuning import FollowTuning
    from ..client import request
    from ..tuningviews import TuningBar

    try:
        with TuningBar() as bar:
            ask = FollowTuning(tuning=item.id)
            answer = request(data, ask, wait=True, on_event=lambda e: bar.show(e.tuning))
    except KeyboardInterrupt:
        click.echo(f"\n{_left(item, data)}", err=True)
        raise
    except CommandError as error:
        if exit_code(error) != NOT_RUNNING and error.code != "stopping":
            raise
        raise CommandError(
            "not-running",
            f"the daemon has ended; the fine-tuning {item.id} goes on when it runs again",
            hint=f"`shoal node{data_flag(data)}`, then `shoal finetune follow {item.id}"
            f"{data_flag(data)}`",
        ) from None
    if as_json:
        click.echo(render.as_json(answer))
    else:
        say_ended(answer, data)
    if answer.tuning.state == "failed":
        raise CommandError(
            answer.tuning.error or "failed", f"the fine-tuning failed: {answer.tuning.message}",
            hint=answer.tuning.hint,
        )  # fmt: skip


def say_ended(answer: "ShownTuning", data: Path) -> None:
    """Say how a fine-tuning has ended, and how its result is used."""
    from ..tuningviews import curve, losses, result_word

    item, flag = answer.tuning, data_flag(data)
    for line in curve(answer.curve):
        click.echo(line)
    for words in losses(item):
        click.echo(f"loss {words}")
    if item.state == "done":
        if item.best is not None and item.best_step != item.step:
            click.echo(f"the {result_word(item)} is the one after step {item.best_step}, the best "
                       "on the held-out rows")  # fmt: skip
        if item.full:
            _say_model(item, flag)
            return
        click.echo(f'use it with `shoal run {render.name(item.model)} "TEXT" --adapter '
                   f"{render.name(item.name)}{flag}`")  # fmt: skip
        click.echo("over the HTTP API (`shoal api`), the model is "
                   f"`{render.name(item.model)}+{render.name(item.name)}`")  # fmt: skip
        click.echo(f"on other nodes, `--adapter {render.safe(item.adapter)}`")
        click.echo(f"for `peft`: {render.safe(item.out or f'{item.folder}/adapter', 400)}")
    elif item.state == "stopped":
        click.echo(f"stopped after step {item.step}; `shoal finetune resume {item.id}{flag}` "
                   "continues it")  # fmt: skip


def _say_model(item: "TuningView", flag: str) -> None:
    """Say how the result of full training is used."""
    click.echo(f'use it with `shoal run {render.name(item.name)} "TEXT"{flag}`')
    click.echo(f"on other nodes, `shoal run {render.safe(item.adapter)}`")
    click.echo(f"for `transformers`: {render.safe(item.out or f'{item.folder}/model', 400)}")


@finetune.command("list", epilog=example("shoal finetune list", "shoal finetune list --json"))
@data_option
@json_option
def list_(data: Path, as_json: bool) -> None:
    """List the fine-tunings of this node, the oldest first. Needs a running daemon."""
    from ...node.control.messages.tuning import ListTunings
    from ..client import request
    from ..tuningviews import HEADS, row

    answer = request(data, ListTunings())
    if as_json:
        click.echo(render.as_json(answer))
    elif not answer.tunings:
        click.echo("there are no fine-tunings; begin one with `shoal finetune MODEL --data FILE`")
    else:
        click.echo(render.table(HEADS, [row(item) for item in answer.tunings]))


@finetune.command(epilog=example("shoal finetune show poet", "shoal finetune show 3fa9c1 --json"))
@tuning_argument
@data_option
@json_option
def show(tuning: str, data: Path, as_json: bool) -> None:
    """Show a fine-tuning with its loss curve, settings and files.

    ID is its id, the beginning of it, or the name of its adapter. `files` is a folder that
    TensorBoard reads: `tensorboard --logdir DIR`. Needs a running daemon.
    """
    answer = shown(data, tuning)
    from ..tuningviews import shown as words

    click.echo(render.as_json(answer) if as_json else words(answer))


def shown(data: Path, tuning: str) -> "ShownTuning":
    """Ask the daemon for a fine-tuning."""
    from ...node.control.messages.tuning import ShowTuning
    from ..client import request

    return request(data, ShowTuning(tuning=tuning), wait=True)


@finetune.command(epilog=example("shoal finetune follow poet"))
@tuning_argument
@data_option
@json_option
def follow(tuning: str, data: Path, as_json: bool) -> None:
    """Show the progress of a fine-tuning until it ends. Ctrl-C leaves it running.

    Needs a running daemon.
    """
    watch_tuning(data, shown(data, tuning).tuning, as_json=as_json)


@finetune.command(epilog=example("shoal finetune stop poet"))
@tuning_argument
@data_option
@json_option
def stop(tuning: str, data: Path, as_json: bool) -> None:
    """Stop a fine-tuning and keep its checkpoint. Needs a running daemon."""
    stop_tuning(data, tuning, as_json=as_json)


def stop_tuning(data: Path, tuning: str, *, as_json: bool) -> None:
    """Stop a fine-tuning, and say at which step."""
    from ...node.control.messages.tuning import StopTuning
    from ..client import request

    item = request(data, StopTuning(tuning=tuning), wait=True)
    words = f"stopped after step {item.saved} of {item.steps}; `shoal finetune resume {item.id}"
    click.echo(render.as_json(item) if as_json else f"{words}{data_flag(data)}` continues it")


@finetune.command(epilog=example("shoal finetune move poet", "shoal finetune move poet --json"))
@tuning_argument
@data_option
@json_option
def move(tuning: str, data: Path, as_json: bool) -> None:
    """Have another node continue a fine-tuning that may move.

    The node that trains it stops after a checkpoint, and the next willing node goes on from there,
    with the same result. If a trainer dies, that happens by itself. Needs a running daemon.
    """
    from ...node.control.messages.tuning import MoveTuning
    from ..client import request

    item = request(data, MoveTuning(tuning=tuning), wait=True)
    words = f"stopped there; another node continues. {_left(item, data)}"
    click.echo(render.as_json(item) if as_json else words)


@finetune.command(epilog=example("shoal finetune resume poet", "shoal finetune resume poet --json"))
@tuning_argument
@data_option
@json_option
def resume(tuning: str, data: Path, as_json: bool) -> None:
    """Continue a fine-tuning that was stopped or has failed.

    It begins at its last checkpoint. Needs a running daemon.
    """
    from ...node.control.messages.tuning import ResumeTuning
    from ..client import request

    item = request(data, ResumeTuning(tuning=tuning), wait=True)
    click.echo(render.as_json(item) if as_json else _left(item, data))


@finetune.command("rm", epilog=example("shoal finetune rm 3fa9c1 --yes"))
@tuning_argument
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@data_option
@json_option
def remove(tuning: str, yes: bool, data: Path, as_json: bool) -> None:
    """End a fine-tuning and delete its files.

    These are the encoded data, the checkpoint and the loss curve. A finished adapter stays: `shoal
    adapter rm` removes it. Needs a running daemon.
    """
    from ...node.control.messages.tuning import RemoveTuning
    from ..client import request
    from ..confirm import confirm

    item = shown(data, tuning).tuning
    what = f"delete the files of the fine-tuning {item.id} ({item.step} of {item.steps} steps)?"
    confirm(what, yes=yes)
    item = request(data, RemoveTuning(tuning=tuning), wait=True)
    click.echo(render.as_json(item) if as_json else f"removed: {render.safe(item.id, 16)}")
