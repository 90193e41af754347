"""`shoal blob add | get | list | rm`: files of any kind, under the hash of their content."""

import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..errors import CommandError
from ..options import Commands, data_flag, data_option, example, json_option
from .models.pull import dropped
from .models.remove import remove_blob

if TYPE_CHECKING:
    from ...node.control.messages.models import BlobView


@click.group(cls=Commands, epilog=example("shoal blob add ./data.bin", "shoal blob list"))
def blob() -> None:
    """Share and get files by the hash of their content."""


blob.add_command(remove_blob)


@blob.command(epilog=example("shoal blob add ./data.bin"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@data_option
@json_option
def add(file: Path, data: Path, as_json: bool) -> None:
    """Share FILE and print its root, with which other nodes get it. Needs a running daemon."""
    from ...node.control.messages.models import AddBlob
    from ..client import request
    from ..progress import Bar

    ask = AddBlob(path=str(file.resolve()))
    with Bar("reading") as bar:
        answer = request(data, ask, wait=True, on_event=lambda e: bar.show(e.done, e.total))
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(f"added {render.safe(answer.root, 64)}, {render.size(answer.size)}")
    name = shlex.quote(render.safe(file.name))
    click.echo(f"get it elsewhere with `shoal blob get {render.safe(answer.root, 64)} {name}`")


@blob.command(epilog=example(f"shoal blob get {'ab' * 32} ./data.bin"))
@click.argument("root")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@data_option
@json_option
def get(root: str, file: Path, data: Path, as_json: bool) -> None:
    """Get the blob ROOT from other nodes and write it to FILE, verified.

    If the command is interrupted, repeat it to continue where it stopped. If the disk fills up, it
    waits for free space. Needs a running daemon.
    """
    from ...node.control.messages.models import BytesDone, DiskFullWait, GetBlob
    from ..client import request
    from ..progress import Bar

    path, came = file.resolve(), ""
    check_folder(path.parent)
    with Bar("getting") as bar:

        def on_event(event: BytesDone | DiskFullWait) -> None:
            nonlocal came
            if isinstance(event, DiskFullWait):
                print(f"waiting: {render.safe(event.message, 300)}", file=sys.stderr)
            else:
                bar.show(event.done, event.total)
                came = f", {render.size(event.done)} of {render.size(event.total)} are here"

        try:
            ask = GetBlob(root=root, path=str(path))
            answer = request(data, ask, wait=True, on_event=on_event)
        except KeyboardInterrupt:
            again = f"shoal blob get {shlex.quote(root)} {shlex.quote(str(file))}{data_flag(data)}"
            raise CommandError(
                "interrupted",
                f"interrupted{came}; finished chunks are kept",
                hint=f"`{again}` continues from there",
            ) from None
    if as_json:
        click.echo(render.as_json(answer))
        return
    whence = "it was here already"
    if answer.fetched:
        peers, took = render.count(answer.peers, "peer"), answer.seconds
        whence = f"{render.size(answer.fetched)} from {peers} in {took:.1f} s"
    wrote = f"wrote {render.size(answer.size)}: {whence}"
    click.echo("\n".join([wrote, *dropped(answer.liars)]))


def check_folder(folder: Path) -> None:
    """Check that a folder exists and is writable, before a download into it. Raises CommandError if
    it is not."""
    if not folder.is_dir():
        raise CommandError(
            "no-folder",
            f"`{folder}` is not a folder",
            hint=f"create it first: `mkdir -p {shlex.quote(str(folder))}`",
        )
    if not os.access(folder, os.W_OK):
        raise CommandError(
            "no-folder", f"the folder `{folder}` is not writable", hint="choose another folder"
        )


@blob.command("list", epilog=example("shoal blob list", "shoal blob list --json"))
@data_option
@json_option
def list_(data: Path, as_json: bool) -> None:
    """List the blobs of this node. Needs a running daemon.

    To get a blob on another node, use its full root, which `--json` shows.
    """
    from ...node.control.messages.models import ListBlobs
    from ..client import request

    answer = request(data, ListBlobs())
    if as_json:
        click.echo(render.as_json(answer))
    elif not answer.blobs:
        click.echo("there are no blobs here; add one with `shoal blob add FILE`")
    else:
        rows = [_row(item) for item in answer.blobs]
        click.echo(render.table(("ROOT", "SIZE", "CHUNKS", "MISSING", "ADDED HERE"), rows))


def _row(item: "BlobView") -> list[str]:
    return [
        render.short(item.root),
        render.size(item.size),
        str(item.chunks),
        str(item.missing),
        "yes" if item.own else "no",
    ]
