"""`shoal model add` and `list` without a daemon."""

import json
import shutil
from pathlib import Path

import pytest

from shoal.cli.main import invoke
from shoal.tasks.engine.families import families


def test_a_name_that_is_given_again_says_what_becomes_of_the_old_model(
    tmp_path: Path, model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(model_folder, changed)
    config = (changed / "config.json").read_text()
    (changed / "config.json").write_text(config.replace("1024", "512"))
    assert invoke(["model", "add", str(model_folder), "--name", "mine"]) == 0
    first = capsys.readouterr().out
    assert "before" not in first
    old = first.split("root ")[1][:12]
    assert invoke(["model", "add", str(changed), "--name", "mine"]) == 0
    second = capsys.readouterr().out
    assert f"this name meant {old} here before; that model stays on this disk\n" in second
    assert f"`shoal model rm {old}" in second
    assert invoke(["model", "list"]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 2 and sum(row.endswith(old) for row in rows) == 1
    assert invoke(["model", "rm", old, "--yes"]) == 0, "as it says"


def test_the_supported_families_are_listed_without_a_daemon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert invoke(["model", "list", "--supported"]) == 0
    heads, *rows, _ = capsys.readouterr().out.splitlines()
    assert heads.split() == ["FAMILY", "ARCHITECTURE", "DEVICE", "PRECISIONS"]
    kinds = families()
    assert [row.split()[1] for row in rows] == list(kinds)
    assert all(row.split()[2:] == ["cpu", "float32,", "bfloat16"] for row in rows)
    assert invoke(["model", "list", "--supported", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["supported"]
    assert [each["family"] for each in listed] == [each.name for each in kinds.values()]
    assert listed[0]["precisions"] == ["float32", "bfloat16"]
