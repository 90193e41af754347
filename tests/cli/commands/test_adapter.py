"""`shoal adapter` without a daemon, and what it prints with one."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli.main import invoke
from shoal.node.defaults import EMBEDDED_ROOT
from tests.tasks import peft_folder

TINY = Path(__file__).parents[3] / "shoal" / "models" / "tiny"
CONFIG: dict[str, Any] = json.loads((TINY / "config.json").read_text())
ADAPTER: dict[str, Any] = {
    "name": "poet", "root": "ab" * 32, "base": "cd" * 32, "model": None, "rank": 8, "alpha": 16.0,
    "rslora": False, "scale": 2.0, "dtype": "BF16", "modules": ["q_proj", "v_proj"],
    "layers": "0:6", "size": 5 << 20,
}  # fmt: skip


@pytest.fixture
def shoal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str) -> SimpleNamespace:
        code = invoke([*args, "--data", str(tmp_path / "data")])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_adding_and_listing_need_no_daemon(shoal: Any, tmp_path: Path) -> None:
    folder = peft_folder.save(tmp_path / "poet", peft_folder.make_tensors(CONFIG))
    assert "no adapters are known" in shoal("adapter", "list").out
    early = shoal("adapter", "add", str(folder))
    assert early.code != 0 and "fits 0 of the 0 models" in early.err and "hint: " in early.err
    assert shoal("model", "add", str(TINY)).code == 0
    added = shoal("adapter", "add", str(folder), "--model", "tiny")
    assert added.code == 0, added.err
    assert "added poet: rank 4, layers 0:6 of tiny" in added.out and "--adapter poet" in added.out
    again = json.loads(shoal("adapter", "add", str(folder), "--name", "bard", "--json").out)
    assert (again["name"], again["model"], again["base"]) == ("bard", "tiny", EMBEDDED_ROOT)
    assert again["root"] in added.out
    listed = json.loads(shoal("adapter", "list", "--json").out)["adapters"]
    assert [each["name"] for each in listed] == ["bard", "poet"]
    assert "poet" in shoal("adapter", "list").out
    unknown = shoal("adapter", "add", str(folder), "--model", "nix")
    assert unknown.code != 0 and "'nix'" in unknown.err


def test_bad_folders_and_names_are_refused_with_a_hint(shoal: Any, tmp_path: Path) -> None:
    tensors = peft_folder.make_tensors(CONFIG)
    shoal("model", "add", str(TINY))
    for folder, words in (
        (peft_folder.save(tmp_path / "a", tensors, use_dora=True), "use_dora"),
        (peft_folder.save(tmp_path / "b", tensors, rank=5), "rank 5"),
        (tmp_path, "no adapter_config.json"),
    ):
        refused = shoal("adapter", "add", str(folder))
        assert refused.code != 0 and words in refused.err and "hint: " in refused.err
    good = peft_folder.save(tmp_path / "c", tensors)
    named = shoal("adapter", "add", str(good), "--name", "../x")
    assert named.code != 0 and "'../x'" in named.err
    assert "no adapters" in shoal("adapter", "list").out


def test_show_pull_and_rm_ask_the_daemon(
    shoal: Any, replaced: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[dict[str, Any]] = []

    def answer(op: str, _on_event: Any, fields: dict[str, Any]) -> Any:
        asked.append({"op": op, **fields})
        return ADAPTER

    replaced(answer)
    shown = shoal("adapter", "show", "poet").out
    assert "not here" in shown and "q_proj v_proj" in shown and "cd" * 32 in shown
    shoal("adapter", "pull", "ab" * 32, "--name", "poet")
    assert [each["op"] for each in asked] == ["adapter_show", "adapter_pull"]
    assert asked[1] == {"op": "adapter_pull", "root": "ab" * 32, "name": "poet"}
