"""Output of `shoal plan`, from a daemon and from a file."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.cli.main import invoke

PEER = "12D3KooW" + "a" * 44


def outcome(tokens: float, stages: int = 1) -> dict[str, Any]:
    node = {"node": PEER, "layers": "0:6", "bytes": 2**30, "sessions": 8, "step_ms": 2.5}
    return {
        "tokens_per_s": tokens, "single_per_s": tokens / 4, "first_token_s": 0.25,
        "stages": stages, "sessions": 8,
        "nodes": [node, {**node, "sessions": 0}] if stages else [],
    }  # fmt: skip


ANSWER: dict[str, Any] = {
    "model": "ti\x1bny", "layers": 6, "dtype": "float32", "machines": 2, "sessions": 8,
    "prompt": 1024, "answer": 256, "best": outcome(100.0), "present": outcome(80.0),
    "added": outcome(150.0), "removed": outcome(0.0, 0),
    "smaller": [{**outcome(200.0), "precision": "int8", "loss": 0.001}],
}  # fmt: skip


def test_a_plan_of_the_daemon(replaced: Any, capsys: Any) -> None:
    asked: list[Any] = []

    def converse(op: str, _emit: object, fields: dict[str, Any]) -> dict[str, Any]:
        asked.append((op, fields))
        return ANSWER

    replaced(converse)
    args = ["plan", "tiny", "--add", "memory=4GiB", "--remove", "12D3KooWaaaa", "--sessions", "8"]
    assert invoke(args) == 0
    (op, fields), = asked  # fmt: skip
    assert op == "plan" and fields["name"] == "tiny" and fields["sessions"] == 8
    assert fields["add"] == "memory=4GiB" and fields["remove"] == "12D3KooWaaaa"
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == (
        "ti\\x1bny (6 layers, float32) on 2 machines, for 8 sessions of 1024 and 256 tokens"
    )
    assert lines[2].split() == ["12D3KooWaaaaaa", "0:6", "1.0", "GiB", "8", "2.5", "ms"]
    assert "standby" in lines[3]
    assert lines[4].startswith("predicted  100.0 tokens/s in all, 25.0 for one session alone")
    assert lines[5].startswith("now        80.0") and lines[5].endswith("1 stage")
    assert lines[6].startswith("with it") and lines[6].endswith("(+50 %)")
    assert lines[8].startswith("in int8    200.0") and "0.1 % more loss" in lines[8]
    assert lines[7] == "without it these machines cannot hold the model for such sessions"


def test_what_cannot_answer_says_why(replaced: Any, capsys: Any) -> None:
    small = [{**outcome(0.0, 0), "precision": "int8", "loss": 0.001}]
    replaced(lambda *_: {**ANSWER, "present": outcome(0.0, 0), "smaller": small})
    assert invoke(["plan", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "now        members do not serve all layers of the model" in lines
    assert "in int8    these machines cannot hold the model for such sessions" in lines


def test_json(replaced: Any, capsys: Any) -> None:
    replaced(lambda *_: ANSWER)
    assert invoke(["plan", "tiny", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == ANSWER["added"]


NODES = """
[demand]
sessions = 2
[[node]]
name = "desk"
memory = "4GiB"
bandwidth = 50
tflops = 1
[[node]]
name = "old"
memory = "4GiB"
"""
LLAMA = {
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "tie_word_embeddings": False,
    "vocab_size": 1000, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8,
    "num_key_value_heads": 8, "num_hidden_layers": 4,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def planned(folder: Path, *args: str) -> int:
    return invoke(["plan", str(folder), "--nodes", str(folder / "nodes.toml"), *args])


def test_a_file_needs_no_daemon(folder: Path, capsys: Any) -> None:
    assert (
        planned(folder, "--json", "--remove", "desk", "--add", "memory=8GiB,bandwidth=500,tflops=5")
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert (found["layers"], found["dtype"], found["sessions"]) == (4, "float32", 2)
    assert found["best"]["stages"] == 1 and found["present"] is None
    best = found["best"]["tokens_per_s"]
    assert found["added"]["tokens_per_s"] > best > found["removed"]["tokens_per_s"] > 0
    assert planned(folder, "--json", "--sessions", "5") == 0
    assert json.loads(capsys.readouterr().out)["sessions"] == 5


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--remove", "none"], "cannot be removed"),
        (["--add", "colour=red"], "is not one of memory="),
        (["--add", "bandwidth=3"], "`memory` is not a size"),
    ],
)
def test_bad_values(folder: Path, args: list[str], says: str, capsys: Any) -> None:
    assert planned(folder, *args) == 1
    error = capsys.readouterr().err
    assert says in error and "hint: docs/plan.md" in error


def test_bad_files(folder: Path, capsys: Any) -> None:
    for text in (None, "[[node", "[[node]]\nname = 1"):
        if text is None:
            (folder / "nodes.toml").unlink()
        else:
            (folder / "nodes.toml").write_text(text)
        assert planned(folder) == 1
        assert "hint: docs/plan.md" in capsys.readouterr().err


def test_the_embedded_model_needs_no_data_folder(folder: Path, capsys: Any) -> None:
    nodes = str(folder / "nodes.toml")
    args = ["plan", "tiny", "--nodes", nodes, "--data", str(folder / "none"), "--json"]
    assert invoke(args) == 0
    assert json.loads(capsys.readouterr().out)["layers"] == 6
    assert not (folder / "none").exists()


def test_a_model_that_does_not_exist(folder: Path, capsys: Any) -> None:
    assert invoke(["plan", "nosuch", "--nodes", str(folder / "nodes.toml")]) == 1
    assert "no model" in capsys.readouterr().err


def test_options_out_of_range_are_misuse(folder: Path) -> None:
    assert planned(folder, "--sessions", "65") == 2


def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path, capsys: Any) -> None:
    assert invoke(["plan", "tiny", "--data", str(tmp_path / "none")]) == 10
    assert "no daemon is running" in capsys.readouterr().err
