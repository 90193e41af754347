"""Records of full runs: their content, when they are stale, and the page generated from them.

`bench/results/NAME.json` is the record of `bench/NAME.py`: the JSON object that the script printed,
and a stamp with the code, the machine, the date and the arguments. `docs/measured.md` is generated
only from these files (`run_all.py --page`). A script names what it measures:

    MEASURES = ("state", "transport/identity.py")

Those files and folders, the script and the modules of `bench/` that it imports have a common
SHA-256. A record is stale when that differs from its own. Comments, docstrings and the layout of
lines do not count, because no figure depends on them. The hash needs no git history, so it also
works in a source archive and survives a rebase.
"""

import ast
import hashlib
import json
import os
import platform
import re
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
# Modules that are not scripts.
TOOLS: Final = frozenset({"records", "run_all", "yardstick"})
# Files that recording writes; they do not make the tree dirty.
WRITTEN: Final = ("bench/results", "docs/measured.md")
# Arguments that change the duration of a run, but not what it measures.
HARMLESS: Final = frozenset({"-j", "--out"})
STALE: Final = "stale"


def scripts(root: Path = ROOT) -> list[Path]:
    """Return every script that measures something."""
    return sorted(path for path in (root / "bench").glob("*.py") if path.stem not in TOOLS)


def measures(script: Path) -> tuple[str, ...]:
    """Return what the script's `MEASURES` names, found without importing it.

    Raises ValueError where the script has none.
    """
    for node in ast.parse(script.read_text()).body:
        names = [each.id for each in getattr(node, "targets", ()) if isinstance(each, ast.Name)]
        if isinstance(node, ast.Assign) and names == ["MEASURES"]:
            return tuple(ast.literal_eval(node.value))
    raise ValueError(f"`{script.name}` has no line `MEASURES = (…)` that names what it measures")


def default_seeds(script: Path) -> int | None:
    """Return the default of the script's option `--seeds`, or None if it has none."""
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.Call) and any(
            isinstance(each, ast.Constant) and each.value == "--seeds" for each in node.args
        ):
            for keyword in node.keywords:
                if keyword.arg == "default" and isinstance(keyword.value, ast.Constant):
                    value = keyword.value.value
                    return value if isinstance(value, int) else None
    return None


def local_modules(script: Path) -> set[Path]:
    """Return the script and the modules of `bench/` that it imports, directly or indirectly."""
    bench = script.parent
    found, left = set(), [script]
    while left:
        path = left.pop()
        if path in found or not path.is_file():
            continue
        found.add(path)
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                left.append(bench / f"{node.module.replace('.', '/')}.py")
            elif isinstance(node, ast.Import):
                left += [bench / f"{each.name.replace('.', '/')}.py" for each in node.names]
    return found


def _files(path: Path) -> Iterator[Path]:
    """Return a file, or the files below a folder, without hidden and built ones."""
    if path.is_file():
        yield path
    for below in path.rglob("*"):
        inside = below.relative_to(path).parts
        hidden = any(part.startswith((".", "__pycache__")) for part in inside)
        # a compiled kernel is built from files that count, and differs from machine to machine
        if below.is_file() and not hidden and below.suffix != ".so":
            yield below


def digest(script: Path, root: Path = ROOT) -> str:
    """Return the SHA-256 of everything the script's figures depend on, as hex."""
    files = local_modules(script)
    for name in measures(script):
        files |= set(_files(root / name))
    whole = hashlib.sha256()
    for path in sorted(files):
        name = path.relative_to(root).as_posix()
        whole.update(f"{name} {_content(path.suffix, path.read_bytes())}\n".encode())
    return whole.hexdigest()


@cache
def _content(suffix: str, data: bytes) -> str:
    """Return the SHA-256 of a file, and of a Python module without comments and docstrings."""
    if suffix == ".py":
        data = repr(_shape(ast.parse(data))).encode()
    return hashlib.sha256(data).hexdigest()


def _shape(value: Any) -> Any:
    """Return a syntax tree as nested tuples, without its docstrings and empty fields.

    Versions of Python differ in the empty fields of their trees.
    """
    if isinstance(value, list):
        return tuple(_shape(each) for each in value if not _is_docstring(each))
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = (item for item in ast.iter_fields(value) if item[1] not in (None, []))
    return (type(value).__name__, *((name, _shape(each)) for name, each in fields))


def _is_docstring(node: Any) -> bool:
    """Return whether a statement is nothing but a string."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@dataclass(frozen=True)
class Record:
    """One full run: the script's own result, and its stamp."""

    name: str
    commit: str  # 40 hex digits
    date: str  # UTC, ISO 8601
    duration_s: float
    arguments: Sequence[str]
    seeds: Any  # as the script printed them: a number, one for each part, or None
    machine: Mapping[str, Any]  # cpu, cores, kernel, python
    measures: Sequence[str]
    digest: str  # of the measured files, hex
    result: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        return bool(self.result.get("ok"))


def flaws(record: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Return why this is not a full record; an empty list if it is one."""
    lacking = [each.name for each in fields(Record) if each.name not in record]
    if lacking:
        return [f"its stamp lacks {', '.join(lacking)}"]
    found = []
    if not re.fullmatch("[0-9a-f]{40}", record["commit"]):
        found.append("its commit is no commit")
    found += changed(record["arguments"])
    if reason := record["result"].get("skipped"):
        found.append(f"a part was skipped: {reason}")
    least = default_seeds(root / "bench" / f"{record['name']}.py")
    if least is not None and (seeds := _most(record["seeds"])) < least:
        found.append(f"{seeds} seeds are fewer than the script's own {least}")
    return found


def _most(seeds: Any) -> int:
    """Return the seeds of a run; for several parts, those of the part with the most."""
    if isinstance(seeds, Mapping):
        return max(map(_most, seeds.values()), default=0)
    return seeds if isinstance(seeds, int) else 0


def changed(arguments: Sequence[str]) -> list[str]:
    """Return the arguments that make a run another than the script's own full one."""
    rest = list(arguments)
    found = []
    while rest:
        name = rest.pop(0)
        if name in HARMLESS:
            rest[:1] = []
        else:
            found.append(f"`{name}` changes what is measured")
    return found


def load(root: Path = ROOT) -> list[Record]:
    """Return every full record of an existing script, by name."""
    known = {script.stem for script in scripts(root)}
    found = []
    for path in sorted((root / "bench" / "results").glob("*.json")):
        item = json.loads(path.read_text())
        if path.stem in known and not flaws(item, root):
            found.append(Record(**item))
    return found


def store(record: Record, root: Path = ROOT) -> None:
    """Write the record. Raises ValueError if it is not a full one."""
    item = asdict(record)
    if wrong := flaws(item, root):
        raise ValueError(f"`{record.name}` is not recorded: {'; '.join(wrong)}")
    folder = root / "bench" / "results"
    folder.mkdir(exist_ok=True)
    (folder / f"{record.name}.json").write_text(json.dumps(item, indent=2) + "\n")


def stale(records: Collection[Record], root: Path = ROOT) -> set[str]:
    """Return the names of the records whose measured files have changed since the run."""
    return {
        each.name
        for each in records
        if digest(root / "bench" / f"{each.name}.py", root) != each.digest
    }


# The machine and the tree.


def machine() -> dict[str, Any]:
    """Return the processor, its cores, the kernel and the Python that measure."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    """Return the processor's name as reported by the kernel."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit(root: Path = ROOT) -> str:
    """Return the commit that is checked out, if nothing has changed since.

    Raises ValueError otherwise: such a run cannot be recorded.
    """
    head = _git(root, "rev-parse", "HEAD")
    if head is None:
        raise ValueError("there is no git history here, so no commit to record")
    aside = [f":(exclude){name}" for name in WRITTEN]
    if dirty := _git(root, "status", "--porcelain", "--", ".", *aside):
        first = dirty.splitlines()[0].strip()
        raise ValueError(f"the tree has changes that no commit has (`{first}`)")
    return head


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


# The page.

HEAD: Final = """# Measured

Generated by `bench/run_all.py` from `bench/results/`, which holds full runs: the script's own
default arguments, at a commit without further changes. `stale` marks a figure whose script, or a
package that it measures, has changed since. Each script measures both sides in one run: ratios
travel between machines, absolute times do not. Scripts without a full run are left out.
"""
COLUMNS: Final = ("script", "value", "goal", "reached", "code", "commit", "date", "seeds", "took")


def shown(value: object) -> str:
    """Format a figure, or several by name, for the table."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def page(records: Sequence[Record], stale: Collection[str]) -> str:
    """Return the text of docs/measured.md."""
    lines = [HEAD, _row(COLUMNS), _row("---" for _ in COLUMNS)]
    for each in records:
        value = each.result.get("value", each.result.get("error", "?"))
        lines.append(
            _row(
                (
                    f"`{each.name}`",
                    shown(value),
                    shown(each.result.get("goal", "")),
                    "yes" if each.ok else "**no**",
                    STALE if each.name in stale else "as measured",
                    each.commit[:12],
                    each.date[:10],
                    shown(each.seeds) if each.seeds is not None else "",
                    f"{each.duration_s:.0f} s",
                )
            )
        )
    for each in records:
        lines += ["", f"## {each.name}", "", *_details(each)]
    return "\n".join(lines) + "\n"


def _row(cells: Collection[str] | Iterator[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _details(record: Record) -> list[str]:
    where = record.machine
    stamp = (
        f"{where['cpu']}, {where['cores']} cores, {where['kernel']}, Python {where['python']}. "
        f"Arguments: {' '.join(record.arguments) or 'none'}. Measures {', '.join(record.measures)}."
    )
    return [stamp, "", "```json", json.dumps(dict(record.result), indent=2), "```"]


def stale_on(text: str) -> set[str]:
    """Return the names that a page marks as stale."""
    return set(re.findall(rf"^\| `(\w+)` \|.*\| {STALE} \|", text, re.MULTILINE))


# Claims of the README.


def claimed(readme: str) -> set[str]:
    """Return the names of the scripts that the README's table of claims relies on."""
    table = readme.split("\n## What holds\n")[1].split("\n## ")[0].split("\n### ")[0]
    return set(re.findall(r"`bench/(\w+)\.py`", table))


def unfounded(readme: str, records: Collection[Record]) -> set[str]:
    """Return the names of the scripts that the README relies on without a full run that reached its
    goal.
    """
    return claimed(readme) - {each.name for each in records if each.ok}
