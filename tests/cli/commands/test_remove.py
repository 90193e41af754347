"""`shoal model rm` and `shoal blob rm`: their output, and that they always ask."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import click
import pytest

from shoal.cli.commands.models.remove import lost
from shoal.cli.main import invoke
from shoal.node.control.messages.encoding import decode
from shoal.node.control.messages.models import Removed

ROOT = "ab" * 32
LOSS: dict[str, Any] = {
    "kind": "model", "root": ROOT, "names": ["mine"], "shared": 0, "fetched": False,
    "embedded": False, "freed": 5 << 20, "copies": 0, "partial": 0, "linked": True,
    "removed": False,
}  # fmt: skip
Shoal = Callable[..., SimpleNamespace]


@pytest.fixture
def asked(replaced: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def answer(op: str, _on_event: Any, asked: dict[str, Any]) -> Any:
        found.append({"op": op, **asked})
        return {**LOSS, "removed": asked["sure"]}

    replaced(answer)
    return found


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Shoal:
    def run(*args: str) -> SimpleNamespace:
        code = invoke(args)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


@pytest.mark.parametrize(
    ("args", "named"), [(("model", "rm"), {"name": "x"}), (("blob", "rm"), {"root": "x"})]
)
def test_nothing_is_removed_without_a_terminal(
    args: tuple[str, ...], named: dict[str, str], asked: list[dict[str, Any]], shoal: Shoal
) -> None:
    done = shoal(*args, "x")
    assert done.code == 1 and "nothing was changed" in done.err and "--yes" in done.err
    assert "this is the last known copy" in done.err
    assert asked == [{"op": f"{args[0]}_rm", **named, "sure": False}]
    done = shoal(*args, "x", "--yes")
    assert done.out == f"removed {ROOT[:16]}; 5.0 MiB of this disk are free again\n"
    assert [each["sure"] for each in asked] == [False, False, True]
    assert json.loads(shoal(*args, "x", "--yes", "--json").out)["removed"]
    assert len(asked) == 4


@pytest.mark.parametrize("agrees", [True, False])
def test_removal_asks_for_confirmation(
    agrees: bool, asked: list[dict[str, Any]], shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[str] = []

    def answer(question: str, **_: Any) -> bool:
        questions.append(question)
        return agrees

    monkeypatch.setattr(click, "confirm", answer)
    monkeypatch.setattr("shoal.cli.confirm.is_asked", lambda: True)
    done = shoal("model", "rm", "mine")
    assert questions == ["Remove it and free 5.0 MiB?"]
    assert (done.code, len(asked)) == ((0, 2) if agrees else (1, 1))


def test_sentences_about_the_loss() -> None:
    assert lost(decode(Removed, LOSS)) == [
        f"model mine, root {ROOT[:16]}: 5.0 MiB on this disk",
        "this is the last known copy: no other node claims to hold all of it",
    ]
    held = lost(decode(Removed, {**LOSS, "names": [], "shared": 3, "copies": 1, "partial": 2}))
    assert held == [
        f"model root {ROOT[:16]}: 5.0 MiB on this disk",
        "3 chunks of it stay, because other models or blobs here need them",
        "1 other node claims to hold all of it",
        "2 other nodes claim to hold parts of it",
    ]
    assert "has no links" in lost(decode(Removed, {**LOSS, "linked": False}))[-1]
    assert "unknown" in lost(decode(Removed, {**LOSS, "copies": None, "partial": None}))[-1]
    assert "embedded" in lost(decode(Removed, {**LOSS, "embedded": True}))[-1]
