"""`shoal share`, and how other commands show shared models."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli.main import invoke
from shoal.node.errors import ControlError
from tests.cli.conftest import ANSWER, DOCTOR, STATUS

SHARE: dict[str, Any] = {
    "name": "mine", "called": "mine", "model": "llama3.2:1b",
    "url": "http://127.0.0.1:11434", "local": True,
    "engine": "Ollama", "context": 4096, "offered": True, "trouble": None, "at_once": 4,
    "running": 1, "waiting": 2, "answered": 7,
}  # fmt: skip
DOWN = SHARE | {"name": "down", "offered": False, "engine": None,
                "trouble": "no engine answers at http://127.0.0.1:11434"}  # fmt: skip
SHARES = {"shares": [SHARE, DOWN], "audience": "every node of the open swarm"}
OFFER: dict[str, Any] = {
    "called": "mine", "name": "mine", "peer": "12D3KooWOther", "engine": "Ollama", "context": 0,
    "takes": ["chat"], "here": False,
}  # fmt: skip


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str) -> SimpleNamespace:
        code = invoke(list(args))
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_share_url_is_short_for_add(shoal: Any, replaced: Any) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def fake(op: str, _on_event: Any, fields: dict[str, Any]) -> Any:
        asked.append((op, fields))
        return SHARES | {"shares": [SHARE]}

    replaced(fake)
    for words in (("share", "http://127.0.0.1:11434"), ("share", "add", "127.0.0.1:11434"),
                  ("share", "localhost:11434")):  # fmt: skip
        done = shoal(*words, "--model", "llama3.2:1b", "--as", "mine", "--at-once", "2")
        assert done.code == 0, done.err
        assert "sharing mine with every node" in done.out and "no root" in done.out
        op, fields = asked.pop()
        assert op == "share_add" and fields["name"] == "mine" and fields["at_once"] == 2
        assert list(fields["models"]) == ["llama3.2:1b"] and not fields["every"]
    replaced(lambda *_: SHARES | {"shares": [SHARE | {"local": False, "called": "mine@12D3KooWx"}]})
    far = shoal("share", "192.168.1.5:80").out
    assert "unencrypted" in far and "keeps it" in far and "shoal run mine@12D3KooWx" in far


def test_a_mistyped_command_is_no_address(shoal: Any) -> None:
    wrong = shoal("share", "lst")
    assert wrong.code == 2 and "share list" in wrong.err
    assert shoal("share", "http://127.0.0.1:1", "--at-once", "0").code == 2
    assert "no daemon" in shoal("share", "http://127.0.0.1:1").err


def test_refusals_of_the_daemon_have_a_hint(shoal: Any, fake_daemon: Any) -> None:
    refusal = ControlError("several-models", "the engine has 2 models", hint="choose `--model`")
    with fake_daemon({"share_add": refusal}):
        refused = shoal("share", "http://127.0.0.1:1")
    assert refused.code == 1 and "hint: choose `--model`" in refused.err


def test_list_and_stop(shoal: Any, fake_daemon: Any) -> None:
    with fake_daemon({"shares": SHARES, "share_stop": SHARE}):
        listed = shoal("share", "list")
        assert "llama3.2:1b" in listed.out and "1 of 4" in listed.out
        assert "down: no engine answers" in listed.out and "no root" in listed.out
        assert json.loads(shoal("share", "list", "--json").out)["shares"][0]["waiting"] == 2
        assert "mine is no longer shared" in shoal("share", "stop", "mine").out
    with fake_daemon({"shares": {"shares": [], "audience": ""}}):
        assert "shares no model" in shoal("share", "list").out


def test_every_listing_says_that_there_is_no_root(shoal: Any, fake_daemon: Any) -> None:
    hostile = OFFER | {"called": "x\x1b[31m", "peer": "12D3KooWEvil"}
    models = {"models": [], "shared": [OFFER, hostile]}
    status = STATUS | SHARES | {"shared": [OFFER]}
    with fake_daemon({"models": models, "status": status, "doctor": DOCTOR | SHARES}):
        listed = shoal("model", "list").out
        assert "no root: which weights answer" in listed and listed.count("no root") == 3
        assert "\x1b" not in listed and "unknown" in listed
        shown = shoal("status").out
        assert "mine: shared by 12D3KooWOther, no root" in shown
        assert "mine (no root): llama3.2:1b of Ollama" in shown
        assert "down, not offered: no engine answers" in shown
        assert "shared with" in shown and "every node of the open swarm" in shown
        told = shoal("doctor").out
        assert "shared with every node of the open swarm" in told and "mine (no root)" in told


def test_an_answer_names_its_sharer(shoal: Any, fake_daemon: Any) -> None:
    events = [{"event": "shared", "peer": "12D3KooWOther"}, {"event": "text", "text": "hello"},
              ANSWER | {"nodes": [], "shared_by": "12D3KooWOther"}]  # fmt: skip
    with fake_daemon({"run": events}):
        done = shoal("run", "mine", "Hi")
    assert done.code == 0 and done.out == "hello\n"
    assert "shared by 12D3KooWOther, no root" in done.err and "node" not in done.err
