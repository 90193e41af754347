"""`shoal config show | set | unset`: the stored settings of a node."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...transport.errors import ShoalError
from .. import render
from ..options import Commands, data_flag, data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.settings import ChangedSetting, SettingsView, SettingView

HEADS = ("KEY", "VALUE", "FROM", "CHANGES", "TAKES")
WIDTH = 60  # most characters of a value in the table
CHANGES = {"live": "at once", "start": "at next start"}


@click.group(cls=Commands, epilog=example("shoal config show", "shoal config set memory 4GiB"))
def config() -> None:
    """Show and change the stored settings of this node.

    Every option of `shoal node` except --private is stored in the data folder's settings.conf. It
    applies to later starts until you change or unset it.
    """


@config.command(epilog=example("shoal config show", "shoal config show memory --json"))
@click.argument("key", required=False)
@data_option
@json_option
def show(key: str | None, data: Path, as_json: bool) -> None:
    """Show all settings, or only KEY.

    The table has the value of each setting, its origin, and when a change takes effect. FROM is
    default, file (stored by an earlier start), option (of this start) or command (`shoal config`
    since then). Works with and without a running daemon.
    """
    answer = _settings(data)
    if key is not None:
        from dataclasses import replace

        from ...node.settings.settings import key_named

        name = key_named(key).name
        chosen = tuple(each for each in answer.settings if each.key == name)
        answer = replace(answer, settings=chosen)
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(render.table(HEADS, [_row(each) for each in answer.settings]))
    if not answer.running:
        note = f"no daemon is running: these apply to the next `shoal node{data_flag(data)}`"
        click.echo(note, err=True)


def _row(each: "SettingView") -> list[str]:
    value = render.safe(each.text or each.default, WIDTH)
    if each.next != each.text:
        value += f"; next {render.safe(each.next or 'default', WIDTH)}"
    return [each.key, value, each.origin, CHANGES[each.applies], each.unit]


@config.command(
    name="set", epilog=example("shoal config set memory 4GiB", "shoal config set jobs no")
)
@click.argument("key")
@click.argument("value")
@data_option
@json_option
def set_(key: str, value: str, data: Path, as_json: bool) -> None:
    """Set KEY to VALUE for this node.

    The change applies at once if the daemon can make it while it runs, else from the next start.
    The value `default` removes the setting, like `shoal config unset KEY`. Give several addresses
    as one VALUE, separated by spaces. Works with and without a running daemon.
    """
    try:
        answer = _change(data, key, value)
    except ShoalError as error:  # its hint is for an option of `shoal node`
        error.hint = error.hint and error.hint.replace(f"--{key} ", f"shoal config set {key} ")
        raise
    _tell(answer, data, as_json)


@config.command(epilog=example("shoal config unset memory"))
@click.argument("key")
@data_option
@json_option
def unset(key: str, data: Path, as_json: bool) -> None:
    """Remove the stored value of KEY, so that its default applies again."""
    _tell(_change(data, key, None), data, as_json)


def _tell(answer: "ChangedSetting", data: Path, as_json: bool) -> None:
    if as_json:
        click.echo(render.as_json(answer))
        return
    what = "default" if answer.text is None else render.safe(answer.text, WIDTH)
    when = "now" if answer.applied else f"from the next `shoal node{data_flag(data)}`"
    click.echo(f"{render.safe(answer.key)}: {what}, {when}")


def _settings(data: Path) -> "SettingsView":
    """Ask the daemon for the settings. If none runs, read them from the data folder."""
    from ..client import is_running, request

    if is_running(data):
        from ...node.control.messages.settings import GetSettings

        return request(data, GetSettings())
    import trio

    from ...node.control import offline
    from ...transport.host.real import RealHost

    return trio.run(offline.show_settings, RealHost(), data)


def _change(data: Path, key: str, text: str | None) -> "ChangedSetting":
    """Store or remove a setting through the daemon. If none runs, do so in the data folder."""
    from ..client import is_running, request

    if is_running(data):
        from ...node.control.messages.settings import ChangeSetting

        return request(data, ChangeSetting(key=key, text=text))
    import trio

    from ...node.control import offline
    from ...transport.host.real import RealHost

    return trio.run(offline.change_setting, RealHost(), data, key, text)
