"""States of recurrent layers: where they are, and how a session returns to an earlier one."""

import pytest

from shoal.tasks.engine.errors import EngineError
from shoal.tasks.engine.kv.states import SessionStates, StatePool, StateUse


def test_a_session_has_two_slots_and_gives_them_back_once() -> None:
    pool = StatePool(5)
    one, two = SessionStates(pool), SessionStates(pool)
    assert pool.free == 1
    with pytest.raises(EngineError, match="room for 2 sessions") as failure:
        SessionStates(pool)
    assert failure.value.code == "no-memory"
    one.free()
    one.free()
    assert pool.free == 3
    slots = {SessionStates(pool).use(0, 1).slot, two.use(0, 1).slot}
    assert len(slots) == 2


def test_a_snapshot_is_made_before_a_prompt_and_at_blocks() -> None:
    states = SessionStates(StatePool(2))
    assert states.use(0, 10) == StateUse(0, fresh=True)
    assert states.use(10, 1) == StateUse(0)  # a row of a text
    assert states.use(11, 4) == StateUse(0, save=1)  # a part of a prompt
    assert states.use(15, 1) == StateUse(0)
    assert states.use(16, 1) == StateUse(0, save=1)
    assert states.use(17, 1) == StateUse(0)


def test_a_session_returns_to_its_snapshot_and_to_the_beginning() -> None:
    states = SessionStates(StatePool(2))
    states.use(0, 10)
    states.use(10, 5)
    assert [at for at in range(20) if states.reaches(at)] == [0, 10, 15]
    assert states.use(10, 3) == StateUse(0, restore=1)  # the snapshot stays
    assert [at for at in range(20) if states.reaches(at)] == [0, 10, 13]
    assert states.use(10, 3) == StateUse(0, restore=1)
    assert states.use(0, 4) == StateUse(0, fresh=True)
    assert [at for at in range(20) if states.reaches(at)] == [0, 4]
