"""Runs every script in bench/ and writes docs/measured.md: the machine, the date, the figures.

Each script prints one JSON object as its last line: `name`, `value`, `goal`, `ok`, and the raw
figures of both sides. `--quick` is passed on. With `--only` the other figures stay as they were,
each with its date; `--take` puts in what a script run by itself has printed into a file. Exits 1
when a goal was missed or a script failed.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
REPORT = ROOT / "docs" / "measured.md"


def cpu_name() -> str:
    """The processor's name as the kernel gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def run(script: Path, quick: bool) -> dict[str, Any]:
    """One script's last line, or what went wrong in its place."""
    command = [sys.executable, str(script), *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    try:
        result = json.loads(lines[-1])
    except (IndexError, json.JSONDecodeError):
        return {"name": script.stem, "ok": False, "error": f"exit {done.returncode}, no result"}
    assert isinstance(result, dict)
    return dated(result, quick)


def dated(result: dict[str, Any], quick: bool) -> dict[str, Any]:
    """The result with the day it was measured."""
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return result | {"measured": day + (", quick" if quick else "")}


def known() -> dict[str, dict[str, Any]]:
    """What docs/measured.md holds, by the scripts' names."""
    try:
        text = REPORT.read_text()
    except FileNotFoundError:
        return {}
    return {
        item["name"]: item
        for item in map(json.loads, re.findall(r"```json\n(.*?)\n```", text, re.S))
    }


def shown(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def report(results: list[dict[str, Any]]) -> str:
    lines = [
        "# Measured",
        "",
        f"Written by `make bench`: {cpu_name()}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}.",
        "Each script measures both sides in one run; ratios travel between machines, "
        "absolute times do not.",
        "",
        "| script | value | goal | reached | measured |",
        "|---|---|---|---|---|",
    ]
    for item in results:
        value, goal = shown(item.get("value", item.get("error", "?"))), shown(item.get("goal", "?"))
        lines.append(
            f"| `{item['name']}` | {value} | {goal} | {'yes' if item['ok'] else '**no**'} "
            f"| {item.get('measured', '')} |"
        )
    for item in results:
        lines += ["", f"## {item['name']}", "", "```json", json.dumps(item, indent=2), "```"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="each script in under 50 s")
    parser.add_argument("--only", nargs="*", help="names of scripts, without .py")
    parser.add_argument("--take", nargs="*", type=Path, default=[], help="files of printed results")
    options = parser.parse_args()
    scripts = sorted(p for p in HERE.glob("*.py") if p.name != Path(__file__).name)
    partly = options.only is not None or bool(options.take)
    chosen = [p for p in scripts if not partly or p.stem in (options.only or ())]
    found = known() if partly else {}
    lasts = [json.loads(path.read_text().strip().splitlines()[-1]) for path in options.take]
    results = [dated(result, options.quick) for result in lasts]
    for script in chosen:
        print(f"bench/{script.name} …", file=sys.stderr, flush=True)
        results.append(run(script, options.quick))
        print(f"  {results[-1].get('value')} (goal {results[-1].get('goal')})", file=sys.stderr)
    found |= {item["name"]: item for item in results}
    names = {script.stem for script in scripts}
    REPORT.write_text(report([found[name] for name in sorted(found) if name in names]))
    sys.exit(0 if all(item["ok"] for item in results) else 1)


if __name__ == "__main__":
    main()
