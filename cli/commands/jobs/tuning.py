"""Fine-tunings in `shoal job`, which submits and shows them beside the jobs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ... import jobfiles, render
from ...errors import CommandError

if TYPE_CHECKING:
    from ....node.control.messages import jobs as messages
    from ....node.control.messages.tuning import ShownTuning

ENDED = ("stopped", "failed", "done")  # states of fine-tunings that wait for a command


def submit_tuning(data: Path, order: jobfiles.JobOrder, *, follow: bool, as_json: bool) -> None:
    """Submit a fine-tuning as a job, and print its id."""
    from ...tuningviews import broken_words
    from ..finetune import begun, watch_tuning

    with jobfiles.tuning_of(order) as ask:
        found = begun(data, ask)
    for words in broken_words(found.data):
        print(words, file=sys.stderr)
    say_lack(found.lack)
    if follow:
        print(found.tuning.id, file=sys.stderr)
        watch_tuning(data, found.tuning, as_json=as_json)
        return
    click.echo(render.as_json(found) if as_json else found.tuning.id)


def say_lack(lack: "messages.LackView | None") -> None:
    """Say on standard error why no other node has a job."""
    if lack is not None:
        print(f"{render.safe(lack.code)}: {render.safe(lack.message, 400)}", file=sys.stderr)
        print(f"hint: {render.safe(lack.hint, 400)}", file=sys.stderr)


def show_tuning(data: Path, text: str, *, as_json: bool) -> bool:
    """Show a fine-tuning with its loss curve. Return whether this node has it."""
    from ...tuningviews import shown as words

    answer = find_tuning(data, text)
    if answer is not None:
        click.echo(render.as_json(answer) if as_json else words(answer))
    return answer is not None


def find_tuning(data: Path, text: str) -> "ShownTuning | None":
    """Return the fine-tuning of this node with an id, or None if there is none."""
    from ..finetune import shown

    try:
        return shown(data, text)
    except CommandError as error:
        if error.code != "unknown-tuning":
            raise
        return None


def print_tuning(data: Path, text: str, wait: bool, as_json: bool) -> bool:
    """Say how to use the result of a fine-tuning. Return whether this node has it.

    Raises CommandError if there is no result.
    """
    from ..finetune import say_ended

    item = find_tuning(data, text)
    if item is None:
        return False
    if wait and item.tuning.state not in ENDED:
        from ..finetune import watch_tuning

        watch_tuning(data, item.tuning, as_json=as_json)
        return True
    if item.tuning.state == "failed":
        raise CommandError(
            item.tuning.error or "failed", f"the fine-tuning failed: {item.tuning.message}",
            hint=item.tuning.hint,
        )  # fmt: skip
    if item.tuning.state != "done":
        raise CommandError(
            "not-done",
            f"the fine-tuning {item.tuning.id} is {item.tuning.state}: {item.tuning.step} of "
            f"{item.tuning.steps} steps",
            hint=f"`shoal job result {item.tuning.id} --wait`",
        )
    if as_json:
        click.echo(render.as_json(item))
    else:
        say_ended(item, data)
    return True
