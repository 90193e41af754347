"""Commands to open sessions. No I/O."""

from typing import NamedTuple

from ....transport.decoding import typed
from ....transport.errors import Undecodable
from ..errors import EngineError
from ..interface import NAME_BYTES, NETWORK_BYTES, NO_RULES, USER_BYTES, Rules, SessionId
from ..kv.blocks import BlockName
from ..wire import Header


class OpenOrder(NamedTuple):
    """A command to open a session. `SessionTerms` describes the fields after `owner`."""

    name: SessionId
    tokens: int
    owner: str
    background: bool
    user: bytes
    shard: object
    soon: int | None
    adapter: str
    own: bool
    packed: bool
    exact: bool
    rules: Rules
    network: str

    @property
    def now(self) -> int:
        """Number of positions to reserve at once."""
        return self.tokens if self.soon is None else min(self.soon, self.tokens)


def parse_open(header: Header) -> OpenOrder:
    """Return the command of a frame. Raises EngineError `bad-span` if it is malformed."""
    if len(header) != len(OpenOrder._fields):
        raise EngineError("bad-span", f"a session is opened with {len(OpenOrder._fields)} values")
    name, tokens, owner, background, user, number, soon, adapter, own, *others = header
    packed, exact, how, network = others
    if not isinstance(name, bytes) or len(name) != NAME_BYTES or type(tokens) is not int:
        raise EngineError("bad-span", "a session has a name of 16 bytes and a size")
    if not (isinstance(own, bool) and isinstance(packed, bool) and isinstance(exact, bool)):
        raise EngineError("bad-span", "a session is of this machine, packed, and exact, or not")
    if not isinstance(owner, str) or not isinstance(background, bool):
        raise EngineError("bad-span", "a session has an owner and may be in the background")
    if soon is not None and (type(soon) is not int or soon < 0):
        raise EngineError("bad-span", "the positions to reserve are no number")
    if not isinstance(user, bytes) or len(user) > USER_BYTES:
        raise EngineError("bad-span", f"a user's tag has at most {USER_BYTES} bytes")
    if not isinstance(adapter, str):
        raise EngineError("bad-span", "a session has an adapter or an empty text")
    if not isinstance(network, str) or len(network) > NETWORK_BYTES:
        raise EngineError("bad-span", "a session is of a network or an empty text")
    try:
        rules = NO_RULES if how is None else typed(Rules, how)
    except Undecodable as error:
        raise EngineError("bad-span", f"the rules are malformed: {error}") from None
    who = name, tokens, owner, background, user
    return OpenOrder(*who, number, soon, adapter, own, packed, exact, rules, network)


def begins_request(header: Header) -> bool:
    """Return whether a frame says that an interactive request has come, for which background work
    waits."""
    if header[0] == "open" and len(header) == 2 + len(OpenOrder._fields):
        return header[2 + OpenOrder._fields.index("background")] is False
    return header[0] == "hold"


def block_names(owner: str, adapter: str, payload: memoryview) -> list[BlockName]:
    """Return the names of a session's blocks from a frame's payload.

    Blocks that were computed with different adapters never have the same name. Raises EngineError
    `bad-span` if the payload has another size than that of whole names.
    """
    if len(payload) % NAME_BYTES:
        raise EngineError("bad-span", f"{len(payload)} bytes are not names of {NAME_BYTES} bytes")
    scope = f"{owner} {adapter}" if adapter else owner
    return [
        (scope, bytes(payload[at : at + NAME_BYTES])) for at in range(0, len(payload), NAME_BYTES)
    ]
