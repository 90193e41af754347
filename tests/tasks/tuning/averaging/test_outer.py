"""The shared state: the outer step, and checkpoints from strangers."""

from random import Random

import numpy as np
import pytest

from shoal.tasks.tuning.averaging.errors import BadUpdate
from shoal.tasks.tuning.averaging.outer import (
    OuterRule,
    OuterState,
    decode_state,
    first_state,
    stepped,
)
from shoal.transport.identity import Identity
from tests.tasks.tuning.averaging.test_codecs import drawn

RULE, PLAIN = OuterRule(), OuterRule(1.0, 0.0)
PEERS = [Identity.from_seed(bytes([n]) * 32).peer for n in range(1, 9)]


def after(rounds: int, rule: OuterRule) -> OuterState:
    state = first_state(drawn(1000), rule)
    for number in range(rounds):
        refused = {PEERS[0]: True, PEERS[1]: False, PEERS[2]: number == 0}
        state = stepped(state, drawn(1000, number), refused, rule)
    return state


def test_the_outer_step_is_nesterov_as_torch_computes_it() -> None:
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.from_numpy(drawn(1000).copy()))
    optimizer = torch.optim.SGD([parameter], lr=0.7, momentum=0.9, nesterov=True)
    for number in range(5):
        parameter.grad = torch.from_numpy(drawn(1000, number).copy())
        optimizer.step()
    np.testing.assert_allclose(
        after(5, RULE).values, parameter.detach().numpy(), rtol=1e-4, atol=1e-6
    )


def test_points_rise_with_refusals_and_fall_with_good_updates() -> None:
    assert after(1, RULE).points == {PEERS[0]: 4, PEERS[2]: 4}
    assert after(3, RULE).points == {PEERS[0]: 12, PEERS[2]: 2}
    assert after(9, RULE).points == {PEERS[0]: 16}


@pytest.mark.parametrize("rule", [RULE, PLAIN])
def test_a_checkpoint_comes_back(rule: OuterRule) -> None:
    state = after(3, rule)
    data = state.encode()
    back = decode_state(data, 1000, rule)
    assert back.encode() == data
    assert (back.round, back.points) == (3, state.points)
    assert (back.momentum is None) == (rule is PLAIN)


def test_the_parts_of_a_checkpoint_are_the_arrays_themselves() -> None:
    state = after(3, RULE)
    parts = state.parts()
    assert b"".join(parts) == state.encode() and all(part.readonly for part in parts)
    assert np.shares_memory(np.frombuffer(parts[1], np.uint8), state.values)
    assert state.momentum is not None
    assert np.shares_memory(np.frombuffer(parts[2], np.uint8), state.momentum)


def refused(data: bytes, rule: OuterRule = RULE) -> str:
    with pytest.raises(BadUpdate) as error:
        decode_state(data, 1000, rule)
    return error.value.code


def test_other_checkpoints_are_refused() -> None:
    data = after(1, RULE).encode()
    assert refused(data[:-1]) == "wrong-size"
    assert refused(data + bytes(4)) == "wrong-size"
    assert refused(data + bytes(10**5)) == "wrong-size"
    assert refused(after(1, PLAIN).encode()) == "bad-state"
    assert refused(b"x" + data[1:]) == "bad-state"
    assert refused(data[:15] + b"\1" + data[16:]) == "bad-state"
    nan = np.float32(np.nan).tobytes()
    assert refused(data[:-4] + nan) == "not-finite"
    assert refused(data[:31] + b"\1" + data[32:]) == "bad-state"
    row = data[32:65]
    assert refused(data[:32] + row + row + data[98:]) == "bad-state"
    assert refused(data[:64] + b"\0" + data[65:]) == "bad-state"
    assert refused(data[:64] + b"\x11" + data[65:]) == "bad-state"


def test_damaged_checkpoints_are_refused_or_finite() -> None:
    random, good = Random(1), after(2, RULE).encode()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(4):
            data[random.randrange(random.choice([110, len(data)]))] = random.randrange(256)
        try:
            state = decode_state(bytes(data), 1000, RULE)
        except BadUpdate:
            continue
        assert np.isfinite(state.values).all()
