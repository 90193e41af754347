"""library: names lead to roots, roots to manifests, and damage is reported."""

import gc
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from shoal.dht.content import library as library_module
from shoal.dht.content.folder import CheckShapes
from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Manifest
from shoal.dht.content.modelnames import check_name, resolve, slug
from shoal.dht.errors import ChunkMissing, ModelError, NotEnoughDisk
from shoal.transport.errors import ShoalError
from shoal.transport.host.real import RealHost

from ..models import FakeHost, open_library, weights, write_folder


async def refused(library: Library, text: str) -> ModelError:
    with pytest.raises(ModelError) as error:
        library.resolve(text)
    return error.value


@pytest.mark.trio
async def test_add_and_open_again(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    name, manifest = await library.add(write_folder(tmp_path / "Tiny Llama"))
    assert name == "Tiny-Llama"
    again = await open_library(tmp_path / "data")
    assert again.names() == {"Tiny-Llama": manifest.root}
    assert again.roots() == {manifest.root}
    assert await again.manifest(manifest.root) == manifest
    assert again.resolve("Tiny-Llama") == manifest.root
    assert (await again.blob(manifest.root, "tokenizer") or b"")[:1] == b"{"
    assert await again.blob(manifest.root, "chat_template") is None


@pytest.mark.trio
async def test_a_name_moves_to_the_model_added_last(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    _, one = await library.add(write_folder(tmp_path / "m"), "x")
    _, two = await library.add(write_folder(tmp_path / "m", rope_theta=1.0), "x")
    assert library.names() == {"x": two.root}
    assert library.roots() == {one.root, two.root}
    assert library.resolve(one.root[:8]) == one.root


@pytest.mark.trio
async def test_unknown_models_suggest_the_nearest(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    _, manifest = await library.add(write_folder(tmp_path / "Llama-3.2-1B"))
    error = await refused(library, "llama-3.2-1b")
    assert error.code == "unknown-model"
    assert "did you mean `Llama-3.2-1B`" in error.message
    assert error.hint == "`shoal model list` shows the known models"
    for text in ("zebra", "", manifest.root[:7], "f" * 64, "x@", "@", "Llama-3.2-1B@ff"):
        assert (await refused(library, text)).code == "unknown-model"
    assert "needs at least 8 digits" in (await refused(library, manifest.root[:7])).message
    assert "\x1b" not in (await refused(library, "\x1b[31m")).message
    with pytest.raises(ModelError) as missing:
        await library.manifest("f" * 64)
    assert missing.value.code == "unknown-model"


A, B, C = "a" * 64, "a" * 8 + "b" * 56, "c" * 64


def test_resolving_names_of_other_nodes() -> None:
    known = [("tiny", A), ("tiny", B), ("big", C), ("also-big", C)]
    assert resolve("big", known) == C
    assert resolve("cccccccc", known) == C
    assert resolve(C, known) == C
    assert resolve("tiny@aaaaaaaab", known) == B
    for text in ("tiny", "aaaaaaaa", "tiny@a"):
        with pytest.raises(ModelError) as error:
            resolve(text, known)
        assert error.value.code == "ambiguous-model"


@pytest.mark.trio
async def test_own_names_take_precedence(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    await library.set_name("tiny", A)
    assert library.resolve("tiny", [("tiny", B)]) == A
    assert library.resolve("tiny@" + B, [("tiny", B)]) == B
    assert library.resolve("other", [("other", B)]) == B


@pytest.mark.parametrize(
    "name", ["", "-x", ".x", "a/b", "a b", "x" * 65, "t\u0456ny", "a\n", "../x"]
)
def test_bad_names(name: str) -> None:
    with pytest.raises(ModelError) as error:
        check_name(name)
    assert error.value.code == "bad-name"


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("/models/Llama-3.2-1B", "Llama-3.2-1B"),
        ("/models/my model (2)", "my-model-2-"),
        ("/cache/models--meta-llama--Llama-3.2-1B/snapshots/0123abcd", "Llama-3.2-1B"),
        ("/cache/models--gpt2/snapshots/0123abcd", "gpt2"),
        ("/models/..hidden", "hidden"),
        ("/models/" + "x" * 100, "x" * 64),
        ("/models/日本", "日本"),
        ("/models/e\u0301te\u0301", "été"),
        ("/models/t\u0456ny", "t-ny"),
        ("/models/🐟", "model"),
        ("/", "model"),
    ],
)
def test_slugs(folder: str, name: str) -> None:
    assert slug(Path(folder)) == name
    check_name(name)


@pytest.mark.trio
@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"names":[]}', '{"names":{"x":"y"}}', f'{{"names":{{"../x":"{A}"}}}}'],
)
async def test_a_damaged_library_file_is_reported(tmp_path: Path, text: str) -> None:
    (tmp_path / "library.json").write_text(text)
    with pytest.raises(ModelError) as error:
        await open_library(tmp_path)
    assert error.value.code == "bad-library"


@pytest.mark.trio
async def test_a_damaged_manifest_is_reported(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    _, manifest = await library.add(write_folder(tmp_path / "m"))
    path = tmp_path / "data" / "manifests" / manifest.root
    path.write_bytes(path.read_bytes().replace(b"BF16", b"F16_", 1))
    again = await open_library(tmp_path / "data")
    with pytest.raises(ModelError) as error:
        await again.manifest(manifest.root)
    assert error.value.code == "manifest-corrupt"


@pytest.mark.trio
@pytest.mark.parametrize("defended", [True, False])
async def test_the_memory_of_a_refused_manifest_is_freed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, defended: bool
) -> None:
    """A peer may send many of 64 MiB. Twin: an error raised in a thread keeps what was decoded
    there alive until the garbage collector runs."""
    if not defended:
        monkeypatch.setattr(library_module, "decoded", Manifest.decode)
    library, data, held = Library(RealHost(), tmp_path), bytes(100), list[int]()
    await library.open()
    gc.disable()
    try:
        for _ in range(9):
            with suppress(ModelError):  # `pytest.raises` would keep the data alive too
                await library.save(data)
            held.append(sys.getrefcount(data))
        assert (held[-1] - held[0] < 4) is defended, held
    finally:
        gc.enable()


@pytest.mark.trio
async def test_a_manifest_from_a_peer_is_checked(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "a")
    _, manifest = await library.add(write_folder(tmp_path / "m"))

    def check(config: Mapping[str, Any]) -> CheckShapes:
        raise ShoalError("not this one")

    other = Library(FakeHost(inline=True), tmp_path / "b", check_config=check)
    await other.open()
    with pytest.raises(ShoalError, match="not this one"):
        await other.save(manifest.encode())

    def check_later(config: Mapping[str, Any]) -> CheckShapes:
        def check_shapes(shapes: Mapping[str, Sequence[int]]) -> None:
            raise ShoalError(f"not these {len(shapes)}")

        return check_shapes

    shapes = Library(FakeHost(inline=True), tmp_path / "c", check_config=check_later)
    await shapes.open()
    with pytest.raises(ShoalError, match=r"not these \d+"):
        await shapes.save(manifest.encode())
    assert shapes.roots() == frozenset()
    with pytest.raises(ModelError):
        await other.save(b"\xdd\xff\xff\xff\xff")
    assert other.roots() == frozenset()


@pytest.mark.trio
async def test_stored_parts(tmp_path: Path) -> None:
    library = await open_library(tmp_path / "data")
    _, manifest = await library.add(write_folder(tmp_path / "m"))
    whole = await library.stored_parts(manifest.root)
    assert whole.complete
    assert (whole.files, whole.embedding, whole.layers, whole.head) == (True, True, (0, 1, 2), True)
    gone = manifest.tensors_of(False, 1, 2, False)[0]
    library.store.path(gone.chunks[0]).unlink()
    part = await library.stored_parts(manifest.root)
    assert not part.complete
    assert (part.layers, part.chunks) == ((0, 2), whole.chunks - 1)
    assert part.size == whole.size - gone.size
    tokenizer = manifest.files["tokenizer"].chunks[0]
    library.store.path(tokenizer).unlink()
    assert not (await library.stored_parts(manifest.root)).files
    with pytest.raises(ChunkMissing):
        await library.blob(manifest.root, "tokenizer")


@pytest.mark.trio
async def test_a_disk_that_fills_at_any_write(tmp_path: Path) -> None:
    """At every moment, each name leads to a complete manifest and chunks."""
    host = FakeHost(inline=True)
    folder = write_folder(tmp_path / "m", weights(1), num_hidden_layers=1)
    fails = 0
    while True:
        library = await open_library(tmp_path / "data", host)
        host.files.fail_at = fails
        try:
            _, manifest = await library.add(folder)
        except NotEnoughDisk:
            fails += 1
            host.files.fail_at = None
            again = await open_library(tmp_path / "data", host)
            for root in again.names().values():
                assert (await again.stored_parts(root)).complete
            continue
        break
    assert fails == len(manifest.chunks) + 2
    assert (await library.stored_parts(manifest.root)).complete


@pytest.mark.trio
@pytest.mark.parametrize("name", ["deadbeef", "ab" * 32, "0123456789"])
async def test_a_name_that_looks_like_a_root_is_not_given(name: str, tmp_path: Path) -> None:
    """Other nodes would read it as the start of a root, so it would be useless as a name."""
    library = await open_library(tmp_path / "data")
    with pytest.raises(ModelError) as error:
        await library.add(write_folder(tmp_path / "m"), name)
    assert error.value.code == "bad-name" and "--name NAME" in str(error.value.hint)
    await library.add(write_folder(tmp_path / "m"), name[:7])
