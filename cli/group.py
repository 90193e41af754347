"""`shoal group [role | revoke | uninvite | rotate]`: who is in a private swarm, and as what."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from . import render
from .options import Commands, data_option, example, json_option

HEADS = ("MEMBER", "ROLE", "BY", "SINCE", "NOW")
INVITATION_HEADS = ("INVITATION", "ROLE", "JOINS LEFT", "ENDS")
ROLES = ("client", "operator", "owner")


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=example(
        "shoal group", "shoal group role 12D3KooWAbCdEf client", "shoal group revoke 12D3KooWAbCdEf"
    ),
)
@data_option
@json_option
@click.pass_context
def group(context: click.Context, data: Path, as_json: bool) -> None:
    """Show the members of a private swarm, their roles, and this node's invitations.

    An owner lets in whom it likes, changes roles and revokes; an operator serves and lets clients
    in; a client only asks. `shoal node --private` founds a group, `shoal invite` lets others
    in. Needs a running daemon.
    """
    if context.invoked_subcommand is not None:
        return
    from .client import request

    answer = request(data, "group")
    if as_json:
        click.echo(render.as_json(answer))
        return
    click.echo(group_text(answer))


@group.command(epilog=example("shoal group role 12D3KooWAbCdEf operator"))
@click.argument("peer")
@click.argument("role", type=click.Choice(ROLES))
@data_option
@json_option
def role(peer: str, role: str, data: Path, as_json: bool) -> None:
    """Make a member PEER a client, operator or owner. Only owners can.

    PEER is a peer id, or the beginning of it. On one that this node has revoked it takes
    that back.
    """
    from .client import request

    answer = request(data, "group_role", wait=True, peer=peer, role=role)
    _say(answer, as_json, f"{_peer(answer)} is now {_article(role)} {role}")


@group.command(epilog=example("shoal group revoke 12D3KooWAbCdEf"))
@click.argument("peer")
@data_option
@json_option
def revoke(peer: str, data: Path, as_json: bool) -> None:
    """Put a member PEER out: its links end, and what it says from now on counts nowhere.

    Only owners can. The members get a new key.
    """
    from .client import request

    answer = request(data, "group_revoke", wait=True, peer=peer)
    _say(answer, as_json, f"{_peer(answer)} is out; the members get a new key")


@group.command(epilog=example("shoal group uninvite 2H03G-8K0ZV-…"))
@click.argument("invitation")
@data_option
@json_option
def uninvite(invitation: str, data: Path, as_json: bool) -> None:
    """Take back an INVITATION of this node's: its code, or its id in `shoal group`."""
    from .client import request

    answer = request(data, "group_uninvite", wait=True, invitation=invitation)
    _say(answer, as_json, f"invitation {render.safe(answer['ident'])} lets nobody in any more")


@group.command(epilog=example("shoal group rotate"))
@data_option
@json_option
def rotate(data: Path, as_json: bool) -> None:
    """Give the members a new key; a revocation does that by itself. Only owners can."""
    from .client import request

    answer = request(data, "group_rotate", wait=True)
    _say(answer, as_json, f"the members get key {answer['key']}")


def group_text(answer: dict[str, Any]) -> str:
    """The answer of `group` as tables."""
    peers = [each["peer"] for each in (*answer["members"], *answer["revoked"])]
    rows = [member_row(member, answer["own"], peers) for member in answer["members"]]
    parts = [_head(answer), render.table(HEADS, rows)]
    for out in answer["revoked"]:
        parts.append(
            f"revoked: {render.short(out['peer'], peers)} by {render.short(out['by'], peers)}, "
            f"{_time(out['since'])}"
        )
    if answer["invitations"]:
        rows = [
            [
                render.safe(item["ident"]),
                render.safe(item["role"]),
                str(item["uses"]),
                _time(item["expires"]),
            ]
            for item in answer["invitations"]
        ]
        parts += ["", render.table(INVITATION_HEADS, rows)]
    return "\n".join(parts)


def member_row(member: dict[str, Any], own: str, peers: Sequence[str] = ()) -> list[str]:
    """A member as a line of the table."""
    who = render.short(member["peer"], peers) + (" (this node)" if member["peer"] == own else "")
    role = render.safe(member["role"])
    if member["founder"]:
        return [who, role, "founder", "", "answers" if member["live"] else ""]
    since = _time(member["since"])
    live = "answers" if member["live"] else ""
    return [who, role, render.short(member["by"], peers), since, live]


def _head(answer: dict[str, Any]) -> str:
    key = "no key yet" if answer["key"] is None else f"key {answer['key']}"
    known = "" if answer["key_known"] or answer["key"] is None else " (not known here yet)"
    return f"group {render.safe(answer['group'])}, {key}{known}"


def _say(answer: dict[str, Any], as_json: bool, text: str) -> None:
    click.echo(render.as_json(answer) if as_json else text)


def _peer(answer: dict[str, Any]) -> str:
    return render.short(answer["peer"])


def _article(role: str) -> str:
    return "a" if role == "client" else "an"


def _time(seconds: float) -> str:
    """A stranger's clock may say anything."""
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
    except (ValueError, OverflowError, OSError):
        return "at no time"
