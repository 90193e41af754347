"""Write docs/modules.md, the index of all modules, from their docstrings.

Run it after a change of docstrings: `python docs/modules.py`.
"""

import ast
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "modules.md"
PACKAGES: Final = ("transport", "dht", "state", "tasks", "node", "cli", "netsim")
HEAD: Final = """\
# Modules

Written by `python docs/modules.py` from the docstrings. The introduction is
[architecture.md](architecture.md).
"""


def docstring(path: Path) -> str:
    """The docstring of a module, or an empty string."""
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def purpose(path: Path) -> str:
    """The first paragraph of a module's docstring as one line of a Markdown table."""
    return " ".join(docstring(path).split("\n\n")[0].split()).replace("|", "\\|")


def section(folder: Path) -> str:
    """One folder: its heading, its docstring, and a table of its modules."""
    name = folder.relative_to(ROOT).as_posix()
    lines = [f"{'##' if '/' not in name else '###'} {name}", "", docstring(folder / "__init__.py")]
    modules = [path for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    if modules:
        lines += ["", "| module | purpose |", "|---|---|"]
        lines += [f"| `{path.name}` | {purpose(path)} |" for path in modules]
    return "\n".join(lines)


def page() -> str:
    """The whole index as Markdown."""
    folders = [
        path.parent
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("__init__.py"), key=lambda path: path.parent)
    ]
    return HEAD + "\n" + "\n\n".join(section(folder) for folder in folders) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
