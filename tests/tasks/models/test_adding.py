"""Quantised models in the library, made by the real converting process."""

import os
import signal
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.dht.content.library import Library
from shoal.dht.errors import ModelError
from shoal.node.daemon.embedded import embedded_folder
from shoal.tasks.engine.families import architecture, check_model, weight_bytes
from shoal.tasks.engine.interface import Parts
from shoal.tasks.models.adding import Source, add_model, quantise, quantised_name
from shoal.tasks.models.process import converted
from shoal.tasks.placement.coverage import LayerSizes
from shoal.tasks.placement.shard import choose_dtype
from shoal.transport.host.real import RealHost
from tests.tasks.models.test_gguf import small
from tests.tasks.models.test_hub import Server, redirect_to
from tests.tasks.models.test_ollama import Store
from tests.tasks.models.test_packed import awq_folder

pytestmark = pytest.mark.trio


def ignored(_done: int, _total: int) -> None:
    pass


@pytest.fixture
async def library(tmp_path: Path) -> AsyncIterator[Library]:
    """A library with the embedded model."""
    found = Library(RealHost(), tmp_path / "models", check_config=check_model)
    await found.open()
    await found.add(embedded_folder(), "tiny")
    yield found


def leftovers(library: Library) -> list[Path]:
    folder = library.folder / "converting"
    return list(folder.iterdir()) if folder.exists() else []


async def test_a_model_is_quantised_with_a_name_and_a_root_of_its_own(library: Library) -> None:
    root = library.names()["tiny"]
    seen: list[tuple[int, int]] = []
    host = RealHost()
    for to, least in (("int8", 3.5), ("int4", 6.0)):
        added = await quantise(
            host, library, root, to, quantised_name(library, "tiny", to),  # type: ignore[arg-type]
            lambda done, total: seen.append((done, total)),
        )  # fmt: skip
        assert added.name == f"tiny-{to}" and added.manifest.root != root
        arch = architecture(added.manifest.config)
        assert arch.layouts.precision == to
        plain = architecture((await library.manifest(root)).config)
        whole = Parts(True, 0, arch.layers, True)
        assert weight_bytes(plain, whole, "float32") > least * weight_bytes(arch, whole, "float32")
        assert LayerSizes.of(arch, "float32").layer < LayerSizes.of(plain, "float32").layer
        assert added.manifest.weight_bytes(True, 0, arch.layers, True) <= weight_bytes(
            arch, whole, "bfloat16"
        )
        # Embedding and head are still one table, and activations have the same dtype.
        tied = [tensor.roles for tensor in added.manifest.tensors if len(tensor.roles) == 2]
        assert len(tied) == {"int8": 2, "int4": 3}[to]
        assert choose_dtype(added.manifest, "auto") == "float32"
        ends = added.manifest.tensors_of(True, 0, 0, False)
        assert [tensor.roles for tensor in ends] == tied
    assert all(done <= total for done, total in seen) and seen[-1][0] == seen[-1][1]
    assert not leftovers(library)


async def test_quantising_is_repeatable(library: Library) -> None:
    root = library.names()["tiny"]
    roots = {
        (await quantise(RealHost(), library, root, "int4", name, ignored)).manifest.root
        for name in ("one", "two")
    }
    assert len(roots) == 1


async def test_what_is_quantised_is_not_quantised_again(library: Library) -> None:
    added = await quantise(RealHost(), library, library.names()["tiny"], "int8", "small", ignored)
    with pytest.raises(ModelError) as failure:
        await quantise(RealHost(), library, added.manifest.root, "int4", "smaller", ignored)
    assert failure.value.code == "quantised" and failure.value.hint
    assert set(library.names()) == {"tiny", "small"} and not leftovers(library)


async def test_a_damaged_chunk_adds_nothing(library: Library) -> None:
    manifest = await library.manifest(library.names()["tiny"])
    path = library.store.path(manifest.tensors[0].chunks[0])
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    with pytest.raises(ModelError) as failure:
        await quantise(RealHost(), library, manifest.root, "int8", "small", ignored)
    assert failure.value.code == "chunk-corrupt"
    assert set(library.names()) == {"tiny"} and len(library.roots()) == 1
    assert not leftovers(library)


async def test_cancelling_ends_the_process_and_removes_its_folder(library: Library) -> None:
    root = library.names()["tiny"]
    with trio.CancelScope() as scope:
        await quantise(
            RealHost(), library, root, "int4", "small", lambda done, total: scope.cancel()
        )
    assert scope.cancelled_caught
    assert set(library.names()) == {"tiny"} and not leftovers(library)


async def test_the_folder_of_a_killed_process_is_removed_by_the_next_one(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, root = RealHost(), library.names()["tiny"]
    children: list[Any] = []
    spawn = host.spawn

    async def spy(*args: Any) -> Any:
        children.append(await spawn(*args))
        return children[-1]

    monkeypatch.setattr(host, "spawn", spy)
    arguments = ["quantise", root, str(library.folder), "int8"]
    folder = library.folder / "converting"
    with pytest.raises(ModelError, match="has ended"):
        await quantise(
            host, library, root, "int4", "small",
            lambda done, total: os.kill(children[0].pid, signal.SIGKILL),
        )  # fmt: skip
    assert len(leftovers(library)) == 1
    async with converted(RealHost(), folder, arguments, ignored) as found:
        assert [found.folder.parent] == leftovers(library)
        async with converted(RealHost(), folder, arguments, ignored):
            assert len(leftovers(library)) == 2  # a running one is left alone
    assert not leftovers(library) and set(library.names()) == {"tiny"}


async def test_a_gguf_file_is_added_under_its_name(library: Library, tmp_path: Path) -> None:
    path = small(["Q4_K", "Q6_K"]).write(tmp_path / "Small.Q4_K_M.gguf")
    added = await add_model(RealHost(), library, Source("path", str(path)), None, ignored)
    assert added.name == "Small.Q4_K_M"
    assert [note.split(":")[0] for note in added.notes] == ["Q4_K", "Q6_K"]
    assert architecture(added.manifest.config).layouts.precision == "int4+int8"
    assert {"tokenizer", "tokenizer_config", "chat_template"} <= set(added.manifest.files)
    whole = Parts(True, 0, 2, True)
    sizes = LayerSizes.of(architecture(added.manifest.config), "bfloat16")
    assert sizes.everything >= weight_bytes(architecture(added.manifest.config), whole, "bfloat16")
    assert (await library.stored_parts(added.manifest.root)).complete and not leftovers(library)


@pytest.mark.parametrize(
    ("lie", "code"),
    [
        ({"tensors": 1 << 50}, "bad-gguf"),
        ({"places": {"blk.1.ffn_up.weight": 1 << 40}}, "truncated"),
        ({"kinds": {"blk.1.ffn_up.weight": 20}}, "unsupported-dtype"),
    ],
)
async def test_a_lying_file_adds_nothing(
    lie: dict[str, Any], code: str, library: Library, tmp_path: Path
) -> None:
    path = small(["Q8_0"]).write(tmp_path / "x.gguf", **lie)
    chunks = library.store.used_bytes
    with pytest.raises(ModelError) as failure:
        await add_model(RealHost(), library, Source("path", str(path)), None, ignored)
    assert failure.value.code == code and failure.value.hint
    assert set(library.names()) == {"tiny"} and not leftovers(library)
    assert library.store.used_bytes == chunks


async def test_a_tokenizer_that_does_not_fit_adds_nothing(library: Library, tmp_path: Path) -> None:
    file = small(["Q8_0"])
    file.metadata["tokenizer.ggml.bos_token_id"] = 319
    file.metadata["tokenizer.ggml.tokens"][319] = ""  # an empty token
    path = file.write(tmp_path / "x.gguf")
    with pytest.raises(ModelError) as failure:
        await add_model(RealHost(), library, Source("path", str(path)), None, ignored)
    assert failure.value.code == "bad-tokenizer" and failure.value.hint
    assert set(library.names()) == {"tiny"} and not leftovers(library)


async def test_a_model_is_downloaded_from_a_hub_and_the_download_removed(
    library: Library,
) -> None:
    """The embedded model, so its root is the same."""
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    downloading = library.folder / "downloading"
    try:
        source = Source("hub", "org/tiny", server.url, "a-token")
        server.behave = redirect_to("http://127.0.0.1:1/x")
        with pytest.raises(ModelError) as failure:
            await add_model(RealHost(), library, source, "mine", ignored)
        assert failure.value.code == "hub-unreachable"
        assert len([each for each in downloading.iterdir() if each.is_dir()]) == 1  # continues
        server.behave = None
        added = await add_model(RealHost(), library, source, "mine", ignored)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert all(headers["Authorization"] == "Bearer a-token" for _, headers in server.seen)
    assert len(server.requested("config.json")) == 1
    files = set((await library.manifest(library.names()["tiny"])).files)
    assert set(added.manifest.files) <= files and library.names()["mine"] == added.manifest.root
    assert not downloading.exists() and not leftovers(library)


async def test_a_model_of_ollama_is_added(library: Library, tmp_path: Path) -> None:
    store = Store(tmp_path / "store", small(["Q4_K"]).encode())
    source = Source("ollama", "tiny:latest", str(store.folder))
    added = await add_model(RealHost(), library, source, None, ignored)
    assert added.name == "tiny-latest"
    store.blob.unlink()
    with pytest.raises(ModelError) as failure:
        await add_model(RealHost(), library, source, "again", ignored)
    assert failure.value.code == "missing-blob" and "again" not in library.names()
    assert not leftovers(library)


async def test_an_awq_folder_is_converted(library: Library, tmp_path: Path) -> None:
    folder = awq_folder(tmp_path / "Small-AWQ")
    added = await add_model(RealHost(), library, Source("path", str(folder)), None, ignored)
    assert added.name == "Small-AWQ" and "natively as int4/32" in added.notes[0]
    arch = architecture(added.manifest.config)
    assert arch.layouts.precision == "int4"
    assert arch.layouts.of("model.embed_tokens.weight", (320, 256)) is None
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ModelError) as failure:
        await add_model(RealHost(), library, Source("path", str(folder)), "bad", ignored)
    assert failure.value.code == "bad-header" and "bad" not in library.names()
