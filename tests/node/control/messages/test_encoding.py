"""Messages of the control socket: their JSON, and what is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.control.messages import (
    adapters,
    api,
    dht,
    generation,
    group,
    jobs,
    machine,
    models,
    node,
    plans,
    reach,
    serving,
    settings,
    sharing,
    state,
    tuning,
)
from shoal.node.control.messages.encoding import (
    Ask,
    decode,
    decode_event,
    encode,
    event_types,
    extended,
    reply_type,
)
from shoal.node.errors import ControlError
from shoal.node.invite import decode as decode_code
from tests.netsim.daemons.test_sharing import PORT, engine

MODULES = (adapters, api, dht, generation, group, jobs, machine, models, node, plans, reach,
           serving, settings, sharing, state, tuning)  # fmt: skip
RUN = generation.Run(model="tiny", prompt="Once")
PLAIN = (
    "api", "ping", "status", "peers", "links", "dht", "models", "blobs", "group", "usage", "config",
    "state_verify", "shares", "tunings",
)  # fmt: skip
"""Operations without keys that change nothing."""
ENTRY: dict[str, Any] = {
    "name": "tiny", "root": "ab" * 32, "layers": 6, "weight_bytes": 1, "local": True,
    "complete": None, "missing": None, "room_tokens": None,
    "vouchers": [{"peer": "x", "source": "here", "age_s": 0}],
}  # fmt: skip


def asks() -> Iterator[type[Ask[Any, Any]]]:
    for module in MODULES:
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Ask) and "op" in vars(kind):
                yield kind


async def test_every_request_has_an_operation(world: World) -> None:
    daemon = await world.host("a").start(engine=False, api=0)
    assert {kind.op for kind in asks()} == set(daemon.node.control.operations)


async def test_replies_of_a_daemon_come_back_as_they_were(world: World) -> None:
    """A command with `--json` prints what it decoded, so no key or value may change."""
    first = await world.host("a").start(model="tiny", layers=(0, 6), private=True)
    code = (await first.ask("invite"))["code"]
    second = await world.host("b").start(invitation=decode_code(code), engine=False, api=0)
    await first.serving()
    await trio.sleep(30)
    path = str(second.node.config.data / "file")
    second.node.host.files.write(second.node.config.data / "file", b"hello")
    requests: list[tuple[type[Ask[Any, Any]], dict[str, Any]]] = [
        *((kind, {}) for kind in asks() if kind.op in PLAIN),
        (dht.LookUp, {"key": "tiny"}),
        (jobs.SubmitJobs, {"model": "tiny", "prompts": ["One"], "max_tokens": 4}),
        (jobs.ListJobs, {}),
        (models.ShowModel, {"name": "tiny"}),
        (models.AddBlob, {"path": path}),
        (generation.Run, {"model": "tiny", "prompt": "x", "max_tokens": 4}),
        (plans.MakePlan, {"name": "tiny"}),
    ]
    requests += [
        (sharing.AddShare, {"url": f"127.0.0.1:{PORT}"}),
        (sharing.ListShares, {}),
        (node.GetStatus, {}),
        (reach.Diagnose, {}),
        (models.ListModels, {}),
        (generation.Run, {"model": "llama", "prompt": "x"}),
        (sharing.StopShare, {"name": "llama"}),
    ]
    async with engine(second):
        await _round_trip(second, requests)


async def _round_trip(
    second: DaemonHandle, requests: list[tuple[type[Ask[Any, Any]], dict[str, Any]]]
) -> None:
    for kind, asked in requests:
        reply = await second.ask(kind.op, **asked)
        back = encode(decode(reply_type(decode(kind, asked)), reply))
        assert json.dumps(back) == json.dumps(reply), kind.op


def test_a_message_and_its_json() -> None:
    entry = decode(models.ModelEntry, ENTRY)
    assert entry.vouchers == (models.VoucherView("x", "here", 0),)
    assert encode(entry) == ENTRY and list(encode(entry)) == list(ENTRY)
    listed = extended(models.ListedModel, entry, lacks=3)
    assert encode(listed) == ENTRY | {"lacks": 3}
    assert decode(models.ListedModel, json.loads(json.dumps(encode(listed)))) == listed


def test_fields_that_are_left_out() -> None:
    shown = {**ENTRY, "providers": [], "config": {"layers": [1, {"deep": None}]}}
    assert encode(decode(models.ShownModel, shown)) == shown
    others: dict[str, Any] = {"others": []}
    assert encode(decode(models.ShownModel, shown | others)) == shown | others
    assert encode(state.ShowState(kind="jobs")) == {"kind": "jobs"}


def test_unknown_keys_and_events_are_ignored() -> None:
    assert decode(node.Process, {"pid": 1, "version": "2", "new": []}) == node.Process(1, "2")
    ask = RUN
    assert decode_event(ask, {"event": "text", "text": "x"}) == generation.TextPiece("x")
    assert decode_event(ask, {"event": "of a later version"}) is None
    assert list(encode(generation.TextPiece("x"))) == ["event", "text"]
    assert decode_event(node.Ping(), {"event": "text"}) is None


def test_types_of_replies_and_events() -> None:
    assert reply_type(RUN) is generation.GeneratedText
    assert event_types(RUN) == (
        generation.AnswerResumable,
        generation.ChainChosen,
        generation.SharerChosen,
        generation.LayersAwaited,
        generation.TextPiece,
    )
    assert event_types(reach.Diagnose()) == (reach.Measuring,) and event_types(node.Ping()) == ()


def test_the_first_kind_of_a_union_that_fits() -> None:
    union = reply_type(jobs.CancelJobs())
    assert decode(union, {"job": "ab"}) == jobs.CancelledJob("ab")
    assert decode(union, {"jobs": ["ab"], "results": 2}) == jobs.CancelledJobs(("ab",), 2)
    with pytest.raises(ControlError):
        decode(union, {})


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prompt": ""}, "`prompt` is not a text of 1 to"),
        ({"prompt": "x" * 2**21}, "`prompt` is not a text of 1 to"),
        ({"prompt": None}, "`prompt` is not a text of 1 to"),
        ({"model": 5}, "`model` is not a text of 1 to 256 characters"),
        ({"raw": 1}, "`raw` is not true or false, but a whole number"),
        ({"max_tokens": 0}, "`max_tokens` is not a whole number from 1 to"),
        ({"max_tokens": True}, "`max_tokens` is not a whole number from 1 to"),
        ({"max_tokens": 1.0}, "`max_tokens` is not a whole number from 1 to"),
        ({"temperature": "1"}, "`temperature` is not a number from 0 to 100"),
        ({"temperature": 10**400}, "`temperature` is not a number from 0 to 100"),
        ({"top_p": float("nan")}, "`top_p` is not a number from 1e-09 to 1"),
        ({"top_p": 0}, "`top_p` is not a number from 1e-09 to 1"),
        ({"seed": 2**64}, "`seed` is not a whole number from 0 to"),
        ({"stop": "x"}, "`stop` is not a list of 0 to 16 items"),
        ({"stop": ["x"] * 17}, "`stop` is not a list of 0 to 16 items"),
        ({"stop": ["x", ""]}, "`stop` is not a text of 1 to 256 characters"),
        ({"stop": {"x": "y"}}, "`stop` is not a list of 0 to 16 items"),
    ],
)
def test_requests_are_typed_and_bounded(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ControlError, match=said) as raised:
        decode(generation.Run, {"model": "tiny", "prompt": "Once", **more})
    assert raised.value.code == "bad-request" and len(raised.value.message) < 200


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "", "x" * 4097])
def test_file_names(name: str) -> None:
    with pytest.raises(ControlError):
        decode(models.AddBlob, {"path": name})


@pytest.mark.parametrize(
    "reply",
    [[], None, "x", {"pid": "1", "version": "2"}, {"pid": 1}, {"pid": True, "version": "2"}],
)
def test_replies_are_typed(reply: Any) -> None:
    with pytest.raises(ControlError):
        decode(node.Process, reply)


def test_values_of_unions_mappings_and_fixed_words() -> None:
    wrong: list[dict[str, Any]] = [
        {"vouchers": [1]}, {"vouchers": {}}, {"room_tokens": "1"}, {"layers": None},
    ]  # fmt: skip
    for changes in wrong:
        with pytest.raises(ControlError):
            decode(models.ModelEntry, ENTRY | changes)
    with pytest.raises(ControlError):
        decode(models.ShownModel, {**ENTRY, "providers": [], "config": 5})
    with pytest.raises(ControlError, match="`applies` is not one of: live, start"):
        decode(
            settings.SettingView,
            {"key": "up", "text": None, "origin": "file", "unit": "B", "default": "none",
             "applies": "never", "next": None},
        )  # fmt: skip


@pytest.mark.parametrize(
    "ask",
    [
        models.AddModel(path="/x"),
        models.AddModel(path="llama3", origin="ollama", place="/store"),
        models.AddModel(path="org/name", name="mine", origin="hub", place="https://x", token="t"),
        models.QuantizeModel(model="x", to="int8"),
        models.PullModel(name="x"),
        sharing.AddShare(url="http://127.0.0.1:8080"),
        RUN,
    ],
)
def test_what_a_command_leaves_out_is_accepted(ask: Ask[Any, Any]) -> None:
    assert decode(type(ask), json.loads(json.dumps(encode(ask)))) == ask
