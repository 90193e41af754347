"""`shoal share URL | list | stop`: shares models that other engines on this machine serve."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..options import Commands, data_flag, data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.models import OfferView
    from ...node.control.messages.sharing import ShareView

HEADS = ("NAME", "ENGINE", "AT", "MODEL THERE", "OFFERED", "RUNNING", "WAITING", "ANSWERED")
SHARED_HEADS = ("SHARED NAME", "ENGINE", "CONTEXT", "SHARED BY", "ROOT")
NO_ROOT = "no root"
OWNERS_WORD = f"{NO_ROOT}: which weights answer is the word of the member that shares the model"
_SIGNS = (".", ":", "/", "localhost")  # in an address, but in no command's name


class ShareGroup(Commands):
    """The group `share`, of which `shoal share URL` is short for `shoal share add URL`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if any(sign in word for word in args[:1] for sign in _SIGNS):
            args = ["add", *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=ShareGroup,
    short_help="Share a model that another engine serves.",
    epilog=example(
        "shoal share http://127.0.0.1:8080",
        "shoal share add http://127.0.0.1:11434 --model llama3.2:1b --as my-llama",
        "shoal share list",
        "shoal share stop my-llama",
    ),
)
def share() -> None:
    """Share models that Ollama, llama.cpp, LM Studio or vLLM serves on this machine.

    `shoal share URL` offers a model of the engine at URL to the swarm: other nodes use it with
    `shoal run NAME` and in the HTTP API. Such a model has no root: its weights cannot be checked,
    and every listing says so.
    """


@share.command(
    epilog=example(
        "shoal share add http://127.0.0.1:11434 --model llama3.2:1b",
        "shoal share add http://127.0.0.1:8080 --as my-llama --at-once 2",
    )
)
@click.argument("url")
@click.option("--model", "models", multiple=True, metavar="MODEL",
              help="Share this model, by its name at the engine; may be repeated (default: the "
              "only one).")  # fmt: skip
@click.option("--all", "every", is_flag=True, help="Share all models of the engine.")
@click.option("--as", "name", metavar="NAME",
              help="Its name in the swarm (default: from its name at the engine).")  # fmt: skip
@click.option("--at-once", type=click.IntRange(1, 64), default=4, show_default=True, metavar="N",
              help="Requests that the engine answers at once.")  # fmt: skip
@data_option
@json_option
def add(
    url: str,
    models: tuple[str, ...],
    every: bool,
    name: str | None,
    at_once: int,
    data: Path,
    as_json: bool,
) -> None:
    """Share a model of the engine at URL.

    `shoal share URL` is short for this. URL is the address of an engine with OpenAI's API, such as
    http://127.0.0.1:11434 (Ollama), :8080 (llama.cpp), :1234 (LM Studio) or :8000 (vLLM). The
    daemon stores it and shares the model again after a restart, whenever the engine answers. Needs
    a running daemon.
    """
    from ...node.control.messages.sharing import AddShare
    from ..client import request

    ask = AddShare(url=url, models=models, name=name, every=every, at_once=at_once)
    answer = request(data, ask, wait=True)
    if as_json:
        click.echo(render.as_json(answer))
        return
    flag = data_flag(data)
    for each in answer.shares:
        click.echo(f"sharing {render.name(each.name)} with {render.safe(answer.audience)}: "
                   f"{_where(each)}")  # fmt: skip
        if not each.local:
            click.echo("this engine is not on this machine: prompts go to it unencrypted")
    click.echo(OWNERS_WORD)
    if answer.shares:
        first = answer.shares[0]
        called, name_ = render.name(first.called, 96), render.name(first.name)
        if first.called != first.name:
            click.echo(f"a model with a root has the name {name_} as well, and keeps it")
        click.echo(f'others use it with `shoal run {called} "TEXT"`')
        click.echo(f"end it with `shoal share stop {name_}{flag}`")


@share.command("list", epilog=example("shoal share list", "shoal share list --json"))
@data_option
@json_option
def list_(data: Path, as_json: bool) -> None:
    """List the models that this node shares.

    Shows also whether their engines answer.
    """
    from ...node.control.messages.sharing import ListShares
    from ..client import request

    answer = request(data, ListShares())
    if as_json:
        click.echo(render.as_json(answer))
        return
    if not answer.shares:
        click.echo("this node shares no model; share one with `shoal share URL`")
        return
    click.echo(render.table(HEADS, [_row(each) for each in answer.shares]))
    for each in answer.shares:
        if each.trouble:
            click.echo(f"{render.name(each.name)}: {render.sentence(each.trouble)}")
    click.echo(f"shared with {render.safe(answer.audience)}; {OWNERS_WORD}")


@share.command(epilog=example("shoal share stop my-llama"))
@click.argument("name")
@data_option
@json_option
def stop(name: str, data: Path, as_json: bool) -> None:
    """Stop sharing the model NAME. The engine itself keeps running."""
    from ...node.control.messages.sharing import StopShare
    from ..client import request

    answer = request(data, StopShare(name=name))
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(f"{render.name(answer.name)} is no longer shared; its engine keeps running")


def share_line(each: "ShareView") -> str:
    """Describe a model that this node shares, and whether its engine answers."""
    name = render.name(each.name)
    if not each.offered:
        return f"{name}, not offered: {render.sentence(each.trouble or 'unknown')}"
    busy = f"{each.running} running, {each.waiting} waiting, {each.answered} answered"
    return f"{name} ({NO_ROOT}): {_where(each)}, {busy}"


def offer_rows(offers: "tuple[OfferView, ...]") -> list[list[str]]:
    """Format the shared models of the swarm as rows of a table with SHARED_HEADS."""
    peers = [each.peer for each in offers]
    return [
        [
            render.name(each.called, 96),
            render.safe(each.engine, 32),
            render.tokens(each.context) if each.context else "unknown",
            "this node" if each.here else render.short(each.peer, peers),
            NO_ROOT,
        ]
        for each in offers
    ]


def offer_line(each: "OfferView") -> str:
    """Describe a model that a member shares."""
    who = "this node" if each.here else render.short(each.peer)
    return f"{render.name(each.called, 96)}: shared by {who}, {NO_ROOT}"


def _where(each: "ShareView") -> str:
    engine = render.safe(each.engine or "an engine")
    return f"{render.safe(each.model)} of {engine} at {render.safe(each.url)}"


def _row(each: "ShareView") -> list[str]:
    return [
        render.name(each.name),
        render.safe(each.engine or "-"),
        render.safe(each.url),
        render.safe(each.model),
        "yes" if each.offered else "no",
        f"{each.running} of {each.at_once}",
        str(each.waiting),
        str(each.answered),
    ]
