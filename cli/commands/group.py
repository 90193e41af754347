"""`shoal group [role | revoke | uninvite | rotate]`: the members of a private swarm."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .. import render
from ..options import Commands, data_option, example, json_option

if TYPE_CHECKING:
    from ...node.control.messages.encoding import View
    from ...node.control.messages.group import GroupView, MemberView

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
    """Show or change the members of a private swarm.

    Without a command, shows the members, their roles and this node's invitations. An owner invites
    members with any role, changes roles and revokes members. An operator serves models and invites
    clients. A client only sends requests. `shoal node --private` creates a group, `shoal invite`
    adds members. Needs a running daemon.
    """
    if context.invoked_subcommand is not None:
        return
    from ...node.control.messages.group import GetGroup
    from ..client import request

    answer = request(data, GetGroup())
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
    """Make PEER a client, operator or owner. Only owners can do this.

    PEER is a peer id or the beginning of one. On a member that this node has revoked, the command
    undoes the revocation.
    """
    from ...node.control.messages.group import ChangeRole
    from ..client import request

    answer = request(data, ChangeRole(peer=peer, role=role), wait=True)
    _say(answer, as_json, f"{render.short(answer.peer)} is now {_article(role)} {role}")


@group.command(epilog=example("shoal group revoke 12D3KooWAbCdEf"))
@click.argument("peer")
@data_option
@json_option
def revoke(peer: str, data: Path, as_json: bool) -> None:
    """Revoke the membership of PEER.

    Its links end, and the swarm ignores what it says from now on. The remaining members get a new
    key. Only owners can do this.
    """
    from ...node.control.messages.group import Revoke
    from ..client import request

    answer = request(data, Revoke(peer=peer), wait=True)
    _say(answer, as_json, f"{render.short(answer.peer)} is revoked; the members get a new key")


@group.command(epilog=example("shoal group uninvite 2H03G-8K0ZV-…"))
@click.argument("invitation")
@data_option
@json_option
def uninvite(invitation: str, data: Path, as_json: bool) -> None:
    """Revoke an INVITATION of this node.

    INVITATION is its code, or its id from `shoal group`.
    """
    from ...node.control.messages.group import Uninvite
    from ..client import request

    answer = request(data, Uninvite(invitation=invitation), wait=True)
    _say(answer, as_json, f"invitation {render.safe(answer.ident)} is no longer valid")


@group.command(epilog=example("shoal group rotate"))
@data_option
@json_option
def rotate(data: Path, as_json: bool) -> None:
    """Give the members a new key. A revocation does this by itself. Only owners can do this."""
    from ...node.control.messages.group import Rotate
    from ..client import request

    answer = request(data, Rotate(), wait=True)
    _say(answer, as_json, f"the members get key {answer.key}")


def group_text(answer: "GroupView") -> str:
    """Format the reply of `group` as text and tables."""
    peers = [each.peer for each in answer.members] + [each.peer for each in answer.revoked]
    rows = [member_row(member, answer.own, peers) for member in answer.members]
    parts = [_head(answer), render.table(HEADS, rows)]
    for out in answer.revoked:
        parts.append(
            f"revoked: {render.short(out.peer, peers)} by {render.short(out.by, peers)}, "
            f"{_time(out.since)}"
        )
    if answer.invitations:
        rows = [
            [
                render.safe(item.ident),
                render.safe(item.role),
                str(item.uses),
                _time(item.expires),
            ]
            for item in answer.invitations
        ]
        parts += ["", render.table(INVITATION_HEADS, rows)]
    return "\n".join(parts)


def member_row(member: "MemberView", own: str, peers: Sequence[str] = ()) -> list[str]:
    """Format a member as a row of the table."""
    who = render.short(member.peer, peers) + (" (this node)" if member.peer == own else "")
    role = render.safe(member.role)
    if member.founder:
        return [who, role, "founder", "", "answers" if member.live else ""]
    since = _time(member.since)
    live = "answers" if member.live else ""
    return [who, role, render.short(member.by, peers), since, live]


def _head(answer: "GroupView") -> str:
    key = "no key yet" if answer.key is None else f"key {answer.key}"
    known = "" if answer.key_known or answer.key is None else " (not known here yet)"
    return f"group {render.safe(answer.group)}, {key}{known}"


def _say(answer: "View", as_json: bool, text: str) -> None:
    click.echo(render.as_json(answer) if as_json else text)


def _article(role: str) -> str:
    return "a" if role == "client" else "an"


def _time(seconds: float) -> str:
    """Format a time that another node's clock gave, in seconds since 1970. It may lie outside the
    range of dates."""
    try:
        return datetime.fromtimestamp(seconds).isoformat(" ", "minutes")
    except (ValueError, OverflowError, OSError):
        return "at no time"
