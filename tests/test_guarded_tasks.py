"""No new task bypasses the guard of peers (transport/guard.py, ADR 0023).

A task that handles one peer is started by `Guard.start`, and a loop that reads what many peers say
by `Guard.start_repeated`. The tables list every task that a nursery starts directly: a task of this
node's own, or a part of a task that is already guarded. Another test looks into the loops: one that
reads what peers say outside of a guard has to be begun again (`Guard.repeat`, ADR 0080).
"""

import ast
from collections.abc import Iterator

from tests.test_layout import OF_A_DAEMON, dotted, sources

WHY = (
    "a task that handles one peer (a connection, a call, a datagram, a dial, a peer's data) is "
    "begun by `Guard.start`, or an unexpected exception in it ends the daemon; list it here if it "
    "is this node's own, or a part of a task that is guarded"
)
PARTS = {
    "transport/browser/visits.py": {"_run_and_cancel"},  # of `_carry`
    "transport/dial/attempt.py": {"self._try"},  # guards each dial
    "transport/dial/attempts.py": {"ConnectionAttempt"},  # the same
    "transport/link/grace.py": {"self._run_out"},  # of a link
    "transport/dial/introducing.py": {"self._links.run"},  # guards itself
    "transport/lan/mdns.py": {"self._serve", "self._receive"},  # guard each datagram and network
    "transport/libp2p/client.py": {"self._carry"},  # guards itself
    "transport/libp2p/connection.py": {"self._write", "self._watch", "self._serve"},
    "transport/libp2p/hop.py": {"self._copy"},
    "transport/link/link.py": {"self._serve", "path.writer.run"},
    "transport/link/tending.py": {"self._doubt"},
    "transport/link/links.py": {"self.run"},  # guards itself
    "transport/nat/portmap/mapper.py": {
        "self._watch",
        "self._try",
        "held.client.unmap",
    },  # of `_stay`
    "transport/nat/portmap/portcontrol.py": {"self._receive"},
    "transport/nat/punch/attempt.py": {"self._dial_tcp", "self._dial_udp", "self._pump"},
    "transport/nat/punch/puncher.py": {"self._run"},  # guards the attempt
    "transport/nat/punch/tcp.py": {"self._count_again", "self._dial"},
    "transport/nat/reach/looking.py": {"self._ask"},  # of a measurement
    "transport/nat/reach/measuring.py": {"try_out", "self._buy"},
    "transport/nat/reach/probing.py": {"self._read", "self._request"},
    "transport/relay/service.py": {"carry"},  # of a stream, so of a link
    "transport/dial/rescue.py": {"self._finder"},  # of a link
    "transport/dial/rounds.py": {"self._one"},
    "transport/link/serving.py": {"self._run"},
    "transport/link/streams.py": {"_run"},
    "tasks/chunks/beside.py": {"self._ask", "self._bring"},  # of a session
    "tasks/chunks/connector.py": {"self._begin"},  # of the same
    "tasks/chunks/fetching.py": {"self._ask_all", "self._watch", "self._ask"},  # of a session
    "state/membership/finding.py": {  # of `_check`, or of a call
        "self._ask_by",
        "self._ask_each",
        "ask",
        "self._ask",
        "ask_itself",
    },
    "state/membership/probing.py": {"self._ask_itself", "ask_itself"},  # of `_check`
    "dht/lookup/joining.py": {"ask"},  # guards each contact
    "dht/exchange/proving.py": {"self._ask_on"},  # guards each peer
    "dht/service.py": {"look"},
    "tasks/inference/chain.py": {
        "open_one",
        "change_one",
        "close_one",
        "self._until_silent",
    },  # of a command or a job
    "tasks/inference/conversation/conversing.py": {"task"},  # of `_beside`, of a request
    "tasks/inference/conversation/standing.py": {"self._keep"},  # of a request
    "tasks/inference/conversation/watch.py": {"ask_all", "ask_one"},  # of a request
    "tasks/inference/choice.py": {"self._probe"},  # of the same
    "tasks/inference/embedding.py": {"some"},  # of a request
    "tasks/inference/models.py": {"self._load"},  # guards itself
    "tasks/inference/stagechunks.py": {"self._beside"},  # the same
    "tasks/tuning/chain/network.py": {"self._run"},  # of a trainer
    "tasks/tuning/chain/stages.py": {"watch"},  # of the same
    "tasks/tuning/stage/stage.py": {"compute"},  # of a stream, so of a link
    "tasks/sharing/asking.py": {"probe"},  # of a request
    "tasks/sharing/desk.py": {"_until_left", "out.stay_alive"},  # of a stream, so of a link
    "tasks/sharing/sharing.py": {"self._watch"},  # guards each look
}
OWN = {
    "transport/browser/gate.py": {"visits.receive"},
    "transport/dial/endpoint.py": {
        "self._links.tick", "self._links.run_alarm", "self._links.give_back",
        "self.accepting.accept", "self._serve_too",
    },
    "transport/guard.py": {"self._run", "self.repeat"},
    "transport/strategies/dialer.py": {
        "self.puncher.run", "self.reach.run", "self.relays.run", "self.mapper.run",
        "self.neighbourhood.run", "self.foreign.run", "self.circuits.keep", "long.run",
    },
    "transport/lan/linking.py": {"self.lan.run"},
    "transport/dial/ports.py": {"self._endpoint.run", "self._run_udp"},
    "transport/nat/reach/service.py": {"self._watch_addresses", "self._volunteer.run"},
    "transport/udp/port.py": {"self._serve_added", "self._serve_timers", "self._serve"},
    "state/membership/membership.py": {"self.probing.run"},
    "state/service.py": {
        "self._show", "self.own.write", "self.own.stay_true", "self._keep_group",
        "self._forget", "self._forget_lost", "upkeep.run", "self.replication.run", "self._keep",
    },
    "dht/exchange/exchange.py": {"source.run"},
    "dht/exchange/fetch.py": {
        "self._settle", "self._pass_on", "self._peers.run", "self._intake.run",
    },
    "dht/exchange/intake.py": {"self._store_on"},
    "dht/service.py": {"self._joining.run", "self._persistence.run"},
    "tasks/engine/process.py": {"self._requests.write", "self._watch"},
    "tasks/jobs/runner.py": {"one"},  # within the guarded task of its piece
    "tasks/tuning/averaging/averager.py": {"self._drive"},
    "tasks/serving/serving.py": {
        "self._cancel_when_barred", "self._change", "self._until_spare",
        "self._shards.correct_costs",
    },
    "tasks/serving/slots.py": {"self._run_one", "one"},
    "tasks/inference/stage.py": {"self.endings.free", "self._chunks.run"},
    "tasks/tuning/stage/stage.py": {"self._close_all"},
    "tasks/text/process.py": {"self._write"},
    "tasks/tuning/trainer/encoding.py": {"some"},
    "tasks/tuning/trainer/together.py": {"self._run", "averager.run"},  # guards itself
    "tasks/tuning/trainer/tunings.py": {"self._run"},  # guards itself
    "tasks/tuning/moving/runner.py": {  # of a task that is guarded
        "self._replicate",
        "self._runner.share_place",
    },
    "tasks/jobs/replication/confirming.py": {"ask"},
    "tasks/jobs/replication/replication.py": {"ask"},  # a part of a submission
    "node/control/blobs.py": {"emit"},
    "node/swarm/bootstrap.py": {"self._keep"},
    "node/swarm/browsers.py": {"gate.run"},
    "node/resumable.py": {"self._generate"},  # guards itself
    "node/http/server.py": {"self._backend.resumable.run", "client.pump"},
    "node/control/server.py": {"self._cancel_when_gone", "trio.serve_listeners", "pass_on"},
    "node/daemon/daemon.py": {
        "compute.grouping.run", "base.credentials.run", "compute.interest.run",
        "self.inventory.announce_chunks", "bootstrap.run",
        "self.content.quota.run", "self.compute.scrub.run", "self.serving.run",
        "self._watch_serving",
        "self.membership.run", "self.state.run", "self.discovery.run", "self.kv.run",
        "measure_machine",
        "compute.models.run", "self.stage.run", "self.compute.tuning_stage.run",
        "self.working.run", "self._run_engine",
        "self.control.run", "self.answers.run", "self.api.run", "self._enter_swarm", "start",
        "self.content.embedded.bring", "self.compute.sharing.run", "self.tuning.tunings.run",
    },
    "node/swarm/discovery.py": {"self.dht.run"},
    "node/daemon/listening.py": {"run"},
    "node/daemon/work/jobs.py": {
        "self._collect", "self._accounting.run", "self.worker.run", "self._withdraw",
    },
}  # fmt: skip

READS = frozenset(  # names of functions and attributes by which a loop reads what peers say
    {"members", "links", "watch", "claims_by", "contacts", "authors", "heirs", "known", "peers"}
)
GUARDS = frozenset({"around", "reading", "_handling"})
"""Functions that return a guard."""
REPEATS = frozenset({"repeat", "start_repeated"})
LOOPS = {  # loops with such reads that another function begins, and that function's word for them
    "dht/kademlia/brieflinks.py": {"run": "self.links.run"},
    "node/daemon/telling/journal.py": {"keep_journal": "keep_journal"},
    "state/vouching.py": {"run": "vouching.run"},
    "tasks/serving/linkreports.py": {"run": "self._reports.run"},
}
GUARDED_LOOPS = {  # loops that are a part of what a guard surrounds
    "tasks/inference/conversation/conversing.py": {"_exchange"},  # of a request
    "tasks/inference/conversation/standing.py": {"_keep"},  # of a request
    "tasks/serving/choosing.py": {"model", "model_beside"},  # of `Serving._serve_while_allowed`
    "tasks/serving/serving.py": {"_until_spare", "_change", "_next"},  # of the same
    "tasks/serving/standing.py": {"next_span"},  # of the same
    "tasks/tuning/averaging/averager.py": {"run", "_drive"},  # of `Together._run`
}


def started(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, task) of tasks that nurseries start directly."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_nursery = "nursery" in dotted(node.func.value).lower()
        method = node.func.attr
        if node.args and (method == "start_soon" or (method == "start" and of_nursery)):
            for name in task_names(node.args[0]):
                yield node.lineno, name


def task_names(task: ast.expr) -> Iterator[str]:
    """Yield the names of a task as the tables spell them: the function that is called in the end.

    `a if b else c` has two names. A lambda has none, and is spelled as in the code.
    """
    if isinstance(task, ast.IfExp):
        yield from task_names(task.body)
        yield from task_names(task.orelse)
    elif isinstance(task, ast.Call) and dotted(task.func) == "partial":
        yield from task_names(task.args[0])
    elif isinstance(task, ast.Call):
        yield dotted(task.func)
    elif isinstance(task, ast.Attribute) and isinstance(task.value, ast.Call):
        made = ast.unparse(task)
        yield made if len(made) < 40 else dotted(task.value.func)
    else:
        yield dotted(task) or ast.unparse(task)


def bypassing(path: str, tree: ast.Module) -> list[str]:
    allowed = PARTS.get(path, set()) | OWN.get(path, set())
    return [f"{path}:{line}: `{task}`" for line, task in started(tree) if task not in allowed]


def test_no_task_bypasses_the_guard() -> None:
    broken = [line for path, tree in sources(*OF_A_DAEMON) for line in bypassing(path, tree)]
    assert not broken, "\n".join([WHY, *broken])


def test_the_tables_name_nothing_that_is_gone() -> None:
    there = {(path, task) for path, tree in sources(*OF_A_DAEMON) for _, task in started(tree)}
    listed = {(path, task) for table in (PARTS, OWN) for path, of in table.items() for task in of}
    assert listed <= there, listed - there


def test_the_rule_can_fail() -> None:
    new = ast.parse("async def f(nursery, peer):\n    nursery.start_soon(self._handle, peer)")
    assert bypassing("dht/lookup/searching.py", new)
    nested = ast.parse("def f(self):\n    self._nursery.start_soon(serve, 1)")
    assert bypassing("transport/dial/endpoint.py", nested)
    hidden = [
        "nursery.start_soon(lambda: self._handle(peer))",
        "nursery.start_soon(self.endings.free if alone else self._handle)",
        "nursery.start_soon(partial(self._handle, peer))",
    ]
    for line in hidden:
        for path in ("tasks/inference/stage.py", "transport/guard.py", "node/daemon/work/jobs.py"):
            assert bypassing(path, ast.parse(line))
    awaited = ast.parse("async def f(nursery):\n    await nursery.start(self._answer)")
    assert bypassing("transport/link/link.py", awaited)


Function = ast.FunctionDef | ast.AsyncFunctionDef


def unguarded(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below one that run with it and are not in a block with a guard.

    If a loop guards its turns, the things that it iterates over are left out.
    """
    guards_turns = isinstance(node, ast.For) and any(map(is_guard, ast.walk(node)))
    for child in ast.iter_child_nodes(node):
        if is_guard(child) or (guards_turns and isinstance(node, ast.For) and child is node.iter):
            continue
        if not isinstance(child, Function | ast.Lambda | ast.ClassDef):
            yield child
            yield from unguarded(child)


def is_guard(node: ast.AST) -> bool:
    """Return whether a node is a block with a guard."""
    with_what = [each.context_expr for each in node.items] if isinstance(node, ast.With) else []
    calls = [each for each in with_what if isinstance(each, ast.Call)]
    return any(last_name(each.func) in GUARDS for each in calls)


def last_name(node: ast.expr) -> str:
    return dotted(node).rpartition(".")[2]


def reads_of(node: ast.AST, beside: dict[str, Function], seen: set[str]) -> Iterator[str]:
    """Yield what a node reads of peers without a guard, also in functions of the same class."""
    for each in unguarded(node):
        if isinstance(each, ast.Attribute) and each.attr in READS:
            yield ast.unparse(each)
        if isinstance(each, ast.Call) and dotted(each.func) == f"self.{last_name(each.func)}":
            name = last_name(each.func)
            if name in beside and name not in seen:
                seen.add(name)
                yield from reads_of(beside[name], beside, seen)


def loops_that_read(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Yield (line, function, what is read) of endless loops that no guard begins in this file."""
    begun = {
        last_name(each)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and begins_guarded(node)
        for each in node.args
    }
    for owner in ast.walk(tree):
        if not isinstance(owner, ast.Module | ast.ClassDef):
            continue
        beside = {each.name: each for each in owner.body if isinstance(each, Function)}
        for function in beside.values():
            if function.name in begun:
                continue
            for loop in unguarded(function):
                if isinstance(loop, ast.While | ast.AsyncFor) and is_endless(loop):
                    found = next(reads_of(loop, beside, {function.name}), "")
                    if found and isinstance(function, ast.AsyncFunctionDef):
                        yield loop.lineno, function.name, found


def is_endless(loop: ast.While | ast.AsyncFor) -> bool:
    return isinstance(loop, ast.AsyncFor) or isinstance(loop.test, ast.Constant)


def begins_guarded(call: ast.Call) -> bool:
    return last_name(call.func) in REPEATS or dotted(call.func).endswith("guard.start")


def open_loops(path: str, tree: ast.Module) -> list[str]:
    known = LOOPS.get(path, {}).keys() | GUARDED_LOOPS.get(path, set())
    return [
        f"{path}:{line}: the loop in `{name}` reads `{read}`: guard the part about each peer, or "
        "begin it with `Guard.start_repeated`"
        for line, name, read in loops_that_read(tree)
        if name not in known
    ]


def test_no_loop_reads_what_peers_say_without_a_guard() -> None:
    broken = [line for path, tree in sources(*OF_A_DAEMON) for line in open_loops(path, tree)]
    assert not broken, "\n".join(broken)


def test_the_tables_of_loops_are_true() -> None:
    there = {
        (path, name)
        for path, tree in sources(*OF_A_DAEMON)
        if path in LOOPS or path in GUARDED_LOOPS
        for _, name, _ in loops_that_read(tree)
    }
    begun = {
        dotted(each)
        for _, tree in sources(*OF_A_DAEMON)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and last_name(node.func) in REPEATS
        for each in node.args
    }
    tables = (LOOPS, GUARDED_LOOPS)
    listed = {(path, name) for table in tables for path, names in table.items() for name in names}
    assert listed <= there, listed - there
    words = {word for names in LOOPS.values() for word in names.values()}
    assert words <= begun, words - begun


def test_the_rule_of_loops_can_fail() -> None:
    loop = "class A:\n  async def run(self):\n    while True:\n      {}\n      await sleep()\n"
    kept = "  def write(self):\n    return [self._ask(peer) for peer in self._directory.members()]"
    assert open_loops("a.py", ast.parse(loop.format("self.write()") + kept))
    assert open_loops("a.py", ast.parse(loop.format("self._exchange.peers")))
    assert not open_loops("a.py", ast.parse(loop.format("self.rest()") + kept))
    around = "with self._guard.around('members'): self.write()"
    assert not open_loops("a.py", ast.parse(loop.format(around) + kept))
    turns = "for a in self.links():\n       if a.alive:\n        with self.guard.around(a): f()"
    assert not open_loops("a.py", ast.parse(loop.format(turns)))
    assert open_loops("a.py", ast.parse(loop.format(f"{turns}\n       g(self.peers)")))
    begun = "\n  def f(self): self._guard.start_repeated(nursery, 'members', self.run)"
    assert not open_loops("a.py", ast.parse(loop.format("self.write()") + kept + begun))
    watch = "class A:\n  async def f(self):\n    async for each in self._jobs.watch(): g()"
    assert open_loops("a.py", ast.parse(watch))
