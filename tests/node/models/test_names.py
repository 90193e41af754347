"""Model names that members give."""

from shoal.node.models.names import name_bodies
from shoal.state.membership.record import ModelName


def test_names_too_large_for_a_record_are_omitted() -> None:
    models = (
        ModelName("tiny", "ab" * 32, 6, 9),
        ModelName("", "cd" * 32, 6, 9),
        ModelName("deep", "cd" * 32, 4_000, 9),
        ModelName("empty", "cd" * 32, 0, 9),
    )
    (body,) = name_bodies(models)
    assert (body.name, body.root, body.layers, body.size) == ("tiny", "ab" * 32, 6, 9)
