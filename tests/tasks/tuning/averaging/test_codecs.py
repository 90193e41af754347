"""Updates as bytes: what survives, and what a decoder refuses from strangers."""

import struct
from collections.abc import Callable
from random import Random

import numpy as np
import pytest

from shoal.tasks.tuning.averaging import sparse
from shoal.tasks.tuning.averaging.codecs import (
    Codec,
    Feedback,
    Vector,
    decode,
    encode,
    encode_difference,
)
from shoal.tasks.tuning.averaging.errors import BadUpdate
from shoal.tasks.tuning.averaging.memory import SpareMemory

HEAD = 24
F32, INT8, INT4, SPARSE = Codec("float32"), Codec("int8"), Codec("int4"), Codec("sparse", 82)
ALL = [F32, INT8, INT4, SPARSE]
SIZES = [1, 2, 63, 128, 129, 256, 1000, 4095, 4096, 4097, 8192, 10_001]


def drawn(values: int, seed: int = 0, scale: float = 1e-3) -> Vector:
    return np.random.default_rng(seed).standard_normal(values).astype(np.float32) * np.float32(
        scale
    )


def code(codec: Codec, values: int, data: bytes) -> str:
    with pytest.raises(BadUpdate) as refused:
        decode(codec, values, data)
    return refused.value.code


@pytest.mark.parametrize("codec", ALL, ids=lambda each: each.name)
@pytest.mark.parametrize("values", SIZES)
def test_an_update_has_the_specified_size_and_comes_back(codec: Codec, values: int) -> None:
    vector = drawn(values)
    data = encode(codec, vector)
    assert len(data) == codec.size(values)
    back = decode(codec, values, data)
    assert back.dtype == np.float32 and back.shape == (values,)
    # A decoded vector can be represented, so it survives encoding but for the rounding of scales.
    again = decode(codec, values, encode(codec, back))
    np.testing.assert_allclose(again, back, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("codec", "worst"), [(F32, 0.0), (INT8, 0.01), (INT4, 0.15)], ids=lambda each: str(each)
)
def test_the_error_of_dense_codecs_is_bounded(codec: Codec, worst: float) -> None:
    vector = drawn(100_000)
    lost = np.linalg.norm(decode(codec, vector.size, encode(codec, vector)) - vector)
    assert lost <= worst * np.linalg.norm(vector)


def test_a_difference_is_encoded_like_a_vector_and_checked_like_one() -> None:
    memory, base, values = SpareMemory(), drawn(10_001), drawn(10_001, seed=1)
    data = encode_difference(base, values, memory)
    assert data.readonly and data == encode(F32, base - values)
    for bad, why in ((np.nan, "not-finite"), (np.inf, "not-finite"), (-2e6, "too-large")):
        values[10_000] = bad
        with pytest.raises(BadUpdate) as refused:
            encode_difference(base, values, memory)
        assert refused.value.code == why


def test_the_sparse_codec_keeps_the_largest_values() -> None:
    vector = drawn(10_000)
    back = decode(SPARSE, vector.size, encode(SPARSE, vector))
    for start, count in ((0, 82), (4096, 82), (8192, sparse.kept(10_000, 82)[1] - 164)):
        chunk, kept = vector[start : start + 4096], back[start : start + 4096]
        largest = np.sort(np.argsort(-np.abs(chunk))[:count])
        assert np.flatnonzero(kept).tolist() == largest.tolist()
        assert (np.sign(kept[largest]) == np.sign(chunk[largest])).all()


def test_two_per_cent_take_a_hundredth_of_float32() -> None:
    assert SPARSE.size(10**7) < F32.size(10**7) / 100


@pytest.mark.parametrize("codec", [INT4, SPARSE], ids=lambda each: each.name)
def test_error_feedback_sends_everything_in_the_end(codec: Codec) -> None:
    feedback, constant = Feedback(codec, 5000), drawn(5000)
    total = np.zeros(5000, np.float32)
    for _ in range(200):
        total += decode(codec, 5000, feedback.encode(constant))
    off = np.linalg.norm(total / 200 - constant) / np.linalg.norm(constant)
    once = np.linalg.norm(decode(codec, 5000, encode(codec, constant)) - constant)
    # The sparse codec forgets a twentieth of its error in each round, so it never sends all.
    assert off < (0.01 if codec is INT4 else 0.75) and off < once / np.linalg.norm(constant) / 1.2


def test_an_update_that_no_step_contains_is_in_the_next_one() -> None:
    feedback, update = Feedback(INT4, 1000), drawn(1000)
    feedback.lost(feedback.encode(update))
    both = decode(INT4, 1000, feedback.encode(update))
    assert np.linalg.norm(both - 2 * update) < 0.2 * np.linalg.norm(2 * update)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_nothing_is_sent_that_others_would_refuse(wrong: float) -> None:
    vector = drawn(1000)
    vector[7] = wrong
    with pytest.raises(BadUpdate) as refused:
        encode(INT8, vector)
    assert refused.value.code == "not-finite"
    vector[7] = 2e6
    with pytest.raises(BadUpdate) as refused:
        encode(INT8, vector)
    assert refused.value.code == "too-large"


@pytest.mark.parametrize("codec", ALL, ids=lambda each: each.name)
def test_another_length_is_refused_before_it_is_read(codec: Codec) -> None:
    data = encode(codec, drawn(5000))
    assert code(codec, 5000, data[:-1]) == "wrong-size"
    assert code(codec, 5000, data + b"\0") == "wrong-size"
    assert code(codec, 5001, data) == "wrong-size"
    assert code(codec, 2**40, data) == "wrong-size"
    assert code(codec, 5000, b"") == "wrong-size"


def test_another_head_is_refused() -> None:
    data = bytearray(encode(SPARSE, drawn(5000)))
    for at in range(16):
        if at != 9:  # unused
            changed = bytearray(data)
            changed[at] ^= 1
            assert code(SPARSE, 5000, bytes(changed)) == "wrong-codec", at
    data[16] ^= 1
    assert code(SPARSE, 5000, bytes(data)) == "wrong-size"


def put(codec: Codec, at: int, what: bytes) -> bytes:
    data = bytearray(encode(codec, drawn(5001)))
    data[HEAD + at : HEAD + at + len(what)] = what
    return bytes(data)


NAN, INF, MINUS, LARGE = (struct.pack("<f", x) for x in (np.nan, np.inf, -1.0, 1e9))


@pytest.mark.parametrize("codec", ALL, ids=lambda each: each.name)
def test_values_and_scales_are_finite_and_bounded(codec: Codec) -> None:
    assert code(codec, 5001, put(codec, 4, NAN)) == "not-finite"
    assert code(codec, 5001, put(codec, 4, INF)) == "not-finite"
    assert code(codec, 5001, put(codec, 4, LARGE)) == "too-large"
    if codec is not F32:
        assert code(codec, 5001, put(codec, 4, MINUS)) == "bad-values"


def test_values_that_no_encoder_writes_are_refused() -> None:
    assert code(INT8, 5001, put(INT8, 4 * 20, b"\x80")) == "bad-values"
    assert code(INT4, 5001, put(INT4, 4 * 40, b"\x08")) == "bad-values"
    assert code(INT4, 5001, encode(INT4, drawn(5001))[:-1] + b"\x18") == "bad-values"
    swapped = struct.pack("<ff", 2.0, 1.0)
    assert code(SPARSE, 5001, put(SPARSE, 0, swapped)) == "bad-values"


def spoiled(change: Callable[[np.ndarray], None]) -> bytes:
    """An update of 5,000 values whose 14-bit codes were changed."""
    data = encode(SPARSE, drawn(5000))
    entries = sparse.kept(5000, 82)[1]
    codes = sparse.unpack_codes(memoryview(data)[HEAD + 16 :], entries)
    change(codes)
    return data[: HEAD + 16] + sparse.pack_codes(codes)


def test_indices_ascend_and_lie_in_their_chunk() -> None:
    assert len(spoiled(lambda codes: None)) == SPARSE.size(5000)

    def equal(codes: np.ndarray) -> None:
        codes[1] = codes[0]

    def swapped(codes: np.ndarray) -> None:
        codes[[3, 4]] = codes[[4, 3]]

    def outside(codes: np.ndarray) -> None:  # the last chunk has 904 values
        codes[-1] = 904 << 2

    for change in (equal, swapped, outside):
        assert code(SPARSE, 5000, spoiled(change)) == "bad-indices"
    codec, last = Codec("sparse", 1), drawn(4096)
    data = bytearray(encode(codec, last))
    data[-1] |= 0x40
    assert code(codec, 4096, bytes(data)) == "bad-values"


@pytest.mark.parametrize("codec", ALL, ids=lambda each: each.name)
def test_damaged_updates_are_refused_or_decode_to_bounded_values(codec: Codec) -> None:
    random, good = Random(codec.name), encode(codec, drawn(4500))
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        for _ in range(random.randrange(1, 8)):
            data[random.randrange(len(data))] = random.randrange(256)
        if random.random() < 0.2:
            data = data[: random.randrange(len(data))]
        try:
            vector = decode(codec, 4500, bytes(data))
        except BadUpdate:
            refused += 1
        else:
            assert np.isfinite(vector).all() and np.abs(vector).max() <= 1e6
    assert refused > 30


def test_a_codec_checks_its_parameter() -> None:
    for name, keep in (("sparse", 0), ("sparse", 513), ("int8", 1)):
        with pytest.raises(ValueError, match="per chunk"):
            Codec(name, keep)  # type: ignore[arg-type]
