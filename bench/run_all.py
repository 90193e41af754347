"""Run the scripts in bench/, record their full runs in bench/results/, write docs/measured.md.

Each script prints one JSON object as its last line: `name`, `value`, `goal`, `ok`, and the raw
figures of both sides. A full run is recorded with its commit, machine, date, arguments, seeds and
duration (`records.py`). Only repeatable runs are recorded: the tree has no uncommitted changes,
and the script ran with its own defaults. `--quick` and arguments of your own show
figures without recording them:

    run_all.py                                  every script, recorded
    run_all.py --only lane hop                  these, recorded; the others' records stay
    run_all.py --quick                          a short run of each, to see that it runs
    run_all.py --only state_heal -- --seeds 3   with other arguments, not recorded
    run_all.py --list                           lists which are recorded, and which are stale
    run_all.py --page                           only write docs/measured.md

`--keep DIR` keeps the results of long scripts so far (their `--out`), so that a stopped run can be
resumed. The files' names contain the hash of the code, so that a record never mixes two versions.
Exits 1 when a goal was missed or a script failed.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import records
from records import ROOT, Record

PAGE = ROOT / "docs" / "measured.md"


def run(script: Path, arguments: list[str]) -> dict[str, Any]:
    """Return one script's last line, or the error in its place."""
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        return {"name": script.stem, "ok": False, "error": f"exit {done.returncode}, no result"}
    assert isinstance(result, dict)
    return result


def recorded(script: Path, arguments: list[str]) -> dict[str, Any]:
    """Run the script and record the run. Raises ValueError if it must not be recorded."""
    commit, digest = records.commit(), records.digest(script)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    began = time.perf_counter()
    result = run(script, arguments)
    took = time.perf_counter() - began
    if records.digest(script) != digest:
        raise ValueError(f"`{script.name}`: the measured code changed during the run")
    record = Record(
        name=script.stem,
        commit=commit,
        date=date,
        duration_s=round(took, 1),
        arguments=arguments,
        seeds=result.get("seeds"),
        machine=records.machine(),
        measures=records.measures(script),
        digest=digest,
        result=result,
    )
    try:
        records.store(record)
    except ValueError as error:  # the other scripts can still be recorded
        print(f"  {error}", file=sys.stderr)
    return result


def own_arguments(script: Path, keep: Path | None, jobs: int) -> list[str]:
    """Return the arguments of a full run: where to resume, and how many seeds in parallel."""
    text, arguments = script.read_text(), []
    if keep is not None and '"--out"' in text:
        keep.mkdir(parents=True, exist_ok=True)
        arguments += ["--out", str(keep / f"{script.stem}-{records.digest(script)[:16]}.jsonl")]
    if jobs > 1 and '"-j"' in text:
        arguments += ["-j", str(jobs)]
    return arguments


def write_page() -> None:
    found = records.load()
    PAGE.write_text(records.page(found, records.stale(found)))


def listed() -> str:
    """Return one line per script: whether it is recorded, has reached its goal, and is stale."""
    found = {each.name: each for each in records.load()}
    old = records.stale(found.values())
    lines = []
    for script in records.scripts():
        record = found.get(script.stem)
        state = "not recorded"
        if record is not None:
            state = f"{record.date[:10]} {record.commit[:12]} "
            state += "reached" if record.ok else "missed"
            state += ", stale" if script.stem in old else ""
        lines.append(f"{script.stem:20} {state}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="each script in under 50 s")
    parser.add_argument("--only", nargs="+", help="names of scripts, without .py")
    parser.add_argument("--list", action="store_true", help="list what is recorded")
    parser.add_argument("--page", action="store_true", help="write docs/measured.md, run nothing")
    parser.add_argument("--keep", metavar="DIR", type=Path, help="resume from files in DIR")
    parser.add_argument("-j", type=int, default=1, help="seeds in parallel, where supported (1)")
    parser.add_argument("arguments", nargs="*", help="after `--`: for the scripts; not recorded")
    options = parser.parse_args()
    if options.list:
        print(listed())
        return
    if options.page:
        write_page()
        return
    known = {script.stem: script for script in records.scripts()}
    if unknown := set(options.only or ()) - set(known):
        parser.error(f"no such script: {', '.join(sorted(unknown))}")
    own = options.arguments + (["--quick"] if options.quick else [])
    good = True
    for name in options.only or known:
        print(f"bench/{name}.py …", file=sys.stderr, flush=True)
        try:
            result = (
                run(known[name], own)
                if own
                else recorded(known[name], own_arguments(known[name], options.keep, options.j))
            )
        except ValueError as error:
            hint = "commit the changes, or add --quick to run without recording"
            sys.exit(f"error: {error}\nhint: {hint}")
        print(f"  {result.get('value')} (goal {result.get('goal')})", file=sys.stderr)
        if own:
            print(json.dumps(result))
        good &= bool(result["ok"])
    if not own:
        write_page()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
