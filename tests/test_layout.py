"""The folders, the package map, the links, the imports and the interface to the world agree.

Each rule's message gives its reason.
"""

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.setorder import orders_of_sets

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONFIG = PROJECT["tool"]
SETUP = CONFIG["setuptools"]
FOLDERS = {k: v for k, v in SETUP["package-dir"].items() if k != "shoal"}

# Imports point down this table, never up (docs/architecture.md).
MAY_IMPORT = {
    "cli": {"node", "netsim", "tasks", "state", "dht", "transport"},
    "node": {"tasks", "state", "dht", "transport"},
    "tasks": {"state", "dht", "transport"},
    "state": {"transport"},
    "dht": {"transport"},
    "transport": set(),
    "netsim": set(),  # except STARTS_DAEMONS
}
# The only part of the simulator that knows what it simulates.
STARTS_DAEMONS = "netsim/daemons/"
# The rooms of `transport/`: each may import those before it, and the modules at the top of
# `transport/`. So no room up to `dial` knows a strategy, which plugs into it.
ROOMS = (
    "host", "lane", "handshake", "link", "dial",
    "udp", "lan", "relay", "libp2p", "nat", "browser",
    "strategies",
)  # fmt: skip
# The modules at the top may use only the types of this room.
TOP_IMPORTS = {"host"}
WHY_DOWN = (
    "imports point one way, so that a package can be read, tested and replaced "
    "without those above it (docs/architecture.md)"
)

# The parts of the world beyond `Host`, and the modules that may use them.
WORLD_MODULES = {
    "time", "random", "secrets", "socket", "threading", "subprocess", "multiprocessing",
    "asyncio", "tempfile", "shutil", "psutil", "uuid", "sqlite3", "apsw", "selectors",
    "select",
}  # fmt: skip
WORLD_CALLS = {
    "open", "os.urandom", "os.open", "trio.to_thread.run_sync", "trio.run_process",
    "trio.open_file", "trio.socket.socket", "trio.open_tcp_stream", "trio.open_tcp_listeners",
    "trio.serve_tcp", "trio.lowlevel.open_process", "datetime.now", "datetime.datetime.now",
    "os.fork", "os.getrandom", "os.replace", "os.rename",
}  # fmt: skip
WORLD_METHODS = {  # of pathlib.Path: names alone are no access, but the files behind them are
    "read_text", "read_bytes", "write_text", "write_bytes", "mkdir", "rmdir", "unlink", "touch",
    "iterdir", "glob", "rglob", "exists", "is_file", "is_dir", "stat", "chmod", "symlink_to",
}  # fmt: skip
WHY_WORLD = (
    "every part takes its `Host` (transport/host/seam.py), or the simulator cannot replace the "
    "world and a run cannot be repeated"
)
# Modules that run in a process of their own, started through Host.spawn; and the implementation of
# Host itself.
ENGINE_WORKER = {
    f"tasks/engine/{name}.py"
    for name in (
        "worker",
        "core",
        "devicecore",
        "sampling",
        "session",
        "clock",
        "activations/packing",
    )
} | {path.relative_to(ROOT).as_posix() for path in (ROOT / "tasks/engine/compute").rglob("*.py")}
# The modules of the process that trains a whole model.
TRAINER = {f"tasks/tuning/whole/{name}.py" for name in ("child", "network")}
# The modules of the probe's process.
PROBE = {f"tasks/hardware/{name}.py" for name in ("child", "measure", "devices")}
# The modules of the converting process.
CONVERTER = {
    path.relative_to(ROOT).as_posix()
    for path in (ROOT / "tasks/models").rglob("*.py")
    if path.name not in ("adding.py", "process.py", "frames.py")
}
BEYOND_THE_SEAM = {
    "transport/host/real.py",
    "transport/host/realfiles.py",
    "transport/host/datagrams.py",  # the real host's UDP sockets
    "transport/host/localname.py",  # and the names of its Unix sockets, which the commands need too
    "transport/host/database.py",  # SQLite, whose system calls the host provides
    "transport/browser/bridge.py",  # asyncio inside trio, for aiortc
    "tasks/engine/wire.py",  # both ends of the worker's socket
    "tasks/text/child.py",
    *ENGINE_WORKER,
    *TRAINER,
    *PROBE,
    *CONVERTER,
}
# Modules of the simulator that run outside simulated time: before, after or beside it.
AROUND_THE_SIMULATION = (
    "netsim/determinism/strict.py", "netsim/plugin.py", "netsim/seeds.py", "netsim/netns/",
    "netsim/scenario/", "netsim/report/", "netsim/runs/", "netsim/population/data.py",
    "netsim/daemons/realfiles.py",
)  # fmt: skip
# Constants and types in which the simulated world is written; their use is restricted below.
SIMULATED_WITH = {"socket", "random", "apsw"}
REAL_CALLS = {
    "stdlib.socket",
    "stdlib.socketpair",
    "stdlib.getaddrinfo",
    "socket.socket",
    "apsw.Connection",
}
EXECUTES = {
    "pickle", "marshal", "dill", "cloudpickle", "shelve", "yaml", "joblib",
}  # fmt: skip
OF_A_DAEMON = {"transport", "state", "dht", "tasks", "node"}
READS = {"receive_some", "recv", "recvfrom", "readline", "readlines", "read_bytes", "read_text"}
INFLATES = {"decompress", "decompressobj"}
EXECUTING_CALLS = {"eval", "exec", "compile", "torch.load", "os.system", "__import__"}


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    """Yield every source file of the packages, or of these folders: its path from the root, and its
    syntax tree.
    """
    for folder in folders or FOLDERS.values():
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), parsed(path)


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file, which several rules look at and none changes."""
    return ast.parse(path.read_text())


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for a name or attribute expression, or an empty string."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := dotted(node.value)):
        return f"{base}.{node.attr}"
    return ""


def imported(path: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, absolute module) for every import, without the prefix `shoal.`."""
    here = path.removesuffix(".py").split("/")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name.removeprefix("shoal.")
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                base = here[: len(here) - node.level]
                for alias in node.names:
                    parts = [*base, *(node.module or "").split("."), alias.name]
                    yield node.lineno, ".".join(part for part in parts if part)
            else:
                for alias in node.names:
                    yield node.lineno, f"{node.module}.{alias.name}".removeprefix("shoal.")


def is_ours(module: str) -> bool:
    return module.split(".")[0] in MAY_IMPORT


def upward_imports(path: str, tree: ast.Module) -> list[str]:
    mine = path.split("/")[0]
    allowed = MAY_IMPORT["node" if path.startswith(STARTS_DAEMONS) else mine]
    allowed = allowed | {"node"} if path.startswith(STARTS_DAEMONS) else allowed
    return [
        f"{path}:{line}: {mine}/ may not import {module}: {WHY_DOWN}"
        for line, module in imported(path, tree)
        if is_ours(module) and (top := module.split(".")[0]) != mine and top not in allowed
    ]


def room_of(module: str) -> str:
    """Return the room of `transport/` in which a module lies, or an empty string at its top."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / "transport" / parts[1]).is_dir() else ""


def imports_against_rooms(path: str, tree: ast.Module) -> list[str]:
    """Return imports within `transport/` that its order of rooms forbids, for types too."""
    if not path.startswith("transport/"):
        return []
    mine = room_of(path.removesuffix(".py").replace("/", "."))
    allowed = {"", mine, *(ROOMS[: ROOMS.index(mine)] if mine else TOP_IMPORTS)}
    return [
        f"{path}:{line}: transport/{mine} may not import {module}: {WHY_DOWN}"
        for line, module in imported(path, tree)
        if module.startswith("transport.") and room_of(module) not in allowed
    ]


def world_touches(path: str, tree: ast.Module) -> list[str]:
    if path in BEYOND_THE_SEAM or path.startswith(("cli/", *AROUND_THE_SIMULATION)):
        return []
    banned, calls = WORLD_MODULES, WORLD_CALLS
    if path.startswith("netsim/"):  # simulated sockets have the names of trio's
        banned = banned - SIMULATED_WITH | {"random.random", "random.randrange", "random.choice"}
        calls = calls - {"trio.socket.socket"} | REAL_CALLS
    found = [
        f"{path}:{line}: imports `{module}`: {WHY_WORLD}"
        for line, module in imported(path, tree)
        if module in banned or module.split(".")[0] in banned
    ]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if name in calls or method in WORLD_METHODS:
            found.append(f"{path}:{node.lineno}: calls `{name or method}`: {WHY_WORLD}")
    return found


def executions(path: str, tree: ast.Module) -> list[str]:
    why = "nothing that arrives is ever executed"
    found = [
        f"{path}:{line}: imports `{module}`: {why}"
        for line, module in imported(path, tree)
        if module.split(".")[0] in EXECUTES
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (name := dotted(node.func)) in EXECUTING_CALLS:
            found.append(f"{path}:{node.lineno}: calls `{name}`: {why}")
        if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            found.append(f"{path}: `trust_remote_code`: {why}")
    return found


def unbounded_reads(path: str, tree: ast.Module) -> list[str]:
    """Return reads without a limit in bytes, and anything that inflates."""
    if path.split("/")[0] not in OF_A_DAEMON or path in BEYOND_THE_SEAM:
        return []
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method, bare = node.func.attr, not node.args and not node.keywords
        if method in INFLATES or (method in READS and bare):
            found.append(f"{path}:{node.lineno}: calls `{method}`: what arrives is bounded first")
    return found


def torch_imports(path: str, tree: ast.Module) -> list[str]:
    if path in ENGINE_WORKER | TRAINER | PROBE:
        return []
    return [
        f"{path}:{line}: imports torch: only processes beside the daemon may, so "
        "that the daemon, the commands and the simulator start without it"
        for line, module in imported(path, tree)
        if module.split(".")[0] == "torch"
    ]


def broad_excepts(path: str, tree: ast.Module) -> list[str]:
    """Return handlers of all exceptions; each process may have one, with its reason on the line."""
    return [
        f"{path}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or dotted(node.type) in {"Exception", "BaseException"})
        and not any(isinstance(item, ast.Raise) for item in node.body)
    ]


# Modules in which msgpack becomes objects. A trace is a file of the simulator, which imports no
# other package of ours: its reader limits each list.
DECODES = {"transport/decoding.py", "netsim/trace/file.py"}
DECODING = {
    "msgpack": {"unpackb", "unpack", "Unpacker"},
    "msgspec": {"convert", "json", "msgpack", "toml", "yaml", "Raw"},
}


def decodings(path: str, tree: ast.Module) -> list[str]:
    """Return uses of the decoders of msgpack and msgspec."""
    if path in DECODES:
        return []
    why = "decode with transport/decoding.py, which has bounds for what it builds"
    attributes = [
        (node.lineno, f"{dotted(node.value)}.{node.attr}")
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
    ]
    used = [(line, name.split(".")) for line, name in (*attributes, *imported(path, tree))]
    return [
        f"{path}:{line}: `{'.'.join(names)}`: {why}"
        for line, names in used
        if len(names) > 1 and names[1] in DECODING.get(names[0], ())
    ]


def is_callable(annotation: ast.expr | None) -> bool:
    """Return whether a type is `Callable[…]`, or that or None."""
    text = "" if annotation is None else ast.unparse(annotation).strip("'\"")
    return text.removesuffix(" | None").startswith("Callable[") and "] | " not in text[:-7]


def declared(tree: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield each name that a class of a module has, and whether it is a callable attribute."""
    for each in ast.walk(tree):
        if not isinstance(each, ast.ClassDef):
            continue
        for node in ast.walk(each):
            if isinstance(node, FUNCTIONS):
                yield node.name, False
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute):
                yield node.target.attr, is_callable(node.annotation)
            elif isinstance(node, ast.AnnAssign) and node in each.body:
                yield dotted(node.target), is_callable(node.annotation)


@cache
def callable_attributes() -> frozenset[str]:
    """Return the names that stand for a callable attribute wherever a class of ours has them."""
    kinds: dict[str, set[bool]] = {}
    for _, tree in sources():
        for name, kind in declared(tree):
            kinds.setdefault(name, set()).add(kind)
    return frozenset(name for name, found in kinds.items() if found == {True})


def poked_callbacks(path: str, tree: ast.Module) -> list[str]:
    """Return callbacks that are assigned to an attribute of another object than `self`."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in assigned:
        value = node.value
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)  # one may be starred
            else:
                pairs.append((target, value))
    found = callable_attributes() | {name for name, kind in declared(tree) if kind}
    return [
        f"{path}:{target.lineno}: `{dotted(target)}` is set from outside: pass a callback to the "
        "constructor, or register it with a method"
        for target, value in pairs
        if isinstance(target, ast.Attribute) and dotted(target.value) not in ("self", "cls")
        if target.attr in found
        or (isinstance(value, ast.Call) and dotted(value.func).split(".")[-1] == "partial")
    ]


Rule = Callable[[str, ast.Module], list[str]]
RULES: list[Rule] = [
    upward_imports, imports_against_rooms, world_touches, executions, unbounded_reads,
    torch_imports, decodings, orders_of_sets, poked_callbacks,
]  # fmt: skip


CALLBACK = "class A:\n    end: Callable[[], None] | None = None"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: Rule) -> None:
    broken = [line for path, tree in sources() for line in rule(path, tree)]
    assert not broken, "\n" + "\n".join(broken)


@pytest.mark.parametrize(
    ("rule", "code"),
    [
        (upward_imports, "from ...tasks.inference.stage import Stage"),
        (upward_imports, "import shoal.cli.main"),
        (world_touches, "import time"),
        (world_touches, "import apsw"),
        (world_touches, "import random"),
        (world_touches, "from random import random"),
        (world_touches, "def f():\n    with open('x') as g: pass"),
        (world_touches, "def f(folder):\n    return (folder / 'x').read_text()"),
        (world_touches, "import trio\nasync def f(): await trio.to_thread.run_sync(print)"),
        (executions, "import pickle"),
        (executions, "import torch\ntorch.load('x')"),
        (unbounded_reads, "async def f(stream): return await stream.receive_some()"),
        (unbounded_reads, "import zlib\nzlib.decompress(b'x', 15, 10)"),
        (torch_imports, "import torch.nn"),
        (decodings, "import msgpack\nmsgpack.unpackb(b'')"),
        (decodings, "import msgpack\ndecoder = msgpack.Unpacker"),
        (decodings, "from msgpack import unpackb"),
        (decodings, "import msgspec\nmsgspec.convert([], list)"),
        (decodings, "import msgspec\nmsgspec.msgpack.Decoder(list)"),
        (decodings, "from msgspec.json import decode"),
        (decodings, "from msgspec import convert"),
        (poked_callbacks, f"{CALLBACK}\ndef f(a): a.b.end = print"),
        (poked_callbacks, f"{CALLBACK}\ndef f(a): a.x, a.end = 1, print"),
        (poked_callbacks, "from functools import partial\ndef f(a): a.x = partial(f, a)"),
        (orders_of_sets, "for x in {'a', 'b'}: print(x)"),
        (orders_of_sets, "def f(names: set[str]): return [name for name in names]"),
        (orders_of_sets, "def f(names: 'frozenset[str] | None'): return next(iter(names or ()))"),
        (orders_of_sets, "class A:\n    x: set[str]\n    def f(self): return ' '.join(self.x)"),
        (
            orders_of_sets,
            "class A:\n    def f(self):\n        self.x = set()\n        self.x.pop()",
        ),
        (orders_of_sets, "def f(a: dict[str, int], b): return [*(a.keys() - b)]"),
        (orders_of_sets, "def f(a: dict[str, set[str]]): yield from a.get('x', ())"),
        (orders_of_sets, "def f(a: dict[str, set[str]]): return [tuple(x) for x in a.values()]"),
        (orders_of_sets, "def f() -> set[str]: ...\nfirst, second = f()"),
        (orders_of_sets, "def f(a: set[str]): return dict.fromkeys(a | {'x'})"),
        (orders_of_sets, "def f(a: set[str], key): return max(a, key=key)"),
        (orders_of_sets, "def f(a: set[str], size): return sum(size[each] for each in a)"),
    ],
)
def test_each_rule_can_fail(rule: Rule, code: str) -> None:
    assert rule("dht/kademlia/table.py", ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __init__(self, end): self.end = end",
        "class A:\n    def register(self, end): self.end = end",
        "def f(a): a.begin = 1",
    ],
)
def test_callbacks_of_an_object_s_own_are_allowed(code: str) -> None:
    assert not poked_callbacks("", ast.parse(f"{CALLBACK}\n{code}"))


@pytest.mark.parametrize(
    "use",
    [
        "sorted(a)", "len(a)", "min(a)", "any(x for x in a)", "{x for x in a}", "{*a, 'x'}",
        "set(x for x in a)", "sum(x == 'y' for x in a)", "b.update(a)", "'x' in a", "a & {'x'}",
        "fsum(w[x] for x in a)", "[x for x in numbers]", "[x for x in pairs]",
        "list(set(range(9)))",
        "[x for x in dict.fromkeys(b)]", "[x for x in b.keys()]",
    ],
)  # fmt: skip
def test_uses_of_a_set_without_an_order_are_allowed(use: str) -> None:
    head = "def f(a: set[str], b: dict[str, int], numbers: set[int], pairs: set[tuple[int, int]])"
    assert not orders_of_sets("", ast.parse(f"{head}: return {use}"))
    assert not orders_of_sets("", ast.parse(f"{head}:\n    for x in a: del b[x]"))
    assert orders_of_sets("", ast.parse(f"{head}:\n    for x in a: b[x] = 1"))


def unrun(path: str, tree: ast.Module) -> list[str]:
    """Return function bodies within tests that no line of the test names, so that they
    never run.
    """
    tests = [each for each in ast.walk(tree) if isinstance(each, FUNCTIONS)]
    return [
        f"{path}:{body.lineno}: `{test.name}` never runs its `{body.name}`"
        for test in tests
        for body in test.body
        if isinstance(body, FUNCTIONS) and not body.decorator_list
        if not any(
            isinstance(it, ast.Name) and it.id == body.name
            for other in test.body
            if other is not body
            for it in ast.walk(other)
        )
    ]


def test_every_body_of_a_test_is_run() -> None:
    broken = [line for path, tree in sources("tests") for line in unrun(path, tree)]
    assert not broken, "\n" + "\n".join(broken)
    inside = "def test_it():\n    async def body(): pass\n"
    assert unrun("", ast.parse(inside)) and not unrun("", ast.parse(inside + "    run(body)"))


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("transport/dial/endpoint.py", "from ..relay.book import RelayBook"),
        ("transport/dial/endpoint.py", "from .. import libp2p"),
        ("transport/dial/endpoint.py", "def f():\n    import shoal.transport.browser.clear"),
        ("transport/link/link.py", "from ..dial.endpoint import Endpoint"),
        ("transport/relay/client.py", "from ..nat.knowledge import Knowledge"),
        ("transport/nat/punch/needs.py", "from ...strategies.dialer import Dialer"),
        (
            "transport/dial/endpoint.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..nat import vouching",
        ),
        ("transport/guard.py", "from .link.link import Link"),
    ],
)
def test_the_order_of_rooms_can_fail(path: str, code: str) -> None:
    assert imports_against_rooms(path, ast.parse(code))
    assert not imports_against_rooms("transport/strategies/dialer.py", ast.parse(code))


def test_every_room_of_transport_has_a_place() -> None:
    rooms = {each.parent.name for each in (ROOT / "transport").glob("*/__init__.py")}
    assert rooms == set(ROOMS)


def test_the_simulator_s_own_rules_can_fail() -> None:
    """netsim/ may use the modules that it simulates with, and no other part of the world."""
    path = "netsim/faults.py"
    assert not world_touches(path, ast.parse("from random import Random\nimport socket as stdlib"))
    assert world_touches(path, ast.parse("from random import random"))
    assert world_touches(path, ast.parse("import socket as stdlib\nx = stdlib.socket()"))
    assert world_touches(path, ast.parse("import time"))
    assert upward_imports(path, ast.parse("from ..node.daemon import run_node"))
    assert not upward_imports("netsim/daemons/host.py", ast.parse("from ...node import daemon"))
    assert upward_imports("netsim/daemons/host.py", ast.parse("from ...cli import main"))


def test_one_broad_except_per_process() -> None:
    """Errors are handled where they are understood; only the edge of a process catches the rest."""
    edges = {
        "cli/main.py",
        "tasks/engine/worker.py",
        "tasks/text/child.py",
        "tasks/models/child.py",
        "netsim/host.py",  # of a simulated process
    }
    found = [line for path, tree in sources() for line in broad_excepts(path, tree)]
    outside = [line for line in found if line.split(":")[0] not in edges]
    assert not outside, f"broad excepts outside the edges {sorted(edges)}: {outside}"
    per_file = {line.split(":")[0] for line in found}
    assert len(found) == len(per_file), f"more than one broad except in a file: {found}"


def test_every_folder_is_linked_and_checked() -> None:
    """A new top-level package needs a map line, a link and a pyright line."""
    for name, folder in FOLDERS.items():
        link = ROOT / name.replace(".", "/")
        assert link.is_symlink(), f"run: ln -s ../{folder} {link.relative_to(ROOT)}"
        assert link.resolve() == ROOT / folder
        assert folder in CONFIG["pyright"]["include"]


MOST_MODULES = 20


def test_no_folder_is_too_large() -> None:
    """The names of the folders are the architecture: one with many modules hides it."""
    large = {
        path.parent.relative_to(ROOT).as_posix(): modules
        for folder in FOLDERS.values()
        for path in (ROOT / folder).rglob("__init__.py")
        if (modules := len(list(path.parent.glob("*.py"))) - 1) > MOST_MODULES
    }
    assert not large, f"more than {MOST_MODULES} modules in a folder; divide by purpose: {large}"


MOST_SHARED_NAMES = 20
MOST_ANY = 300
MOST_PARAMETERS = 6
MOST_LONG_LISTS = 25


def class_names() -> Iterator[tuple[str, str]]:
    """Yield (name, path) of every class."""
    for path, tree in sources():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                yield node.name, path


def test_a_class_name_means_one_thing() -> None:
    """A name tells which class is meant. Shared names mean the same everywhere."""
    places: dict[str, set[str]] = {}
    for name, path in class_names():
        places.setdefault(name, set()).add(path)
    shared = {name: sorted(paths) for name, paths in places.items() if len(paths) > 1}
    assert len(shared) <= MOST_SHARED_NAMES, f"give one of each pair another name: {shared}"


def test_few_values_have_no_type() -> None:
    uses = {
        path: sum(isinstance(node, ast.Name) and node.id == "Any" for node in ast.walk(tree))
        for path, tree in sources()
    }
    most = sorted(uses, key=uses.__getitem__)[-5:]
    assert sum(uses.values()) <= MOST_ANY, f"`Any` turns checks off; most are in {most}"


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the number of parameters, without `self` and `cls`."""
    spec = function.args
    names = [each.arg for each in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def test_few_functions_have_many_parameters() -> None:
    """Kernels of a GPU do not count: each of their arguments is a pointer, a stride or a size."""
    long = [
        f"{path}:{node.lineno} {node.name}"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and parameters(node) > MOST_PARAMETERS
        if not any(dotted(each) == "triton.jit" for each in node.decorator_list)
    ]
    assert len(long) <= MOST_LONG_LISTS, f"more than {MOST_PARAMETERS} parameters: {long}"
    (function,) = ast.parse("def f(self, a, b, /, c, *, d): ...").body
    assert isinstance(function, ast.FunctionDef) and parameters(function) == 4


def packages() -> list[str]:
    """Return all folders with an `__init__.py`, as paths from the root."""
    inits = (init for name in FOLDERS.values() for init in (ROOT / name).rglob("__init__.py"))
    return sorted(init.parent.relative_to(ROOT).as_posix() for init in inits)


def said_after(word: str, package: str) -> str:
    """Return what the docstring of a package says after a word, up to the end of the sentence."""
    text = ast.get_docstring(parsed(ROOT / package / "__init__.py")) or ""
    found = re.search(rf"\b{word}\b(.*?)\.(?:\s|\Z)", text, re.DOTALL)
    return found[1] if found else ""


def enclosing(package: str) -> list[str]:
    """Return the folders in which a package lies, the innermost first."""
    parts = package.split("/")
    return ["/".join(parts[:size]) for size in range(len(parts) - 1, 0, -1)]


def test_every_package_says_what_is_public_and_what_it_imports() -> None:
    """`Public: …` names what other packages use, and `Imports …` the packages that it may use."""
    for package in packages():
        assert said_after("Public", package), f"{package}/__init__.py: what is public?"
        assert said_after("Imports", package), f"{package}/__init__.py: what may it import?"


def test_what_a_package_calls_public_exists() -> None:
    defined: dict[str, set[str]] = {}
    for path, tree in sources():
        names = {each.name for each in tree.body if isinstance(each, (ast.ClassDef, *FUNCTIONS))}
        names |= {
            target.id
            for each in tree.body
            if isinstance(each, (ast.Assign, ast.AnnAssign))
            for target in (each.targets if isinstance(each, ast.Assign) else [each.target])
            if isinstance(target, ast.Name)
        }
        folder = path.rsplit("/", 1)[0]
        for package in (folder, *enclosing(folder)):
            defined.setdefault(package, set()).update(names, {Path(path).stem})
    absent = [
        f"{package}/__init__.py: `{name}`"
        for package in packages()
        for name in re.findall(r"`(\w+)", said_after("Public", package))
        if name not in defined[package]
        if not (ROOT / package / name).exists()
    ]
    assert not absent, absent


def imports_unsaid(path: str, tree: ast.Module, said: str) -> list[str]:
    """Return imports of packages that the docstring of the importing one does not name.

    A package may also import its own sub-packages, the modules at the top of the folders in which
    it lies, and the packages below its top-level package (MAY_IMPORT).
    """
    here = path.rsplit("/", 1)[0]
    top, above = here.split("/")[0], enclosing(here)
    named = {
        folder
        for name in re.findall(r"`([\w/]+)/`", said)
        for folder in (name, *(f"{each}/{name}" for each in above))
        if not f"{here}/".startswith(f"{folder}/")
    }
    found = []
    for line, module in imported(path, tree):
        parts = module.split(".")
        while parts and not (ROOT / "/".join(parts) / "__init__.py").exists():
            parts.pop()
        package = "/".join(parts)
        if package.split("/")[0] != top or package in above or f"{package}/".startswith(f"{here}/"):
            continue
        if not any(f"{package}/".startswith(f"{each}/") for each in named):
            found.append(
                f"{path}:{line}: {here}/__init__.py does not say that it imports {package}/"
            )
    return found


def test_packages_import_what_they_say() -> None:
    broken = [
        line
        for path, tree in sources()
        for line in imports_unsaid(path, tree, said_after("Imports", path.rsplit("/", 1)[0]))
    ]
    assert not broken, "\n" + "\n".join(broken)
    tree = ast.parse("from ..content.library import Library")
    assert imports_unsaid("dht/kv/index.py", tree, "`records/`")
    assert imports_unsaid("dht/kv/index.py", tree, "nothing else of `dht/`")
    assert not imports_unsaid("dht/kv/index.py", tree, "`records/` and `content/`")


MOST_LINES_OF_A_CONSTRUCTOR = 40


def test_constructors_are_short() -> None:
    """One that is long makes many parts at once: group those that belong together into a class."""
    long = [
        f"{path}:{node.lineno}: {lines} lines"
        for path, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and node.name in ("__init__", "__post_init__")
        if (lines := (node.end_lineno or 0) - node.lineno + 1) > MOST_LINES_OF_A_CONSTRUCTOR
    ]
    assert not long, long


def own_raises(function: ast.AST) -> Iterator[str]:
    """Yield the name of each class that a function itself raises and does not catch."""
    caught = {
        dotted(each).split(".")[-1]
        for node in ast.walk(function)
        if isinstance(node, ast.ExceptHandler) and node.type is not None
        for each in (node.type.elts if isinstance(node.type, ast.Tuple) else [node.type])
    }
    waiting = [*ast.iter_child_nodes(function)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            name = dotted(node.exc.func).split(".")[-1]
            if name[:1].isupper() and name not in caught | {"AssertionError"}:
                yield name
        waiting += ast.iter_child_nodes(node)


def public_functions(
    tree: ast.Module | ast.ClassDef,
) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods whose names do not begin with an underscore."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from public_functions(node)
        elif isinstance(node, FUNCTIONS) and not node.name.startswith("_"):
            yield node


def silent_raises(path: str, tree: ast.Module) -> list[str]:
    """Return public functions with a docstring that does not tell which errors they raise."""
    if path.startswith("cli/commands/"):  # these docstrings are the help that a user reads
        return []
    return [
        f"{path}:{node.lineno}: `{node.name}` raises {raised}: its docstring tells when"
        for node in public_functions(tree)
        if (text := ast.get_docstring(node)) and "raise" not in text.lower()
        if (raised := sorted(set(own_raises(node))))
    ]


def test_public_functions_tell_which_errors_they_raise() -> None:
    silent = [line for path, tree in sources() for line in silent_raises(path, tree)]
    assert not silent, "\n" + "\n".join(silent)
    code = 'def f():\n    """Do it.{}"""\n    raise ValueError("x")'
    assert silent_raises("", ast.parse(code.format("")))
    assert not silent_raises("", ast.parse(code.format(" Raises ValueError always.")))


# Parameters and functions that say by their name what they measure.
MEASURED_BY_NAME = re.compile(
    r"(^(now|at|by|until|since|wall|seconds|timeout|deadline|rate|share|grace|default|low|high)$"
    r"|_(s|ms|bytes|per_s|at|due|until|timeout|rate|share|part|time)$)"
)
MEASURES = re.compile(
    r"\b(seconds?|ms|milliseconds?|minutes?|hours?|days?|bytes?|[KMG]iB|bits?|tokens?|per|fractions?"
    r"|parts?|shares?|ratio|probability|factor|times?|delays?|clock|numbers?|norms?|loss(es)?|mean"
    r"|distance|weights?|rows?|positions?|percentile|quantile|metric|median"
    r"|round-trip|clamped|1970)\b| s\b|0 to 1",
    re.IGNORECASE,
)
FLOATS = ("float", "float | None")
# Integers that say by their name what they count or number, and words that do so in a docstring.
COUNTED_BY_NAME = re.compile(
    r"(^|_)(bytes|tokens?|rows?|positions?|ports?|size|count|numbers?|index|seq|epoch|layers?|seed"
    r"|most|limit|version|place|part|steps?|attempts?|code|id|ident|key|start|stop|total|length"
    r"|lines?|blocks?|chunks?|nodes|peers|members|bits|prefix|ttl|rank|level|depth|hops?|root|width"
    r"|height|signal|year|value|offset|shard|stage|session|pid|status|descriptor|fd|family|kind"
    r"|proto|option|first|end)$"
)
COUNTS = re.compile(
    r"\b(layers?|peers?|nodes?|members?|packets?|datagrams?|chunks?|blocks?|entries|entry|records?"
    r"|index(es)?|indices|counts?|port|seed|pages?|frames?|calls?|steps?|lines?|sessions?|jobs?"
    r"|links?|feeds?|pieces?|epochs?|versions?|levels?|attempts?|streams?|hosts?|columns?|words?"
    r"|characters?|elements?|items?|dimensions?|replicas?|stages?|how many|how well|most|size|unit"
    r"|digits|status|descriptor|process id|id of the process"
    r"|mark|seeds|power of two|rounds|plans)\b",
    re.IGNORECASE,
)
INTEGERS = ("int", "int | None")


def unmeasured(path: str, tree: ast.Module) -> list[str]:
    """Return public functions with floats whose docstring does not say what these measure."""
    if path.startswith("cli/commands/"):  # the options of these have help of their own
        return []
    about: dict[ast.AST, str] = {
        function: ast.get_docstring(node) or ""
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        for function in node.body
    }
    found = []
    for node in public_functions(tree):
        typed = [(each.arg, each.annotation) for each in (*node.args.args, *node.args.kwonlyargs)]
        named = [
            (name, ast.unparse(annotation))
            for name, annotation in (*typed, (node.name, node.returns))
            if annotation is not None
        ]
        floats = [name for name, kind in named if kind in FLOATS]
        integers = [name for name, kind in named if kind in INTEGERS]
        vague = [name for name in floats if not MEASURED_BY_NAME.search(name)]
        vague_integers = [
            name
            for name in integers
            if not (MEASURED_BY_NAME.search(name) or COUNTED_BY_NAME.search(name))
        ]
        text = ast.get_docstring(node)
        words = f"{text} {about.get(node, '')}"
        if not text or MEASURES.search(words):
            continue
        vague += [] if COUNTS.search(words) else vague_integers
        if vague:
            found.append(f"{path}:{node.lineno}: what do {vague} of `{node.name}` measure?")
    return found


def test_docstrings_say_what_numbers_measure() -> None:
    vague = [line for path, tree in sources() for line in unmeasured(path, tree)]
    assert not vague, "\n" + "\n".join(vague)
    code = 'def f(x: float) -> None:\n    """Wait{}."""'
    assert unmeasured("", ast.parse(code.format("")))
    assert not unmeasured("", ast.parse(code.format(" for `x` seconds")))
    code = 'def f({}: int) -> None:\n    """Wait{}."""'
    assert unmeasured("", ast.parse(code.format("x", "")))
    assert not unmeasured("", ast.parse(code.format("x", " for `x` calls")))
    assert not unmeasured("", ast.parse(code.format("calls_bytes", "")))


def test_every_package_is_shipped() -> None:
    """A package missing from the list can be imported here, but is absent from the wheel."""
    found = {"shoal"}
    for name, folder in FOLDERS.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / folder).parts
            found.add(".".join((name, *parts)))
    assert set(SETUP["packages"]) == found


def test_every_package_has_a_sentence_errors_and_defaults() -> None:
    """The docstring of `__init__.py` tells a reader what a package is for."""
    for folder in FOLDERS.values():
        assert ast.get_docstring(ast.parse((ROOT / folder / "__init__.py").read_text())), folder
        if folder != "cli":
            assert (ROOT / folder / "errors.py").exists(), folder
            assert (ROOT / folder / "defaults.py").exists(), folder


def test_every_module_says_what_it_is() -> None:
    silent = [path for path, tree in sources() if not ast.get_docstring(tree)]
    assert not silent, f"no module docstring in {silent}"


def test_dependencies_are_locked() -> None:
    """The lock file pins the dependencies of the wheel, each with hashes."""
    wanted = {re.split(r"[><=\[]", item)[0].lower() for item in PROJECT["project"]["dependencies"]}
    listed = (ROOT / "requirements" / "runtime.in").read_text()
    names = {
        re.split(r"[><=\[]", line)[0].lower() for line in listed.splitlines() if line[:1].isalpha()
    }
    assert names == wanted
    for lock in ("runtime", "dev"):
        text = (ROOT / "requirements" / f"{lock}.lock").read_text()
        pins = re.findall(r"^([a-z0-9-]+)==", text, re.MULTILINE)
        assert wanted <= set(pins), wanted - set(pins)
        assert text.count("--hash=sha256:") >= len(pins)
        assert "torch" not in pins and not any(pin.startswith("nvidia") for pin in pins)
