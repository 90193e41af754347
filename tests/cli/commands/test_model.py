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
    heads, *rows, _, _, _ = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[0] == "FAMILY" and heads.endswith("ON CUDA")
    kinds = families()
    assert [row.split()[1] for row in rows] == list(kinds)
    cells = {row.split()[1]: " ".join(row.split()[2:]) for row in rows}
    assert cells["LlamaForCausalLM"] == "float32, bfloat16, int8, int4 float32"
    assert cells["MixtralForCausalLM"] == "float32, bfloat16, int8, int4 not tested"
    assert invoke(["model", "list", "--supported", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["supported"]
    names = [each.name for each in kinds.values()]
    assert [each["family"] for each in listed if each["device"] == "cpu"] == names
    assert [each["family"] for each in listed if each["device"] == "cuda"] == names
    assert listed[0]["precisions"] == ["float32", "bfloat16", "int8", "int4"]


def test_a_model_is_quantised_without_a_daemon(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["model", "add", str(model_folder), "--name", "mine"]) == 0
    capsys.readouterr()
    assert invoke(["model", "quantize", "mine", "--to", "int8", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["name"] == "mine-int8" and answer["root"] != ""
    assert invoke(["model", "quantize", "mine", "--to", "int4", "--name", "small"]) == 0
    out = capsys.readouterr().out
    assert "added small: 6 layers" in out and "`shoal node --model small" in out
    assert invoke(["model", "list", "--json"]) == 0
    listed = {each["name"]: each for each in json.loads(capsys.readouterr().out)["models"]}
    assert set(listed) == {"mine", "mine-int8", "small"}
    assert listed["small"]["weight_bytes"] < listed["mine-int8"]["weight_bytes"]
    assert 3 * listed["small"]["weight_bytes"] < 2 * listed["mine"]["weight_bytes"]


def test_quantising_says_what_is_wrong(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["model", "quantize", "nothing", "--to", "int8"]) == 1
    assert "no model 'nothing' is known" in capsys.readouterr().err
    assert invoke(["model", "quantize", "nothing", "--to", "int3"]) == 2
    assert invoke(["model", "add", str(model_folder), "--name", "mine"]) == 0
    assert invoke(["model", "quantize", "mine", "--to", "int8"]) == 0
    capsys.readouterr()
    assert invoke(["model", "quantize", "mine-int8", "--to", "int4"]) == 1
    assert "`shoal model list`" in capsys.readouterr().err
