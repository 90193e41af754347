"""`shoal job`: its requests and its output."""

import io
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.cli import defaults, progress
from shoal.cli.errors import CommandError
from shoal.cli.jobfiles import time_of
from shoal.cli.main import invoke

OWN, OTHER = "12D3KooW" + "a" * 44, "12D3KooW" + "b" * 44
JOB = "ab" * 32
ITEM: dict[str, Any] = {
    "job": JOB, "author": OWN, "kind": "generate", "state": "claimed", "error": None,
    "message": None, "model": "tiny", "abstract": "On\x1bce", "claimant": OTHER, "attempt": 2,
    "step": 7, "came": None, "read": False, "made": None,
}  # fmt: skip
LACK = {
    "code": "not-replicated",
    "message": "no other node has the job yet: `full` (no\x1b room)",
    "hint": "keep this node running",
}
FOUND = {
    **ITEM, "state": "done", "came": 1.7e9, "read": False, "tokens": 3, "reason": "stop",
    "text": "so be it\x1b[2J",
}  # fmt: skip
FAILED = {**FOUND, "state": "failed", "error": "bad-spec", "message": "no\x1b prompt", "text": ""}


class Daemon:
    """Replaces the control socket; gives each job a number."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answers: dict[str, Any] = {}
        self.submitted: dict[str, Any] = {"replicated": True}
        self.sent = b""  # the file of the last job
        self.rows, self.failed = 1, 0
        self.jobs: list[str] = []
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.ends: list[Exception] = []

    def converse(
        self, op: str, on_event: Callable[[dict[str, Any]], None], more: dict[str, Any]
    ) -> Any:
        self.asked.append({"op": op, **more})
        if op == "job_output":
            return self.output(on_event, more)
        if op == "job_results":
            return self.results(on_event, more["jobs"] or self.jobs)
        if op in self.answers:
            answer = self.answers[op]
            if isinstance(answer, BaseException):
                raise answer
            return answer(more) if callable(answer) else answer
        if op == "job_submit":
            self.sent = Path(more["file"]).read_bytes() if more.get("file") else b""
            self.jobs.append(f"{len(self.jobs):064x}")
            return {"jobs": self.jobs[-1:], "model": "tiny", "root": "cd" * 32, **self.submitted}
        return self.result(more["job"])

    def result(self, job: str) -> dict[str, Any]:
        said = {**FOUND, "job": job, "text": f"text {int(job, 16)}", "prompt": "On\x1bce"}
        return {**said, "node": OTHER, **self.outcomes.get(job, {})}

    def output(self, on_event: Callable[[dict[str, Any]], None], more: dict[str, Any]) -> Any:
        if more["job"] in self.answers:
            raise self.answers.pop(more["job"])
        if more.get("until_done"):
            for done in range(self.rows + 1):
                on_event({"event": "rows", "done": done, "rows": self.rows, "failed": 0})
            if self.ends:
                raise self.ends.pop()
        path = more.get("path") or ""
        if path:
            Path(path).write_text("output")
        return {"path": path, "size": 6, "rows": self.rows, "rows_failed": self.failed}

    def results(self, on_event: Callable[[dict[str, Any]], None], jobs: list[str]) -> Any:
        """Emit the last job first, so that the command has to sort."""
        if self.ends and len(self.asked) > 1:
            raise self.ends.pop()
        on_event({"event": "jobs", "jobs": jobs})
        for job in reversed(jobs):
            if job in self.answers:
                raise self.answers.pop(job)
            on_event({"event": "result", "result": self.result(job)})
            on_event({"event": "progress", "done": 1, "failed": 0})
        return {"jobs": len(jobs), "failed": 0}


Shoal = Callable[..., SimpleNamespace]


@pytest.fixture
def daemon(monkeypatch: pytest.MonkeyPatch, replaced: Any) -> Daemon:
    made = Daemon()
    replaced(made.converse)
    return made


@pytest.fixture
def shoal(daemon: Daemon, capsys: pytest.CaptureFixture[str]) -> Shoal:
    def run(*args: str) -> SimpleNamespace:
        code = invoke(["job", *args])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err)

    return run


def test_rows_without_a_file_are_printed_as_they_are(daemon: Daemon, shoal: Shoal) -> None:
    rows = '{"line": 1}\n{"line": 2, "error": "bad-row"}\n'
    daemon.outcomes["1" * 64] = {"text": rows, "rows": 2, "rows_done": 2, "rows_failed": 1}
    done = shoal("result", "1" * 64)
    assert (done.code, done.out) == (1, rows) and "1 of 2 rows failed" in done.err


def test_submit_one_prompt(daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", "Once", "--max-tokens", "9", "--stop", "x", "--seed", "5")
    assert (done.code, done.out) == (0, f"{0:064x}\n")
    (asked,) = daemon.asked
    assert asked["prompts"] == ["Once"] and asked["model"] == "tiny"
    assert (asked["max_tokens"], asked["stop"], asked["seed"]) == (9, ["x"], 5)
    assert json.loads(shoal("submit", "tiny", "Once", "--json").out)["jobs"] == [f"{1:064x}"]


def test_submit_a_file_as_one_job(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('{"text": "é"}\n')
    args = ("--kind", "embed", "--priority", "7", "--deadline", "2h")
    done = shoal("submit", "tiny", "--file", str(path), *args)
    assert (done.code, done.out, done.err) == (0, f"{0:064x}\n", "")
    (asked,) = daemon.asked
    assert (asked["file"], asked["kind"], asked["priority"]) == (str(path), "embed", 7)
    assert 7190 < asked["deadline"] - time.time() < 7210
    assert asked.get("prompts") is None


def test_standard_input(daemon: Daemon, shoal: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\n")))
    assert shoal("submit", "tiny", "-").code == 0
    assert daemon.asked[-1]["prompts"] == ["a\nb\n"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"prompt": "a"}\n')))
    assert shoal("submit", "tiny", "--file", "-").code == 0
    assert daemon.sent == b'{"prompt": "a"}\n'
    assert not Path(daemon.asked[-1]["file"]).exists(), "the copy is removed"


def test_what_a_user_should_know_about_a_job(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    daemon.submitted = {
        "rows": 5, "broken_rows": 2, "replicated": False,
        "broken": [{"line": 7, "message": "no\x1b object"}, {"line": 9, "message": "empty"}],
        "lack": LACK,
    }  # fmt: skip
    (tmp_path / "rows.jsonl").write_text("x")
    done = shoal("submit", "tiny", "--file", str(tmp_path / "rows.jsonl"))
    assert (done.code, done.out) == (0, f"{0:064x}\n")
    assert "line 7: no\\x1b object\nline 9: empty\n" in done.err
    assert "2 broken lines; the 3 other rows will be done" in done.err
    assert "not-replicated: no other node has the job yet: `full` (no\\x1b room)\n" in done.err
    assert "hint: keep this node running\n" in done.err
    assert "more" not in done.err
    daemon.submitted["broken_rows"] = 4
    more = shoal("submit", "tiny", "--file", str(tmp_path / "rows.jsonl")).err
    assert "and 2 more: their lines of the output say why\n4 broken lines; the 1 other row" in more


JOB_FILE = """
model = "tiny"
kind = "generate"
file = "rows.jsonl"
max_tokens = 64
temperature = 1
stop = ["\\n"]
deadline = 2100-01-01T00:00:00Z
output = "out.jsonl"
"""


def test_a_job_file(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB_FILE)
    (tmp_path / "rows.jsonl").write_text("rows")
    daemon.rows = 40
    done = shoal("submit", str(path), "--follow")
    assert (done.code, done.out) == (0, f"wrote 40 lines to {tmp_path / 'out.jsonl'}\n")
    asked = daemon.asked[0]
    assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("tiny", 64, 1.0)
    assert (asked["stop"], asked["deadline"], daemon.sent) == (["\n"], 4102444800, b"rows")
    assert (tmp_path / "out.jsonl").read_text() == "output"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("model = ", "is not TOML"),
        ("\xff", "is not TOML"),
        ("kind = 'embed'", "names no model"),
        ("model = 'tiny'\nmax_token = 5", "did you mean `max_tokens`?"),
        ("model = 'tiny'\nzzz = 5", "its keys are model, kind"),
        ("model = 5", "expected a text in quotes, got 5"),
        ("model = 'tiny'\nraw = 1", "expected true or false, got 1"),
        ("model = 'tiny'\npriority = true", "expected a whole number, got true"),
        ("model = 'tiny'\nstop = [5]", "a list of texts"),
        ("model = 'tiny'\nprompt = 'x'\nmax_tokens = '8'", "a whole number, got '8'"),
        ("model = 'tiny'\nprompt = 'x'\ndeadline = 2", 'a time span such as "2h", or a time'),
        ("model = 'tiny'", "has no `file` or `prompt`"),
        ("model = 'tiny'\nprompt = 'x'\nfile = 'y'", "has both `file` and `prompt`"),
        ("model = 'tiny'\nprompt = 'x'\ndeadline = 'soon'", "is not a deadline"),
        ("#" + "x" * 70_000, "is larger than"),
    ],
)
def test_a_wrong_job_file_is_an_error(
    text: str, what: str, daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(text.encode("latin-1"))
    done = shoal("submit", str(path))
    assert done.code != 0 and what in done.err and "hint:" in done.err
    assert not daemon.asked
    assert "cannot be read" in shoal("submit", str(tmp_path / "none.toml")).err


def test_a_day_is_a_deadline_too(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("model = 'tiny'\nprompt = 'x'\ndeadline = 2100-01-01")
    assert shoal("submit", str(path)).code == 0 and daemon.asked[0]["deadline"] > 4102000000


def test_options_are_not_ignored(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text("model = 'tiny'\nprompt = 'x'")
    for given in (("--priority", "3"), ("--max-tokens", "3"), ("hi",), ("--file", "x.jsonl")):
        done = shoal("submit", str(path), *given)
        assert done.code == 2 and "a job file goes without " in done.err and "hint:" in done.err
    assert "PROMPT" in shoal("submit", str(path), "hi").err
    assert (
        "hint: write `priority = …` into the file"
        in shoal("submit", str(path), "--priority", "3").err
    )
    done = shoal("submit", "tiny", "hi", "-o", str(tmp_path / "out"))
    assert done.code == 2 and "-o is only for --follow" in done.err
    assert "hint: add --follow; or fetch the output later" in done.err
    assert not daemon.asked


def test_times_of_deadlines() -> None:
    assert time_of("90m", 1000.0) == 1000 + 5400
    assert time_of("1.5d", 0.0) == 129_600
    assert time_of("2100-01-01T00:00:00+00:00", 0.0) == 4102444800
    for text in ("", "h", "-2h", "nan h", "1e300s", "tomorrow"):
        with pytest.raises(CommandError):
            time_of(text, 0.0)


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ((), 2),
        (("Once", "--file", "x"), 2),
        (("",), 1),
        ((" \n\t",), 1),
        (("Once", "--deadline", "soon"), 1),
        (("Once", "--kind", "nothing"), 2),
        (("Once", "--priority", "10"), 2),
        (("Once", "--max-tokens", "5000"), 2),
    ],
)
def test_wrong_arguments(args: tuple[str, ...], code: int, daemon: Daemon, shoal: Shoal) -> None:
    done = shoal("submit", "tiny", *args)
    assert done.code == code and "error:" in done.err and "hint:" in done.err
    assert not daemon.asked


def test_follow_prints_the_result(daemon: Daemon, shoal: Shoal) -> None:
    for option in ("--follow", "--wait"):
        done = shoal("submit", "tiny", "Once", option)
        job = daemon.jobs[-1]
        assert (done.code, done.out) == (0, f"text {int(job, 16)}\n")
        assert done.err == f"{job}\n"
    daemon.outcomes[f"{2:064x}"] = FAILED | {"job": f"{2:064x}"}
    done = shoal("submit", "tiny", "Once", "--wait")
    assert done.code == 1 and "the job failed: bad-spec: no\\x1b prompt" in done.err


def test_follow_of_many_rows_names_the_command_for_the_output(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    daemon.rows, daemon.failed = 1000, 3
    path = tmp_path / "rows.jsonl"
    path.write_text("x")
    done = shoal("submit", "tiny", "--file", str(path), "--follow")
    assert done.code == 1 and "3 of 1000 rows failed" in done.err
    assert "`shoal job result 000000000000 -o FILE" in done.out
    output = tmp_path / "out.jsonl"
    done = shoal("result", JOB, "--wait", "-o", str(output))
    assert done.code == 1 and done.out == f"wrote 1000 lines to {output}\n"
    assert daemon.asked[-1]["path"] == str(output)
    daemon.failed = 0
    done = shoal("result", JOB, "-o", str(output), "--json")
    assert done.code == 0 and json.loads(done.out)["rows"] == 1000


def test_following_survives_a_restart_of_the_daemon(
    daemon: Daemon, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.ends = [CommandError(code, "it stopped") for code in ("stopping", "not-running")]
    monkeypatch.setattr(defaults, "JOBS_RESTART_LOOK", 0.0)
    done = shoal("submit", "tiny", "Once", "--follow")
    assert (done.code, done.out) == (0, "text 0\n")
    assert done.err.count("the daemon stopped; waiting for it to run again") == 1


def test_progress_bar() -> None:
    assert progress.rows_bar(300, 1000, 3) == (
        "[######..............] 30 %, 300 of 1000 rows, 3 failed"
    )
    assert progress.rows_bar(5, 5, 0) == f"[{'#' * 20}] 100 %, 5 of 5 rows"


def test_list(daemon: Daemon, shoal: Shoal) -> None:
    items = [ITEM, {**FOUND, "claimant": OWN, "read": True}, FAILED, {**ITEM, "claimant": None}]
    totals = {"open": 1, "claimed": 1, "done": 1, "failed": 1006}
    daemon.answers["job_list"] = {"jobs": items, "more": 5, "own": OWN, "totals": totals,
                                  "does_jobs": False}  # fmt: skip
    done = shoal("list", "--mine", "--state", "done", "--offset", "7")
    assert daemon.asked[-1] == {
        "op": "job_list", "mine": True, "state": "done", "limit": 50, "offset": 7,
    }  # fmt: skip
    lines = done.out.splitlines()
    assert lines[1].split()[:2] == ["abababababab", "claimed"] and "(attempt 2)" in lines[1]
    assert "On\\x1bce" in lines[1] and "12D3KooWbbbbbb" in lines[1]
    assert "done, read" in lines[2] and "this node" in lines[2]
    assert "failed (bad-spec)" in lines[3]
    assert lines[5:] == [
        "1009 jobs: 1 open, 1 claimed, 1 done, 1006 failed",
        "and 5 more: add `--offset 11`, or `--limit N`",
    ]
    assert json.loads(shoal("list", "--json").out)["more"] == 5
    assert daemon.asked[-1]["limit"] == 1000
    empty = dict.fromkeys(totals, 0)
    daemon.answers["job_list"] = {"jobs": [], "more": 0, "own": OWN, "totals": empty,
                                  "does_jobs": False}  # fmt: skip
    assert "there are no jobs" in shoal("list").out
    for jobs in ([], [ITEM]):
        daemon.answers["job_list"] = {
            "jobs": jobs, "more": 0, "own": OWN, "stores": False, "does_jobs": False,
            "totals": empty | {"open": len(jobs)},
        }  # fmt: skip
        out = shoal("list").out
        assert "does not store other nodes' jobs" in out and "there are no jobs" not in out
        assert "does not store" not in shoal("list", "--mine").out


def test_show(daemon: Daemon, shoal: Shoal) -> None:
    claims = [
        {"claimant": OTHER, "attempt": 2, "done": False, "step": 7, "refused": False},
        {"claimant": OWN, "attempt": 1, "done": True, "step": 0, "refused": True},
    ]
    daemon.answers["job_show"] = {**ITEM, "spec": None, "claims": claims}
    done = shoal("show", JOB[:8].upper())
    assert daemon.asked[-1]["job"] == JOB[:8]
    assert "attempt 2: in progress, step 7" in done.out and "attempt 1: refused" in done.out
    assert "On\\x1bce" in done.out and "checked" not in done.out
    some: dict[str, Any] = {"rows": 200, "rows_done": 100, "spec": None, "claims": []}
    for rows, words in ((0, "no row; one in 50 is"), (3, "3 rows of 100, recomputed by")):
        daemon.answers["job_show"] = {**ITEM, **some, "rows_checked": rows}
        assert words in shoal("show", JOB).out


def test_result(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_result"] = FOUND
    done = shoal("result", JOB)
    assert (done.code, done.out) == (0, "so be it\\x1b[2J\n")
    assert daemon.asked[-1] == {"op": "job_result", "job": JOB, "until_done": False}
    daemon.answers["job_show"] = {**ITEM, "spec": None, "claims": []}
    assert shoal("result", JOB[:9], "--wait").out == done.out
    (waited,) = (asked for asked in daemon.asked if asked["op"] == "job_output")
    assert waited == {"op": "job_output", "job": JOB[:9], "path": None, "until_done": True}
    assert json.loads(shoal("result", JOB, "--json").out)["text"] == FOUND["text"]


def test_failed_or_missing_result(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_result"] = FAILED
    done = shoal("result", JOB)
    assert done.code == 1 and "the job failed: bad-spec: no\\x1b prompt" in done.err
    done = shoal("result", JOB, "--json")
    assert done.code == 1 and json.loads(done.out)["error"] == "bad-spec"
    daemon.answers["job_result"] = CommandError("not-done", "no result yet", hint="wait")
    assert shoal("result", JOB).code == 1


def test_ctrl_c_does_not_cancel_the_job(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers |= {"job_show": {**ITEM, "spec": None, "claims": []}, JOB: KeyboardInterrupt()}
    done = shoal("result", JOB, "--wait")
    assert done.code == 130 and "the job continues" in done.err
    assert "`shoal job result abababababab --wait" in done.err


def test_ctrl_c_while_a_job_is_sent(daemon: Daemon, shoal: Shoal) -> None:
    """Whether the interrupted request submitted a job is unknown."""
    daemon.answers["job_submit"] = KeyboardInterrupt()
    done = shoal("submit", "tiny", "one")
    assert done.code == 130 and "the job may have been submitted" in done.err
    assert "`shoal job list --mine" in done.err


def test_cancel_one_job(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_cancel"] = {"job": JOB}
    assert shoal("cancel", JOB[:6]).out == f"cancelled: {JOB}\n"
    assert json.loads(shoal("cancel", JOB[:6], "--json").out) == {"job": JOB}


def test_cancel_all_jobs(daemon: Daemon, shoal: Shoal) -> None:
    daemon.answers["job_cancel"] = {"jobs": [JOB, "cd" * 32], "results": 3}
    assert shoal("cancel", "--all").out == "cancelled: 2 jobs; 3 results kept\n"
    assert daemon.asked[-1] == {"op": "job_cancel", "all": True}
    for args in ((), (JOB, "--all")):
        done = shoal("cancel", *args)
        assert done.code == 2 and "give either an ID or --all" in done.err


def test_results_are_written_to_a_file_in_order(
    daemon: Daemon, shoal: Shoal, tmp_path: Path
) -> None:
    ids = [f"{number:064x}" for number in (2, 0, 1)]
    batch, output = tmp_path / "ids.txt", tmp_path / "results.jsonl"
    batch.write_text("\n".join(ids) + "\n")
    output.write_text("before")
    done = shoal("result", "--file", str(batch), "-o", str(output), "--wait")
    assert (done.code, done.out) == (0, f"wrote 3 lines to {output}\n")
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["id"] for line in lines] == ids
    assert lines[0] == {
        "id": ids[0], "prompt": "On\x1bce", "text": "text 2", "node": OTHER, "error": None,
        "message": None,
    }  # fmt: skip
    assert list(tmp_path.glob("*.part")) == []
    daemon.outcomes[ids[1]] = {"error": "bad-spec", "message": "the prompt is empty", "text": ""}
    done = shoal("result", "--file", str(batch))
    assert done.code == 1 and "1 of 3 jobs failed" in done.err
    assert json.loads(done.out.splitlines()[1]) == {
        "id": ids[1], "prompt": "On\x1bce", "text": None, "node": OTHER, "error": "bad-spec",
        "message": "the prompt is empty",
    }  # fmt: skip
    daemon.outcomes[ids[2]] = {"error": "not-done", "message": "no", "text": "", "node": None}
    done = shoal("result", "--file", str(batch), "--json", "-o", str(output))
    assert done.code == 1 and "1 of 3 jobs have no result, 1 failed" in done.err
    assert json.loads(done.out)["lacking"] == 1


def test_ctrl_c_keeps_the_written_results(daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    ids = [f"{number:064x}" for number in range(3)]
    batch, output = tmp_path / "ids.txt", tmp_path / "results.jsonl"
    batch.write_text("\n".join(ids))
    output.write_text("before")
    daemon.answers[ids[1]] = KeyboardInterrupt()
    done = shoal("result", "--file", str(batch), "-o", str(output), "--wait")
    part = tmp_path / "results.jsonl.part"
    assert done.code == 130 and f"1 of 3 results were written to `{part}`" in done.err
    assert json.loads(part.read_text())["id"] == ids[2] and output.read_text() == "before"
    daemon.answers[ids[2]] = KeyboardInterrupt()
    shoal("result", "--file", str(batch), "-o", str(output), "--wait")
    assert not part.exists()


@pytest.mark.parametrize("text", ["", "\n \n", "3fa9\n", "x" * 64])
def test_file_without_ids(text: str, daemon: Daemon, shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "ids").write_text(text)
    done = shoal("result", "--file", str(tmp_path / "ids"))
    assert done.code == 1 and "hint:" in done.err and not daemon.asked


@pytest.mark.parametrize("args", [(), (JOB, "--all"), ("--all", "--file", "x")])
def test_result_needs_exactly_one_selection(
    args: tuple[str, ...], daemon: Daemon, shoal: Shoal
) -> None:
    assert shoal("result", *args).code == 2 and not daemon.asked


def test_progress_counts_failures() -> None:
    assert progress.results_done(412, 1000, 3) == "412 of 1000 results, 3 failed"
    assert progress.results_done(0, 1, 0) == "0 of 1 result"


def test_waiting_survives_a_restart_of_the_daemon(
    daemon: Daemon, shoal: Shoal, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon.jobs = [f"{number:064x}" for number in range(3)]
    daemon.answers[daemon.jobs[1]] = CommandError("not-running", "the daemon stopped")
    ends: list[Exception] = [
        CommandError(code, "it stopped") for code in ("stopping", "not-running")
    ]
    daemon.ends = ends
    monkeypatch.setattr(defaults, "JOBS_RESTART_LOOK", 0.0)
    done = shoal("result", "--all", "--wait")
    assert [json.loads(line)["id"] for line in done.out.splitlines()] == daemon.jobs
    assert [asked["jobs"] for asked in daemon.asked] == [None, *[daemon.jobs[:2]] * 3]
    assert done.err.count("the daemon stopped; waiting for it to run again") == 1
    assert done.err.count("the daemon runs again") == 1
    daemon.answers[daemon.jobs[1]] = CommandError("not-running", "the daemon stopped")
    assert shoal("result", "--all").code == 10, "without --wait there is nothing to wait for"


def test_whether_another_node_has_a_job_is_shown(daemon: Daemon, shoal: Shoal) -> None:
    shown = {**ITEM, "state": "open", "spec": None, "claims": []}
    page = {"more": 0, "totals": {"open": 1}, "own": OWN, "does_jobs": False}
    for more, row, field in (
        ({"replicated": True}, "open ", "another node has the job and its rows"),
        ({"replicated": False, "lack": LACK}, "open, only here", "keep this node running"),
    ):
        listed = {key: value for key, value in more.items() if key != "lack"}
        daemon.answers["job_show"] = {**shown, **more}
        daemon.answers["job_list"] = {**page, "jobs": [{**ITEM, "state": "open", **listed}]}
        assert field in shoal("show", JOB[:8]).out
        out = shoal("list").out
        assert row in out and ("only here" in out) is ("only here" in row)
