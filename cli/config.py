"""`shoal config show | set | unset`: the settings that a node keeps."""

from pathlib import Path
from typing import Any

import click

from . import render
from .options import Commands, data_flag, data_option, example, json_option

HEADS = ("KEY", "VALUE", "FROM", "CHANGES", "TAKES")
WIDTH = 60  # characters of a value in the table
CHANGES = {"live": "at once", "start": "at next start"}


@click.group(cls=Commands, epilog=example("shoal config show", "shoal config set memory 4GiB"))
def config() -> None:
    """Show and change the settings that this node keeps.

    Every option of `shoal node` but --private is kept in the data folder's settings.conf, and
    holds at later starts until it is given otherwise or taken back.
    """


@config.command(epilog=example("shoal config show", "shoal config show memory --json"))
@click.argument("key", required=False)
@data_option
@json_option
def show(key: str | None, data: Path, as_json: bool) -> None:
    """Show all settings, or KEY: its value, where it comes from, when a change applies.

    FROM is default, file (kept from an earlier start), option (of this start) or command (`shoal
    config` while it ran). Works with and without a running daemon.
    """
    answer = _ask(data, "config")
    if key is not None:
        from ..node.settings import key_named

        name = key_named(key).name
        answer["settings"] = [each for each in answer["settings"] if each["key"] == name]
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(render.table(HEADS, [_row(each) for each in answer["settings"]]))
    if not answer["running"]:
        note = f"no daemon is running: these hold at the next `shoal node{data_flag(data)}`"
        click.echo(note, err=True)


def _row(each: dict[str, Any]) -> list[str]:
    value = render.safe(each["text"] or each["default"], WIDTH)
    if each["next"] != each["text"]:
        value += f"; next {render.safe(each['next'] or 'default', WIDTH)}"
    return [each["key"], value, each["origin"], CHANGES[each["applies"]], each["unit"]]


@config.command(
    name="set", epilog=example("shoal config set memory 4GiB", "shoal config set jobs no")
)
@click.argument("key")
@click.argument("value")
@data_option
@json_option
def set_(key: str, value: str, data: Path, as_json: bool) -> None:
    """Set KEY to VALUE for this node, from now on where it can, else from its next start.

    The value `default` takes it back, as `shoal config unset KEY` does. Several addresses are one
    VALUE, with spaces between. Works with and without a running daemon.
    """
    _tell(_ask(data, "config_set", key=key, text=value), data, as_json)


@config.command(epilog=example("shoal config unset memory"))
@click.argument("key")
@data_option
@json_option
def unset(key: str, data: Path, as_json: bool) -> None:
    """Forget what was kept for KEY: the default holds again."""
    _tell(_ask(data, "config_set", key=key, text=None), data, as_json)


def _tell(answer: dict[str, Any], data: Path, as_json: bool) -> None:
    if as_json:
        click.echo(render.as_json(answer))
        return
    what = "default" if answer["text"] is None else render.safe(answer["text"], WIDTH)
    when = "now" if answer["applied"] else f"from the next `shoal node{data_flag(data)}`"
    click.echo(f"{render.safe(answer['key'])}: {what}, {when}")


def _ask(data: Path, op: str, **more: Any) -> dict[str, Any]:
    """From the daemon, or from the folder where none runs."""
    from .client import is_running, request

    if is_running(data):
        return request(data, op, **more)
    import trio

    from ..node import offline
    from ..transport.realhost import RealHost

    if op == "config":
        return trio.run(offline.show_settings, RealHost(), data)
    return trio.run(offline.change_setting, RealHost(), data, more["key"], more["text"])
