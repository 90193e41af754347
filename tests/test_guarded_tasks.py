"""No new task bypasses the guard of peers (transport/guard.py, ADR 0023).

A task that handles one peer is started by `Guard.start`. The tables list every task that a nursery
starts directly: a task of this node's own, or a part of a task that is already guarded.
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
    "transport/dial/rescue.py": {"self.finder"},  # of a link
    "transport/dial/rounds.py": {"self._one"},
    "transport/link/serving.py": {"self._run"},
    "transport/link/streams.py": {"_run"},
    "tasks/chunks/fetching.py": {"self._ask_all", "self._watch", "self._ask"},  # of a session
    "state/membership/finding.py": {  # of `_check`, or of a call
        "self._ask_by",
        "self._ask_each",
        "ask",
        "partial",
        "ask_itself",
    },
    "state/membership/probing.py": {"self._ask_itself", "ask_itself"},  # of `_check`
    "dht/lookup/joining.py": {
        "self._probe_queued",
        "self._keep_fresh",
        "ask",
    },  # guard each contact
    "dht/exchange/proving.py": {"self._ask_on"},  # guards each peer
    "dht/service.py": {"look"},
    "tasks/inference/chain.py": {
        "open_one",
        "change_one",
        "close_one",
        "self._until_silent",
    },  # of a command or a job
    "tasks/inference/conversation/conversing.py": {"self._standing.keep"},  # of a request
    "tasks/inference/conversation/standing.py": {"self._keep"},  # of a request
    "tasks/inference/conversation/watch.py": {"ask_all", "ask_one"},  # of a request
    "tasks/inference/choice.py": {"self._probe"},  # of the same
    "tasks/inference/embedding.py": {"some"},  # of a request
    "tasks/inference/models.py": {"self._load"},  # guards itself
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
    "transport/guard.py": {"partial"},
    "transport/strategies/dialer.py": {
        "self._watch_network", "self._watch_reach", "self.puncher.run", "self.reach.run",
        "LongPaths", "self.relays.run", "self.mapper.run", "self.neighbourhood.run",
        "self.foreign.run", "self.circuits.keep",
    },
    "transport/lan/linking.py": {"self.lan.run"},
    "transport/dial/ports.py": {"", "self._run_udp"},
    "transport/nat/reach/service.py": {
        "self._watch_addresses", "self._watch_port", "self._watch_links", "self._volunteer.run",
    },
    "transport/udp/port.py": {"self._serve_added", "self._serve_timers", "self._serve"},
    "state/membership/membership.py": {"self._probing.run"},
    "state/replication/replication.py": {"self._refill"},
    "state/service.py": {
        "self._show", "self.own.write", "self.own.stay_true", "vouching.run", "self._keep_group",
        "self._forget", "self._forget_lost", "upkeep.run", "self.replication.run", "self._keep",
    },
    "dht/exchange/exchange.py": {"source.run"},
    "dht/exchange/fetch.py": {
        "self._settle", "self._pass_on", "self._peers.run", "self._intake.run",
    },
    "dht/exchange/intake.py": {"self._store_on"},
    "dht/publishing/publishing.py": {"self._walk"},
    "dht/service.py": {
        "self.links.run", "self._joining.run", "self._publishing.run", "self._watch",
        "self._persistence.run",
    },
    "tasks/engine/process.py": {"self._write", "self._watch"},
    "tasks/jobs/runner.py": {"one"},  # within the guarded task of its piece
    "tasks/jobs/desk.py": {"self._watch", "self._tidy"},
    "tasks/jobs/worker.py": {
        "self._watch_jobs", "self._watch_members", "self._watch_crew", "self._tidy",
    },
    "tasks/tuning/averaging/averager.py": {"self._drive"},
    "tasks/serving/serving.py": {
        "self._cancel_when_barred", "self._change", "self._until_spare", "self._correct_costs",
    },
    "tasks/serving/slots.py": {"self._run_one", "one", "self._reports.run"},
    "tasks/inference/stage.py": {"self._endings.free"},
    "tasks/tuning/stage/stage.py": {"self._close_all"},
    "tasks/text/process.py": {"self._write"},
    "tasks/tuning/trainer/encoding.py": {"some"},
    "tasks/tuning/trainer/together.py": {"self._run", "averager.run"},  # guards itself
    "tasks/tuning/trainer/tunings.py": {"self._run"},  # guards itself
    "tasks/tuning/moving/runner.py": {"self._replicate"},  # of a task that is guarded
    "tasks/jobs/keepers.py": {"ask"},  # a part of a submission
    "node/control/blobs.py": {"emit"},
    "node/swarm/bootstrap.py": {"self._keep"},
    "node/swarm/browsers.py": {"gate.run"},
    "node/kept.py": {"self._generate"},  # guards itself
    "node/http/server.py": {"self._backend.kept.run", "client.pump"},
    "node/control/server.py": {"self._cancel_when_gone", "trio.serve_listeners", "pass_on"},
    "node/daemon/daemon.py": {
        "compute.grouping.run", "base.credentials.run", "compute.keeping.run",
        "self.holdings.announce_chunks", "bootstrap.run", "remembering.run",
        "self.content.quota.run", "self.compute.scrub.run", "self.serving.run",
        "self._watch_serving",
        "self.membership.run", "self.state.run", "self.discovery.run", "self.kv.run",
        "keep_journal", "measure_machine",
        "compute.models.run", "self.stage.run", "self.compute.tuning_stage.run",
        "self.working.run", "self._run_engine",
        "self.control.run", "self.answers.run", "self.api.run", "self._enter_swarm", "start",
        "self.content.embedded.bring", "self.compute.sharing.run", "self.tuning.tunings.run",
    },
    "node/swarm/discovery.py": {"self.dht.run"},
    "node/daemon/listening.py": {"run"},
    "node/daemon/jobs.py": {"self._collect", "self._accounting.run", "self._tidy", ""},
}  # fmt: skip


def started(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield (line, task) of tasks that nurseries start directly."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        of_nursery = "nursery" in dotted(node.func.value).lower()
        method = node.func.attr
        if node.args and (method == "start_soon" or (method == "start" and of_nursery)):
            task = node.args[0]
            yield node.lineno, task_name(task)


def task_name(task: ast.expr) -> str:
    """Return a task's name as the tables spell it: a name, or the function that a call makes the
    task of.
    """
    if isinstance(task, ast.Call):
        return dotted(task.func)
    if isinstance(task, ast.Attribute) and isinstance(task.value, ast.Call):
        made = ast.unparse(task)
        return made if len(made) < 40 else dotted(task.value.func)
    return dotted(task)


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
    awaited = ast.parse("async def f(nursery):\n    await nursery.start(self._answer)")
    assert bypassing("transport/link/link.py", awaited)
