"""manifest: a unique byte form, refusal of hostile bytes, selection of shards."""

import dataclasses
import hashlib
import json
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal.dht.content import manifest
from shoal.dht.content.manifest import Blob, Manifest, Tensor, canonical_config, layer_of
from shoal.dht.defaults import CHUNK
from shoal.dht.errors import ModelError
from shoal.transport.message import pack

from ..models import CONFIG


def digest(seed: object) -> str:
    return hashlib.sha256(repr(seed).encode()).hexdigest()


def blob(name: str, size: int = 10) -> Blob:
    return Blob(size, tuple(digest((name, i)) for i in range(-(-size // CHUNK))))


def tensor(*roles: str, shape: tuple[int, ...] = (4, 4), dtype: str = "BF16") -> Tensor:
    size = 2
    for n in shape:
        size *= n
    size *= 2 if dtype == "F32" else 1
    chunks = tuple(digest((roles, i)) for i in range(-(-size // CHUNK)))
    return Tensor(roles, dtype, shape, chunks)


def tensors(layers: int = 3, *, tied: bool = False) -> tuple[Tensor, ...]:
    ends: list[tuple[str, ...]] = [("lm_head.weight", "model.embed_tokens.weight")]
    if not tied:
        ends = [("lm_head.weight",), ("model.embed_tokens.weight",)]
    names = [*ends, ("model.norm.weight",)]
    names += [(f"model.layers.{n}.mlp.up_proj.weight",) for n in range(layers)]
    return tuple(tensor(*roles) for roles in sorted(names))


def small(*, tied: bool = False, **changes: Any) -> Manifest:
    config = {**canonical_config(CONFIG), **changes}
    files = {"tokenizer": blob("tokenizer", 3 * CHUNK + 1), "chat_template": blob("chat")}
    return Manifest(config, files, tensors(config["num_hidden_layers"], tied=tied))


def unpacked(data: bytes) -> dict[str, Any]:
    value: dict[str, Any] = msgpack.unpackb(data)
    return value


def refused(data: bytes) -> ModelError:
    with pytest.raises(ModelError) as error:
        Manifest.decode(data)
    return error.value


def test_round_trip_and_root() -> None:
    first = small()
    again = Manifest.decode(first.encode())
    assert again == first
    assert again.root == hashlib.sha256(first.encode()).hexdigest()
    assert again.layers == 3
    assert again.files["tokenizer"].size == 3 * CHUNK + 1


def test_the_root_never_changes() -> None:
    """The format is a promise: a change of these bytes would change the root of every model."""
    assert small().root == "57f5f6652dd1f9a9b1053f50be0db2907897b8f82d7a49d0235b4b09b7a1995b"


def test_chunks_are_ordered_files_first_and_sized() -> None:
    found = small()
    sizes = list(found.chunks.values())
    assert len(found.chunks) == 11
    assert next(iter(found.chunks)) == digest(("chat", 0))
    assert sizes[:5] == [10, CHUNK, CHUNK, CHUNK, 1]
    assert sizes[5:] == [32] * 6
    assert found.size == 3 * CHUNK + 1 + 10 + 6 * 32


def test_provenance_is_not_part_of_a_model() -> None:
    assert set(CONFIG) - set(canonical_config(CONFIG)) == {
        "_name_or_path",
        "transformers_version",
    }


@pytest.mark.parametrize("layers", [None, 0, -1, True, 2.0, "3", 10**9])
def test_invalid_layer_counts_are_refused(layers: object) -> None:
    with pytest.raises(ModelError) as error:
        canonical_config({"num_hidden_layers": layers})
    assert error.value.code == "bad-config"


def test_custom_code_in_a_manifest_is_refused() -> None:
    with pytest.raises(ModelError) as error:
        small(auto_map={"AutoModel": "modeling.Evil"})
    assert error.value.code == "custom-code"


def test_shards() -> None:
    found = small()

    def roles(*parts: Any) -> list[str]:
        return [role for item in found.tensors_of(*parts) for role in item.roles]

    up = "model.layers.{}.mlp.up_proj.weight"
    assert roles(True, 0, 1, False) == ["model.embed_tokens.weight", up.format(0)]
    assert roles(False, 1, 3, False) == [up.format(1), up.format(2)]
    assert roles(False, 2, 3, True) == ["lm_head.weight", up.format(2), "model.norm.weight"]
    assert roles(False, 0, 0, False) == []
    assert found.weight_bytes(True, 0, 3, True) == 6 * 32
    assert len(found.digests_of(False, 0, 1, False)) == 5 + 1


def test_a_tied_head_needs_the_embedding_tensor_once() -> None:
    found = small(tied=True)
    head = found.tensors_of(False, 0, 0, True)
    assert [item.roles for item in head] == [
        ("lm_head.weight", "model.embed_tokens.weight"),
        ("model.norm.weight",),
    ]
    assert found.weight_bytes(True, 0, 0, True) == found.weight_bytes(False, 0, 0, True)


@pytest.mark.parametrize(
    ("role", "layer"),
    [
        ("model.layers.0.x", 0),
        ("model.layers.12.self_attn.q_proj.weight", 12),
        ("model.layers.012.x", None),
        ("model.layers.-1.x", None),
        ("model.layers.9999999.x", None),
        ("other.model.layers.1.x", None),
    ],
)
def test_layer_of(role: str, layer: int | None) -> None:
    assert layer_of(role) == layer


BAD_TENSORS: list[dict[str, Any]] = [
    {"dtype": "F8_E4M3"},
    {"dtype": "I64"},
    {"shape": (4, 0)},
    {"shape": (4, -4)},
    {"shape": (2**31, 1)},
    {"shape": (1,) * 9},
    {"shape": (4, 5 * CHUNK)},  # more bytes than its chunks hold
    {"chunks": ()},
    {"chunks": (digest(1), digest(2))},
    {"chunks": ("../../etc/passwd",)},
    {"chunks": ("A" * 64,)},
    {"roles": ()},
    {"roles": ("a", "a")},
    {"roles": ("b", "a")},
    {"roles": ("a", "b")},  # only embedding and head are tied
    {"roles": ("a", "b", "c")},
    {"roles": ("../x",)},
    {"roles": ("a b",)},
    {"roles": ("x" * 257,)},
    {"roles": ("a\x1b[31m",)},
]


@pytest.mark.parametrize("change", BAD_TENSORS)
def test_invalid_tensors_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ModelError) as error:
        dataclasses.replace(tensor("a"), **change)
    assert error.value.code == "bad-manifest"
    assert error.value.message.isprintable()


def test_invalid_sets_of_tensors_are_refused() -> None:
    good = small()
    up = [item for item in good.tensors if layer_of(item.roles[0]) is not None]
    for bad in (
        tuple(reversed(good.tensors)),  # order
        good.tensors[1:],  # no head
        good.tensors[:-1],  # no norm
        tuple(item for item in good.tensors if item is not up[1]),  # a layer without tensors
        tuple(sorted((*good.tensors, up[0]), key=lambda item: item.roles)),  # twice
    ):
        with pytest.raises(ModelError) as error:
            dataclasses.replace(good, tensors=bad)
        assert error.value.code == "bad-manifest"


def test_invalid_files_are_refused() -> None:
    good = small()
    bad: list[dict[str, Blob]] = [
        {},
        {"tokenizer": blob("t"), "run_me": blob("x")},
        {"tokenizer": blob("t"), "chat_template": blob("c", 2 * CHUNK)},
        {"tokenizer": blob("t"), "chat_template": Blob(9, blob("t").chunks)},  # two sizes
    ]
    for files in bad:
        with pytest.raises(ModelError):
            dataclasses.replace(good, files=files)


def test_the_number_of_tensors_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small().encode()
    monkeypatch.setattr(manifest, "TENSORS_LIMIT", 5)
    assert "5" in refused(data).message


def test_the_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    data = small().encode()
    monkeypatch.setattr(manifest, "MANIFEST_LIMIT", len(data) - 1)
    assert refused(data).code == "too-large"
    assert refused(bytes(len(data))).code == "too-large"  # before it is parsed
    with pytest.raises(ModelError, match="more than"):
        small().encode()


def non_canonical(value: dict[str, Any]) -> list[bytes]:
    pack = msgpack.packb
    config = value["config"]
    unsorted = {"files": value["files"], **value}
    wide = pack(value).replace(b"\xa4size\x0a", b"\xa4size\xcd\x00\x0a")
    return [
        pack(value) + b"\x00",
        pack(unsorted),
        wide,
        pack({**value, "config": b" " + config}),
        pack({**value, "config": config.replace(b"{", b'{"_name_or_path":"x",', 1)}),
        pack({**value, "config": config.replace(b"3", b"3 ", 1)}),
        pack({**value, "format": "shoal-model/2"}),
        pack({**value, "more": 1}),
        pack({**value, "files": dict(reversed(value["files"].items()))}),
        pack({**value, "tensors": [dict(reversed(t.items())) for t in value["tensors"]]}),
    ]


@pytest.mark.parametrize("number", range(10))
def test_other_byte_forms_are_refused(number: int) -> None:
    """Otherwise one model would have many roots."""
    good = small().encode()
    data = non_canonical(unpacked(good))[number]
    assert data != good
    refused(data)


def test_malformed_values_are_refused() -> None:
    value = unpacked(small().encode())
    first = value["tensors"][0]
    others: list[Any] = [None, 7, "x", [1.5], [[]], b"1"]
    bad_tensors: list[Any] = [{**first, key: other} for key in first for other in others]
    bad: list[dict[str, Any]] = [
        {**value, "tensors": [item, *value["tensors"][1:]]} for item in (*bad_tensors, 1, [], {})
    ]
    bad += [{**value, "config": item} for item in (b"[]", b"{", "{}", b"\xff", 1, b"[" * 10_000)]
    files: list[Any] = [1, {}, {"tokenizer": 1}, {1: {}}]
    bad += [{**value, "files": item} for item in files]
    bad += [
        {**value, "files": {"tokenizer": {"chunks": b"", "size": size}}} for size in (0, -1, "x")
    ]
    for entry in bad:
        refused(pack(entry))


def test_a_chunk_list_longer_than_its_tensor_is_refused_before_decoding() -> None:
    """Decoded to text, its digests would take four times the bytes received."""
    value = unpacked(small().encode())
    value["tensors"][0]["chunks"] = bytes(32) * 100_000
    data = pack(value)
    tracemalloc.start()
    try:
        assert "do not add up" in refused(data).message
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2.5 * len(data)


def test_a_bomb_in_the_tensors_allocates_nothing() -> None:
    data = small().encode()
    at = data.index(b"\xa7tensors") + 8
    bomb = data[:at] + b"\xdd\xff\xff\xff\xff"
    tracemalloc.start()
    try:
        refused(bomb)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


@given(st.binary(max_size=200))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\xdf\xff\xff\xff\xff")
def test_random_bytes_are_refused_with_a_code(data: bytes) -> None:
    refused(data)


@settings(max_examples=300)
@given(st.data())
def test_changed_bytes_give_another_model_or_an_error(data: st.DataObject) -> None:
    """Any change is refused with a code, or decodes to a manifest of exactly those bytes."""
    good = small().encode()
    changed = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = Manifest.decode(bytes(changed))
    except ModelError:
        return
    assert found.encode() == changed


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 70_000)), min_size=1, max_size=4),
    st.booleans(),
)
def test_any_valid_model_round_trips(shapes: list[tuple[int, int]], tied: bool) -> None:
    extra = tuple(
        tensor(f"model.layers.{i % 3}.self_attn.x{i}.weight", shape=shape, dtype="F32")
        for i, shape in enumerate(shapes)
    )
    every = tuple(sorted((*tensors(tied=tied), *extra), key=lambda item: item.roles))
    found = dataclasses.replace(small(tied=tied), tensors=every)
    assert Manifest.decode(found.encode()) == found
    assert found.weight_bytes(True, 0, 3, True) == sum(item.size for item in every)


@pytest.mark.parametrize("text", ["1e999", '"\\ud800"', "1" * 30, '{"\\udc80": []}', "[[-1e999]]"])
def test_a_config_has_only_values_that_every_reader_can_represent(text: str) -> None:
    """The daemon encodes a config as JSON, and as msgpack for the engine: both must be possible."""
    with pytest.raises(ModelError) as error:
        canonical_config({**CONFIG, "zz": json.loads(text)})
    assert error.value.code == "bad-config"
    canonical_config({**CONFIG, "zz": [2**64 - 1, -(2**63), 1e308, "\U0001f600", None, True]})


@pytest.mark.parametrize(
    "bomb",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 4 billion
        b"\xdf\xff\xff\xff\xff",  # a map of 4 billion
        b"\xdb\xff\xff\xff\xff",  # a text of 4 GiB
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xc9\xff\xff\xff\xff\x00",  # an extension
        b"\xdd\x00\xff\xff\xff" * 400,  # arrays of 16 million, nested
        b"\xdd\x00\x10\x00\x00" + b"\xc0" * 2**20,  # which are there
        b"\x01\x02",
    ],
)
@pytest.mark.parametrize("around", [b"", b"\x84\xa7tensors", b"\x84\xa5files", b"\x84\xa1x"])
def test_bombs_allocate_nothing(bomb: bytes, around: bytes) -> None:
    data = around + bomb
    tracemalloc.start()
    try:
        assert refused(data).code == "bad-manifest"
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


def test_the_bomb_takes_memory_without_the_limits() -> None:
    """Twin: the same bytes take real memory if items are not limited."""
    data = b"\xdd\x00\x10\x00\x00" + b"\xc0" * 2**20
    tracemalloc.start()
    try:
        msgpack.unpackb(data)
        assert tracemalloc.get_traced_memory()[1] > 4 * 2**20
    finally:
        tracemalloc.stop()


def test_bytes_are_quantised_weights_or_layouts_of_a_family() -> None:
    """`X.weight` of bytes needs `X.weight.scale`; the blocks of MXFP4 have other names."""
    from tests.tasks.fake_model import small_manifest

    plain = small_manifest()

    def with_tensor(role: str, dtype: str) -> Manifest:
        more = Tensor((role,), dtype, (8,), ("ab" * 32,))
        tensors = sorted((*plain.tensors, more), key=lambda each: each.roles)
        return Manifest(plain.config, plain.files, tuple(tensors))

    with pytest.raises(ModelError, match="is quantised and has no scale"):
        with_tensor("model.layers.0.mlp.up_proj.weight", "U8")
    with_tensor("model.layers.0.mlp.experts.down_proj_blocks", "U8")
