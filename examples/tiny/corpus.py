"""Build the training text of the tiny model: the King James text and Python's docstrings.

Run ``python examples/tiny/corpus.py --work build/tiny`` first. It writes three files:

* ``train.jsonl`` and ``validation.jsonl``: one document per line (see :class:`Document`);
* ``corpus.json``: sizes, versions and digests of what was read.

Both sources may be used to train a model whose weights are passed on: the King James text is
in the public domain, and the docstrings are under the Python Software Foundation licence,
which asks for its notice to be kept (``export.py`` puts it next to the weights).
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import inspect
import json
import platform
import re
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

KJV_PACKAGES = ("bible-kjv", "bible-kjv-text")
KJV_RANGE = "Gen1:1-Rev22:21"
VERSE_LINE = re.compile(r"^(\d?[A-Za-z]+)(\d+):(\d+) (.*)$")

#: Folders of the standard library that hold tests or other people's packages.
SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "_vendor"}
)
MIN_DOCSTRING_CHARS = 40
#: Below this share of letters and spaces a docstring is a table or a listing, not English.
MIN_PROSE_SHARE = 0.75

#: Every 20th group of three neighbouring chapters, and every 20th module, is held out.
HELD_OUT_ONE_IN = 20
HELD_OUT_CHAPTER_RUN = 3


@dataclass(frozen=True)
class Document:
    """One unit of text that the model sees as a whole.

    ``passages`` are the pieces it is made of (verses of a chapter, paragraphs of a
    docstring), ``separator`` joins them, and ``name`` says where the text is from: ``Ge1``
    or ``json.dumps``. ``kind`` is ``chapter``, ``module``, ``class`` or ``function``.
    """

    name: str
    kind: str
    separator: str
    passages: list[str]

    @property
    def text(self) -> str:
        """The whole document as one string."""
        return self.separator.join(self.passages)


def extract_kjv(packages: Path) -> str:
    """Unpack the two Debian packages under ``packages`` and print the whole text with them."""
    tree = packages / "tree"
    for package in sorted(packages.glob("bible-kjv*.deb")):
        subprocess.run(["dpkg", "-x", str(package), str(tree)], check=True)
    # The program looks for its data in the current folder first, so nothing is installed.
    return print_kjv(str(tree / "usr/bin/bible"), tree / "usr/lib")


def print_kjv(program: str, folder: Path) -> str:
    """Return the text as ``Ge1:1 In the beginning ...`` lines, one verse each."""
    done = subprocess.run(
        [program, "-f", KJV_RANGE], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout


def read_kjv() -> str:
    """Return the King James text: from the installed program, else from a download."""
    installed = shutil.which("bible")
    if installed is not None:
        return print_kjv(installed, Path("/usr/lib"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", *KJV_PACKAGES], cwd=folder, check=True)
        return extract_kjv(Path(folder))


def chapters(kjv: str) -> list[Document]:
    """Split the King James text into chapters, without the verse numbers."""
    found: dict[str, list[str]] = {}
    for line in kjv.splitlines():
        match = VERSE_LINE.match(line)
        if match is None:
            raise ValueError(f"not a verse: {line!r}")
        book, chapter, _, verse = match.groups()
        found.setdefault(book + chapter, []).append(" ".join(verse.split()))
    return [Document(name, "chapter", " ", verses) for name, verses in found.items()]


def held_out_chapters(documents: list[Document]) -> set[str]:
    """Return the names of the chapters that are never trained on."""
    middle = HELD_OUT_ONE_IN // 2
    return {
        document.name
        for index, document in enumerate(documents)
        if index // HELD_OUT_CHAPTER_RUN % HELD_OUT_ONE_IN == middle
    }


def library_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield the dotted name and path of every module of the standard library, in order."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if SKIPPED_FOLDERS.isdisjoint(parts) and not parts[0].startswith("config-"):
            yield ".".join(part for part in parts if part != "__init__"), path


def unwrap(paragraph: str) -> str:
    """Join the lines of a prose paragraph; leave lists, code and tables as they are."""
    lines = paragraph.split("\n")
    if any(not line or (not line[0].isalnum() and line[0] not in "\"'(`_") for line in lines):
        return paragraph
    if any(len(line) < 45 for line in lines[:-1]):
        return paragraph
    return " ".join(lines)


def is_prose(text: str) -> bool:
    """Whether ``text`` is long enough and mostly words."""
    good = sum(char.isalpha() or char == " " for char in text)
    return len(text) >= MIN_DOCSTRING_CHARS and good >= MIN_PROSE_SHARE * len(text)


def kind_of(node: ast.AST) -> str:
    """Return the document kind of a syntax node, or an empty string where it has no docstring."""
    if isinstance(node, ast.Module):
        return "module"
    if isinstance(node, ast.ClassDef):
        return "class"
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return "function"
    return ""


def docstring_nodes(name: str, node: ast.AST) -> Iterator[tuple[str, str, str]]:
    """Yield ``(dotted name, kind, docstring)`` of ``node`` and of everything inside it."""
    kind = kind_of(node)
    if kind:
        text = ast.get_docstring(node, clean=False)  # type: ignore[arg-type]
        if text is not None:
            yield name, kind, inspect.cleandoc(text)
    for child in ast.iter_child_nodes(node):
        inner = f"{name}.{child.name}" if hasattr(child, "name") and kind_of(child) else name
        yield from docstring_nodes(inner, child)


def docstrings(root: Path) -> list[Document]:
    """Return the distinct prose docstrings of the standard library under ``root``."""
    seen: set[str] = set()
    documents = []
    for module, path in library_files(root):
        try:
            tree = ast.parse(path.read_bytes())
        except SyntaxError:
            continue  # templates and deliberately broken files
        for name, kind, text in docstring_nodes(module, tree):
            if text in seen or not is_prose(text):
                continue
            seen.add(text)
            paragraphs = [unwrap(part) for part in re.split(r"\n\s*\n", text.strip())]
            documents.append(Document(name, kind, "\n\n", paragraphs))
    return documents


def is_held_out_module(name: str, modules: set[str]) -> bool:
    """Whether the module of ``name`` is held out from training (chosen by its digest)."""
    module = name
    while module not in modules:
        module = module.rpartition(".")[0]
    return hashlib.sha256(module.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def split(bible: list[Document], library: list[Document]) -> tuple[list[Document], list[Document]]:
    """Divide all documents into training and validation documents.

    Whole chapters and whole modules are held out, so that no validation text continues a
    text that was trained on.
    """
    chosen = held_out_chapters(bible)
    modules = {name for name, _ in library_files(Path(sysconfig.get_paths()["stdlib"]))}
    train: list[Document] = []
    validation: list[Document] = []
    for document in bible + library:
        if document.kind == "chapter":
            held = document.name in chosen
        else:
            held = is_held_out_module(document.name, modules)
        (validation if held else train).append(document)
    return train, validation


def write_documents(path: Path, documents: list[Document]) -> dict[str, object]:
    """Write one JSON line per document and return the figures for ``corpus.json``."""
    body = "".join(json.dumps(asdict(document)) + "\n" for document in documents)
    path.write_text(body, encoding="utf-8")
    bible = sum(len(d.text.encode()) for d in documents if d.kind == "chapter")
    total = sum(len(d.text.encode()) for d in documents)
    return {
        "documents": len(documents),
        "kjv_bytes": bible,
        "docstring_bytes": total - bible,
        "sha256": hashlib.sha256(body.encode()).hexdigest(),
    }


def read_documents(path: Path) -> list[Document]:
    """Read what :func:`write_documents` wrote."""
    with path.open(encoding="utf-8") as lines:
        return [Document(**json.loads(line)) for line in lines]


def main() -> None:
    """Build the corpus in the folder given by ``--work``."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("build/tiny"), help="working folder")
    work: Path = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    train, validation = split(
        chapters(read_kjv()), docstrings(Path(sysconfig.get_paths()["stdlib"]))
    )
    report = {
        "python": platform.python_version(),
        "train": write_documents(work / "train.jsonl", train),
        "validation": write_documents(work / "validation.jsonl", validation),
    }
    (work / "corpus.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
