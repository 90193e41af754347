"""`shoal group`: its requests and its output."""

import json
from typing import Any

import pytest

from shoal.cli.main import invoke

OWN, OTHER = "12D3KooW" + "a" * 44, "12D3KooW" + "b" * 44
ANSWER = {
    "group": "ab" * 16, "founder": OWN, "own": OWN, "key": 3, "key_known": True,
    "members": [
        {"peer": OWN, "role": "owner", "by": OWN, "since": 0.0, "founder": True, "live": True},
        {"peer": OTHER, "role": "client", "by": OWN, "since": 1_700_000_000.0, "founder": False,
         "live": False},
    ],
    "revoked": [{"peer": OTHER, "by": OWN, "since": 2**62}],
    "invitations": [{"ident": "cd" * 8, "role": "operator", "uses": 2, "expires": 1_700_000_000.0}],
}  # fmt: skip


class Daemon:
    """Replaces the control socket."""

    def __init__(self, answer: dict[str, Any]) -> None:
        self.answer = answer
        self.asked: dict[str, Any] = {}

    def converse(self, op: str, _on_event: Any, asked: dict[str, Any]) -> Any:
        self.asked = {"op": op, **asked}
        return self.answer


def shown(replaced: Any, capsys: pytest.CaptureFixture[str], daemon: Daemon, *args: str) -> str:
    replaced(daemon.converse)
    assert invoke(["group", *args]) == 0
    return capsys.readouterr().out


def test_the_members(replaced: Any, capsys: Any) -> None:
    lines = shown(replaced, capsys, Daemon(ANSWER)).splitlines()
    assert lines[0] == f"group {'ab' * 16}, key 3"
    assert lines[2].split()[:5] == ["12D3KooWaaaaaa", "(this", "node)", "owner", "founder"]
    assert lines[3].split()[:3] == ["12D3KooWbbbbbb", "client", "12D3KooWaaaaaa"]
    assert lines[4] == "revoked: 12D3KooWbbbbbb by 12D3KooWaaaaaa, at no time"
    assert lines[-1].split()[:3] == ["cd" * 8, "operator", "2"]


@pytest.mark.parametrize(
    ("key", "known", "words"),
    [(None, False, "no key yet"), (4, False, "key 4 (not known here yet)"), (4, True, "key 4")],
)
def test_the_key(key: int | None, known: bool, words: str, replaced: Any, capsys: Any) -> None:
    answer = {**ANSWER, "key": key, "key_known": known, "invitations": [], "revoked": []}
    lines = shown(replaced, capsys, Daemon(answer)).splitlines()
    assert lines[0].endswith(f", {words}") and len(lines) == 4


@pytest.mark.parametrize(
    ("args", "answer", "asked", "text"),
    [
        (["role", "bbb", "operator"], {"peer": OTHER, "role": "operator"},
         {"op": "group_role", "peer": "bbb", "role": "operator"},
         "12D3KooWbbbbbb is now an operator\n"),
        (["revoke", "bbb"], {"peer": OTHER}, {"op": "group_revoke", "peer": "bbb"},
         "12D3KooWbbbbbb is revoked; the members get a new key\n"),
        (["rotate"], {"key": 5}, {"op": "group_rotate"}, "the members get key 5\n"),
        (["uninvite", "cd"], {"ident": "cd"}, {"op": "group_uninvite", "invitation": "cd"},
         "invitation cd is no longer valid\n"),
    ],
)  # fmt: skip
def test_changes(
    args: list[str], answer: Any, asked: Any, text: str, replaced: Any, capsys: Any
) -> None:
    daemon = Daemon(answer)
    assert shown(replaced, capsys, daemon, *args) == text
    assert daemon.asked == asked
    assert json.loads(shown(replaced, capsys, daemon, *args, "--json")) == answer


def test_as_json(replaced: Any, capsys: Any) -> None:
    assert json.loads(shown(replaced, capsys, Daemon(ANSWER), "--json")) == ANSWER
