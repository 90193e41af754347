"""The order of the rows: every row once in an epoch, by seed and step alone, little padded."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shoal.tasks.tuning.trainer.order import RowSchedule, noise

LENGTHS = np.random.default_rng(1).integers(2, 400, 1000).astype(np.uint32)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(0, 2**63 - 1), st.data())
def test_each_epoch_has_every_row_once(
    count: int, batch: int, seed: int, data: st.DataObject
) -> None:
    held = data.draw(st.integers(0, count - 1))
    order = RowSchedule(LENGTHS[:count], batch, seed, held)
    for epoch in range(2):
        taken = [order.rows(epoch * order.steps + at) for at in range(order.steps)]
        assert max(map(len, taken)) <= batch
        rows = sorted(int(row) for each in taken for row in each)
        assert rows == sorted(set(range(count)) - set(map(int, order.held_out)))
    assert len(order.held_out) == held


def test_a_step_needs_no_earlier_one() -> None:
    one, two = RowSchedule(LENGTHS, 8, 5, 100), RowSchedule(LENGTHS, 8, 5, 100)
    steps = [*range(300)]
    found = {step: one.rows(step).tolist() for step in steps}
    assert {step: two.rows(step).tolist() for step in reversed(steps)} == found
    assert (
        found[0] != found[one.steps]
        and RowSchedule(LENGTHS, 8, 6, 100).rows(0).tolist() != found[0]
    )


def test_rows_of_a_step_have_similar_lengths() -> None:
    order = RowSchedule(LENGTHS, 8, 5, 0)
    padded = sum(
        len(rows) * int(LENGTHS[rows].max()) for rows in map(order.rows, range(order.steps))
    )
    assert padded < 1.15 * LENGTHS.sum()
    means = [float(LENGTHS[order.rows(step)].mean()) for step in range(order.steps)]
    assert abs(np.corrcoef(means, range(len(means)))[0, 1]) < 0.3  # not the short ones first


def test_random_numbers_stay_the_same_for_ever() -> None:
    """Otherwise a fine-tuning that is resumed by another version has another order."""
    assert noise(1, 2, 3).tolist() == [
        16613338946343043936,
        5167718485781182436,
        139405959784801653,
    ]
