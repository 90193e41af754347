"""Group operations of the control socket, on simulated daemons."""

from typing import Any

import pytest
import trio

from shoal.netsim.daemons.daemon import DaemonHandle
from shoal.netsim.world import World
from shoal.node.errors import ControlError


async def refused(node: DaemonHandle, op: str, **more: Any) -> ControlError:
    with pytest.raises(ControlError) as raised:
        await node.ask(op, **more)
    assert raised.value.hint
    return raised.value


async def test_an_open_swarm_has_no_group(world: World) -> None:
    node = await world.host("a").start(engine=False)
    for op in ("group", "group_rotate", "group_revoke"):
        assert (await refused(node, op, peer="x")).code == "no-group"
    assert (await refused(node, "invite", role="client")).code == "no-group"
    assert (await node.ask("invite"))["role"] is None
    assert (await node.status())["group"] is None


async def test_the_group_and_its_invitations(world: World) -> None:
    node = await world.host("a").start(engine=False, private=True)
    codes = [(await node.ask("invite", role=role, uses=2))["code"] for role in ("client", "owner")]
    await trio.sleep(5)
    shown = await node.ask("group")
    assert [member["role"] for member in shown["members"]] == ["owner"]
    assert shown["members"][0]["founder"] and shown["own"] == shown["founder"] == node.peer
    assert shown["key"] == 1 and shown["key_known"]
    assert sorted(item["role"] for item in shown["invitations"]) == ["client", "owner"]
    by_code = await node.ask("group_uninvite", invitation=codes[0])
    (left,) = (await node.ask("group"))["invitations"]
    assert left["ident"] != by_code["ident"]
    await node.ask("group_uninvite", invitation=left["ident"][:6])
    assert (await node.ask("group"))["invitations"] == []
    for text in (codes[0], left["ident"], "zz" * 8, "nothing"):
        error = await refused(node, "group_uninvite", invitation=text)
        assert error.code == "unknown-invitation"


async def test_invalid_group_requests_are_refused(world: World) -> None:
    node = await world.host("a").start(engine=False, private=True)
    for more in ({}, {"peer": 5}, {"peer": ""}, {"peer": "x" * 300}):
        with pytest.raises(ControlError):
            await node.ask("group_revoke", **more)
    for role in (None, "king", ["owner"]):
        assert (await refused(node, "group_role", peer=node.peer, role=role)).code == "bad-request"
    assert (await refused(node, "group_revoke", peer="1" * 52)).code == "unknown-peer"
    assert (await refused(node, "group_revoke", peer=node.peer)).code == "self"
