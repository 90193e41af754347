"""`shoal job` with fine-tunings: the kind `finetune`."""

from pathlib import Path

import pytest

from shoal.cli.errors import CommandError
from tests.cli.commands.test_finetune import DONE as TUNED
from tests.cli.commands.test_finetune import TUNING
from tests.cli.commands.test_finetune import shown as shown_tuning
from tests.cli.commands.test_job import LACK, Daemon, Shoal, daemon, shoal

__all__ = ["daemon", "shoal"]


TUNING_FILE = """
model = "tiny"
kind = "finetune"
file = "texts.jsonl"
rank = 8
modules = ["q_proj", "v_proj"]
held_out = 0
seed = 7
priority = 9
deadline = 2100-01-01T00:00:00Z
seal = true
output = "adapter"
"""


def test_a_fine_tuning_is_a_job_too(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(TUNING_FILE)
    (tmp_path / "texts.jsonl").write_text("texts")
    daemon.answers["tuning_begin"] = {**shown_tuning(TUNING), "lack": LACK}
    done = shoal("submit", str(path))
    assert (done.code, done.out) == (0, f"{TUNING['id']}\n"), done.err
    assert "line 7: not JSON" in done.err and "not-replicated: no other node" in done.err
    (asked,) = daemon.asked
    assert asked["path"] == str(tmp_path / "texts.jsonl") and asked["out"] == str(
        tmp_path / "adapter"
    )
    assert (asked["moves"], asked["seal"], asked["priority"]) == (True, True, 9)
    assert (asked["deadline"], asked["seed"], asked["rank"]) == (4102444800, 7, 8)
    assert asked["modules"] == ["q_proj", "v_proj"] and asked["held_out"] == 0.0
    texts = str(tmp_path / "texts.jsonl")
    daemon.answers["tuning_follow"] = shown_tuning(TUNED)
    followed = shoal("submit", "tiny", "--file", texts, "--kind", "finetune", "--follow")
    assert followed.code == 0 and 'shoal run tiny "TEXT" --adapter' in followed.out, followed.err
    assert daemon.asked[1]["op"] == "tuning_begin" and daemon.asked[1]["moves"] is True


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("kind = 'finetune'\nprompt = 'x'", "needs a file with texts"),
        ("kind = 'finetune'\nfile = 'x'\nmax_tokens = 5", "`max_tokens` is not for fine-tunings"),
        ("kind = 'finetune'\nfile = 'x'\nseal = 'outputs'", "`seal = outputs` is not for"),
        ("kind = 'finetune'\nfile = 'x'\nrank = 'a'", "expected a whole number"),
        ("kind = 'finetune'\nfile = 'x'\nmodules = 'q'", "expected a list of texts"),
        ("file = 'x'\nrank = 5", "the key `rank`, which is for fine-tunings only"),
    ],
)
def test_a_wrong_job_file_of_a_fine_tuning(
    text: str, what: str, daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f"model = 'tiny'\n{text}")
    done = shoal("submit", str(path))
    assert done.code != 0 and what in done.err and "hint:" in done.err, done.err
    assert not daemon.asked


def test_result_and_cancel_of_a_fine_tuning(daemon: Daemon, shoal: Shoal) -> None:
    unknown = CommandError("unknown-job", "no job", hint="list")
    for op in ("job_result", "job_cancel"):
        daemon.answers[op] = unknown
    daemon.answers[TUNING["id"]] = unknown
    daemon.answers["tuning_show"] = shown_tuning(TUNING)
    daemon.answers["tuning_stop"] = {**TUNING, "state": "stopped"}
    undone = shoal("result", TUNING["id"])
    assert undone.code == 1 and "is running: 30 of 120 steps" in undone.err
    assert "stopped after step 24 of 120" in shoal("cancel", TUNING["id"]).out
    daemon.answers["tuning_show"] = shown_tuning(TUNED)
    found = shoal("result", TUNING["id"])
    assert found.code == 0 and 'shoal run tiny "TEXT" --adapter' in found.out
    daemon.answers["tuning_show"] = CommandError("unknown-tuning", "none", hint="list")
    for command in ("result", "cancel"):
        assert "no job" in shoal(command, TUNING["id"]).err
