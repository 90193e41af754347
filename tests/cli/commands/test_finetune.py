"""`shoal finetune`: what it asks the daemon for, what it prints, and how it ends."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli.errors import CommandError
from shoal.cli.main import invoke
from shoal.cli.tuningviews import chart
from tests.cli.commands.test_job import ITEM, JOB

TUNING: dict[str, Any] = {
    "id": "3fa9c1d20011", "model": "tiny", "root": "ab" * 32, "name": "tiny-poems",
    "state": "running", "step": 30, "steps": 120, "loss": 2.5, "held_out": 2.75, "best": 2.7,
    "best_step": 24, "speed": 1234.5, "left_s": 95.0, "spent_s": 12.0, "saved": 24,
    "trouble": None, "error": None, "message": None, "hint": None, "adapter": None, "made": 1.7e9,
    "source": "/home/me/poems.jsonl", "folder": "/data/tuning/3fa9c1d20011", "out": None,
    "together": None, "company": None, "moves": False, "job": None, "trainer": None,
    "full": False,
}  # fmt: skip
DONE = {**TUNING, "state": "done", "step": 120, "adapter": "cd" * 32, "left_s": None,
        "speed": None}  # fmt: skip
DATA: dict[str, Any] = {
    "lines": 210, "rows": 200, "tokens": 9000, "counted": 8800, "split": 3, "cut": 2, "empty": 1,
    "whole_chats": 4, "bad": 2, "named": [{"line": 7, "why": "not JSON: expecting value\x1b[2J"}],
}  # fmt: skip
SETTINGS: dict[str, Any] = {
    "rank": 16, "alpha": 32.0, "modules": ["q_proj", "v_proj"], "rate": 0.0014, "warmup": 6,
    "decay": 0.0, "batch": 8, "length": 512, "steps": 120, "seed": 7, "held_out": 20, "look": 6,
    "every": None, "full": False,
}  # fmt: skip
CURVE = [
    {"step": n, "loss": 4 - n / 60, "held_out": 4 - n / 80 if n % 6 == 0 else None}
    for n in range(1, 121)
]


def shown(tuning: dict[str, Any]) -> dict[str, Any]:
    return {"tuning": tuning, "settings": SETTINGS, "data": DATA, "curve": CURVE}


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    path = tmp_path / "poems.jsonl"
    path.write_text('{"text": "A rose."}\n')
    return path


@pytest.fixture
def shoal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*args: str) -> SimpleNamespace:
        code = invoke(args)
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def daemon(answers: dict[str, Any], asked: list[tuple[str, Any]]) -> Any:
    def fake(op: str, on_event: Any, fields: dict[str, Any]) -> Any:
        asked.append((op, fields))
        answer = answers[op]
        if isinstance(answer, list):
            for event in answer[:-1]:
                on_event(event)
            answer = answer[-1]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return fake


def test_it_starts_follows_and_says_how_to_use_the_result(
    shoal: Any, replaced: Any, texts: Path
) -> None:
    asked: list[tuple[str, Any]] = []
    events = [{"event": "progress", "tuning": TUNING} for _ in range(3)]
    replaced(
        daemon({"tuning_begin": shown(TUNING), "tuning_follow": [*events, shown(DONE)]}, asked)
    )
    found = shoal("finetune", "tiny", "--data", str(texts), "--rank", "8", "--epochs", "5",
                  "--modules", "q_proj,v_proj")  # fmt: skip
    assert found.code == 0, found.err
    (op, fields), (follow, named) = asked
    assert (op, follow, named) == ("tuning_begin", "tuning_follow", {"tuning": TUNING["id"]})
    assert fields["path"] == str(texts) and fields["rank"] == 8 and fields["epochs"] == 5.0
    assert fields["modules"] == ["q_proj", "v_proj"] and fields["model"] == "tiny"
    for words in ("120 steps, adapter tiny-poems", "200 rows with 9,000 tokens", "2 broken lines",
                  "split: 3 texts", "cut off: the end of 2 rows", "learned whole: 4 conv",
                  "120 steps of 8 rows: 5.2 passes over 180 rows, 20 rows held out; the time",
                  'shoal run tiny "TEXT" --adapter tiny-poems', "after step 24, the best on",
                  "the model is `tiny+tiny-poems`",
                  "/data/tuning/3fa9c1d20011/adapter"):  # fmt: skip
        assert words in found.out
    assert "\x1b" not in found.out and "line 7: not JSON" in found.out
    assert found.err.count("step 30 of 120 · loss 2.500 · held out 2.750 · 1,234 tokens/s") == 1


def test_full_training_says_how_to_use_the_model(shoal: Any, replaced: Any, texts: Path) -> None:
    asked: list[tuple[str, Any]] = []
    full = {**DONE, "full": True}
    begun = {**shown({**TUNING, "full": True}), "settings": {**SETTINGS, "full": True}}
    replaced(daemon({"tuning_begin": begun, "tuning_follow": shown(full)}, asked))
    found = shoal("finetune", "tiny", "--data", str(texts), "--full")
    assert found.code == 0 and asked[0][1]["full"] is True, found.err
    for words in ("120 steps, model tiny-poems", 'use it with `shoal run tiny-poems "TEXT"',
                  f"on other nodes, `shoal run {'cd' * 32}`",
                  "for `transformers`: /data/tuning/3fa9c1d20011/model",
                  "the model is the one after step 24"):  # fmt: skip
        assert words in found.out
    assert "adapter" not in found.out and "peft" not in found.out


def test_start_may_be_written_and_detach_does_not_follow(
    shoal: Any, replaced: Any, texts: Path
) -> None:
    asked: list[tuple[str, Any]] = []
    replaced(daemon({"tuning_begin": shown(TUNING)}, asked))
    found = shoal("finetune", "start", "list", "--data", str(texts), "--detach")
    assert found.code == 0 and asked[0][1]["model"] == "list"
    assert "shoal finetune follow 3fa9c1d20011" in found.out and "stop 3fa9c1d20011" in found.out
    again = shoal("finetune", "tiny", "--data", str(texts), "--detach", "--json")
    assert json.loads(again.out)["tuning"]["id"] == TUNING["id"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["tiny"], "missing option `--data`"),
        (["lst"], "did you mean `shoal finetune list`"),
        (["tiny", "--data", "nix.jsonl"], "there is no file `nix.jsonl`"),
        (["tiny", "--data", "/"], "`--node DIR` is the node's folder"),
        (["tiny", "--data", "FILE", "--rank", "0"], "expected a number from 1 to 256, got 0"),
        (["tiny", "--data", "FILE", "--rank", "x"], "`x` is not a whole number"),
        (
            ["tiny", "--data", "FILE", "--steps", "5", "--epochs", "1"],
            "one of --epochs and --steps",
        ),
        (["tiny", "--data", "FILE", "--lenght", "5"], "--length"),
        (["tiny", "--data", "FILE", "--full", "--rank", "4"], "--rank is about an adapter"),
        (["tiny", "--data", "FILE", "--full", "--modules", "q_proj"], "--modules is about"),
        (["tiny", "--data", "FILE", "--full", "--movable"], "stays on this node"),
        (["tiny", "--data", "FILE", "--full", "--seal"], "stays on this node"),
    ],
)
def test_wrong_arguments(shoal: Any, texts: Path, args: list[str], words: str) -> None:
    found = shoal("finetune", *[str(texts) if arg == "FILE" else arg for arg in args])
    assert found.code == 2 and words in found.err and "hint: " in found.err, found.err


def test_ctrl_c_leaves_it_running_and_says_so(shoal: Any, replaced: Any, texts: Path) -> None:
    answers = {"tuning_begin": shown(TUNING), "tuning_follow": KeyboardInterrupt()}
    replaced(daemon(answers, []))
    found = shoal("finetune", "tiny", "--data", str(texts))
    assert found.code == 130 and "it goes on in the daemon" in found.err
    assert "shoal finetune stop 3fa9c1d20011" in found.err


@pytest.mark.parametrize("code", ["not-running", "stopping"])
def test_a_daemon_that_ends_is_said_to_go_on_later(
    shoal: Any, replaced: Any, texts: Path, code: str
) -> None:
    answers = {"tuning_begin": shown(TUNING), "tuning_follow": CommandError(code, "gone")}
    replaced(daemon(answers, []))
    found = shoal("finetune", "tiny", "--data", str(texts))
    assert found.code == 10 and "goes on when it runs again" in found.err
    assert "shoal finetune follow 3fa9c1d20011" in found.err


def test_a_failure_has_its_code_and_hint(shoal: Any, replaced: Any) -> None:
    failed = {**TUNING, "state": "failed", "error": "bad-gradients", "message": "step 5 failed",
              "hint": "a lower `--rate` may help"}  # fmt: skip
    replaced(daemon({"tuning_show": shown(failed), "tuning_follow": shown(failed)}, []))
    found = shoal("finetune", "follow", "tiny-poems")
    assert found.code == 1 and "the fine-tuning failed: step 5 failed" in found.err
    assert "hint: a lower `--rate` may help" in found.err


def test_show_draws_the_curve_and_job_show_too(shoal: Any, replaced: Any) -> None:
    unknown = CommandError("unknown-job", "there is no such job")
    waiting = {**TUNING, "state": "waiting", "trouble": "no node has layer 3"}
    replaced(daemon({"tuning_show": shown(waiting), "job_show": unknown}, []))
    found = shoal("finetune", "show", "tiny-poems")
    assert found.code == 0 and "waiting: no node has layer 3" in found.out
    assert "loss per token (o: on held-out rows)" in found.out and "3.983" in found.out
    assert "rank 16, alpha 32, rate 0.0014" in found.out
    assert shoal("job", "show", "3fa9").out == found.out
    replaced(daemon({"tuning_show": CommandError("unknown-tuning", "no"), "job_show": unknown}, []))
    assert "no such job" in shoal("job", "show", "3fa9").err


def test_the_job_of_a_fine_tuning_shows_its_curve(shoal: Any, replaced: Any) -> None:
    """This node knows a fine-tuning of another user only from its job."""
    asked: list[tuple[str, Any]] = []
    job = {**ITEM, "kind": "finetune", "spec": None, "claims": []}
    replaced(daemon({"tuning_show": shown(TUNING), "job_show": job}, asked))
    found = shoal("job", "show", JOB[:8])
    assert "loss per token (o: on held-out rows)" in found.out, found.err
    assert asked[-1] == ("tuning_show", {"tuning": JOB})
    assert '"curve"' in shoal("job", "show", JOB[:8], "--json").out
    replaced(daemon({"tuning_show": CommandError("unknown-tuning", "no"), "job_show": job}, asked))
    assert "kind" in shoal("job", "show", JOB[:8]).out


def test_list_stop_resume_and_rm(shoal: Any, replaced: Any) -> None:
    asked: list[tuple[str, Any]] = []
    answers = {"tunings": {"tunings": [TUNING]}, "tuning_stop": TUNING, "tuning_resume": TUNING,
               "tuning_move": TUNING,
               "tuning_show": shown(TUNING), "tuning_rm": TUNING}  # fmt: skip
    replaced(daemon(answers, asked))
    listed = shoal("finetune", "list").out
    assert "tiny-poems" in listed and "30 of 120" in listed and "2.750" in listed
    assert "stopped after step 24 of 120" in shoal("finetune", "stop", "3fa9").out
    assert "goes on in the daemon" in shoal("finetune", "resume", "3fa9").out
    assert "another node continues" in shoal("finetune", "move", "3fa9").out
    refused = shoal("finetune", "rm", "3fa9")
    assert refused.code == 1 and "--yes" in refused.err
    assert [op for op, _ in asked if op == "tuning_rm"] == []
    assert "removed: 3fa9c1d20011" in shoal("finetune", "rm", "3fa9", "--yes").out
    replaced(daemon({"tunings": {"tunings": []}}, asked))
    assert "there are no fine-tunings" in shoal("finetune", "list").out


def test_a_chart() -> None:
    rows = chart([(float(x), float(x)) for x in range(100)], [(0, 0), (99, 99)], width=40, height=5)
    assert len(rows) == 6 and rows[0].startswith("  99.000") and rows[0].endswith("o")
    assert rows[4].startswith("   0.000 o") and max(map(len, rows)) <= 40
    assert rows[5].split() == ["0", "99"]
    assert chart([]) == [] and chart([(1, float("nan"))]) == []
    assert len(chart([(1.0, 2.0)])) == 11


def test_others_that_average_are_shown(shoal: Any, replaced: Any, texts: Path) -> None:
    company = {"peers": 2, "round": 5, "refused": 1, "told": "round 5: refused the update of X"}
    together = {**TUNING, "together": "our-poems", "company": company}
    first = {**together, "company": {**company, "peers": 0, "refused": 0, "told": None}}
    events = [{"event": "progress", "tuning": each} for each in (first, together)]
    asked: list[tuple[str, dict[str, Any]]] = []
    done = {**DONE, "together": "our-poems", "company": company}
    answers = {"tuning_begin": shown(first), "tuning_follow": [*events, shown(done)],
               "tuning_show": shown(done)}  # fmt: skip
    replaced(daemon(answers, asked))
    found = shoal("finetune", "tiny", "--data", str(texts), "--together", "our-poems", "--every",
                  "20")  # fmt: skip
    assert found.code == 0
    assert (asked[0][1]["together"], asked[0][1]["every"]) == ("our-poems", 20)
    assert "no others yet, 5 rounds" in found.err
    assert "with 2 others, 5 rounds, 1 update refused" in found.err
    assert found.err.count("round 5: refused the update of X") == 1
    words = shoal("finetune", "show", "tiny-poems").out
    assert "as our-poems, with 2 others, 5 rounds" in words and "refused the update of X" in words
    wrong = shoal("finetune", "tiny", "--data", str(texts), "--every", "20")
    assert wrong.code == 2 and "--every needs --together NAME" in wrong.err
