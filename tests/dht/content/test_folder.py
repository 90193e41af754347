"""folder: valid folders are imported, and each invalid one is refused with a code and a hint."""

import json
import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.dht.content import folder as folder_module
from shoal.dht.content.chunkstore import ChunkStore
from shoal.dht.content.folder import CheckShapes, import_folder
from shoal.dht.content.manifest import Manifest
from shoal.dht.defaults import CHUNK, IMPORT_BATCH
from shoal.dht.errors import ModelError, NotEnoughDisk
from shoal.transport.errors import ShoalError

from ..models import (
    CONFIG,
    FakeHost,
    Weights,
    header_of,
    open_store,
    safetensors,
    tensor,
    weights,
    write_folder,
)

pytestmark = pytest.mark.trio


class Importer:
    """A chunk store to import into, with a host that counts writes."""

    def __init__(self, folder: Path) -> None:
        self.host = FakeHost(inline=True)
        self.store: ChunkStore = open_store(self.host, folder)

    async def __call__(self, folder: Path, **options: Any) -> Manifest:
        return await import_folder(self.host, self.store, folder, **options)

    async def refused(self, folder: Path, **options: Any) -> ModelError:
        with pytest.raises(ModelError) as error:
            await self(folder, **options)
        assert error.value.hint or error.value.code in ("bad-json", "empty-file", "too-large")
        assert not error.value.message.endswith(".")
        return error.value


@pytest.fixture
def take(tmp_path: Path) -> Importer:
    return Importer(tmp_path / "store")


def content(store: ChunkStore, manifest: Manifest, role: str) -> bytes:
    found = next(item for item in manifest.tensors if role in item.roles)
    return b"".join(store.get(digest) for digest in found.chunks)


async def test_every_byte_is_imported(tmp_path: Path, take: Importer) -> None:
    tensors = weights()
    manifest = await take(write_folder(tmp_path / "m", tensors))
    assert {role for item in manifest.tensors for role in item.roles} == set(tensors)
    for name, (dtype, shape, data) in tensors.items():
        found = next(item for item in manifest.tensors if name in item.roles)
        assert (found.dtype, list(found.shape)) == (dtype, shape)
        assert content(take.store, manifest, name) == data
    assert manifest.config["rope_theta"] == 10000.0
    assert take.store.missing(manifest.chunks) == []


async def test_one_file_and_several_give_the_same_root(tmp_path: Path, take: Importer) -> None:
    tensors = weights(hidden=300)
    one = await take(write_folder(tmp_path / "one", tensors))
    writes = len(take.host.files.writes)
    for shards in (2, 3, 7):
        many = await take(write_folder(tmp_path / f"{shards}", tensors, shards=shards))
        assert many.root == one.root
        assert many.encode() == one.encode()
    assert len(take.host.files.writes) == writes
    other = {**tensors, "model.norm.weight": tensor([300], "other")}
    assert (await take(write_folder(tmp_path / "other", other))).root != one.root


async def test_the_origin_of_a_folder_does_not_change_its_root(
    tmp_path: Path, take: Importer
) -> None:
    one = await take(write_folder(tmp_path / "one"))
    two = await take(
        write_folder(tmp_path / "two", _name_or_path="elsewhere", transformers_version="5.0")
    )
    reordered = await take(write_folder(tmp_path / "three", config=dict(reversed(CONFIG.items()))))
    assert one.root == two.root == reordered.root
    assert (await take(write_folder(tmp_path / "four", rope_theta=5e5))).root != one.root


async def test_big_tensors_are_cut_at_one_mebibyte(
    tmp_path: Path, take: Importer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = weights(1)
    big = tensor([3, CHUNK // 2 + 1], "big")
    name = "model.layers.0.mlp.up_proj.weight"
    folder = write_folder(tmp_path / "m", {**tensors, name: big}, num_hidden_layers=1)
    roots = set()
    for batch in (CHUNK, 2 * CHUNK, IMPORT_BATCH):
        monkeypatch.setattr(folder_module, "IMPORT_BATCH", batch)
        take.host.files.largest_read = 0
        manifest = await take(folder)
        roots.add(manifest.root)
        assert take.host.files.largest_read <= batch
    assert len(roots) == 1
    found = next(item for item in manifest.tensors if name in item.roles)
    assert [manifest.chunks[digest] for digest in found.chunks] == [CHUNK] * 3 + [6]
    assert content(take.store, manifest, name) == big[2]


async def test_progress_counts_bytes(tmp_path: Path, take: Importer) -> None:
    seen: list[tuple[int, int]] = []
    await take(write_folder(tmp_path / "m"), progress=lambda *step: seen.append(step))
    total = sum(len(data) for _, _, data in weights().values())
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)


async def test_stored_chunks_are_not_written_again(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    first = await take(folder)
    count = len(take.host.files.writes)
    take.host.files.remove(take.store.path(next(iter(first.chunks))))
    assert (await take(folder)).root == first.root
    assert len(take.host.files.writes) == count + 1


# --- tied embeddings ---------------------------------------------------------------------


async def test_a_tied_tensor_is_listed_once_with_two_roles(tmp_path: Path, take: Importer) -> None:
    tied = weights(tied=True)
    absent = await take(write_folder(tmp_path / "a", tied, tie_word_embeddings=True))
    both = {**tied, "lm_head.weight": tied["model.embed_tokens.weight"]}
    present = await take(write_folder(tmp_path / "b", both, tie_word_embeddings=True))
    shards = await take(write_folder(tmp_path / "c", both, shards=3, tie_word_embeddings=True))
    assert absent.root == present.root == shards.root
    assert absent.tensors[0].roles == ("lm_head.weight", "model.embed_tokens.weight")


async def test_equal_bytes_are_one_tensor_untied_ones_two(tmp_path: Path, take: Importer) -> None:
    tied = weights(tied=True)
    both = {**tied, "lm_head.weight": tied["model.embed_tokens.weight"]}
    equal = await take(write_folder(tmp_path / "a", both))
    assert equal.tensors[0].roles == ("lm_head.weight", "model.embed_tokens.weight")
    own = await take(write_folder(tmp_path / "b"))
    assert own.tensors[0].roles == ("lm_head.weight",)


async def test_a_declared_tie_of_different_tensors(tmp_path: Path, take: Importer) -> None:
    error = await take.refused(write_folder(tmp_path / "a", tie_word_embeddings=True))
    assert error.code == "tied-mismatch"


async def test_neither_head_nor_tie(tmp_path: Path, take: Importer) -> None:
    error = await take.refused(write_folder(tmp_path / "a", weights(tied=True)))
    assert error.code == "missing-tensor"
    assert "tie_word_embeddings" in (error.hint or "")


# --- layouts of folders ------------------------------------------------------------------


async def test_a_cache_of_symbolic_links(tmp_path: Path, take: Importer) -> None:
    """models--org--name/snapshots/<commit>/* are links to ../../blobs/<hash>."""
    plain = write_folder(tmp_path / "plain", shards=2)
    cache = tmp_path / "models--meta--Tiny"
    snapshot = cache / "snapshots" / "0123abcd"
    snapshot.mkdir(parents=True)
    (cache / "blobs").mkdir()
    for number, file in enumerate(sorted(plain.iterdir())):
        (cache / "blobs" / str(number)).write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / str(number))
    assert (await take(snapshot)).root == (await take(plain)).root
    error = await take.refused(cache)
    assert error.code == "no-config"
    assert "snapshots" in (error.hint or "")
    (cache / "blobs" / "1").unlink()  # a download that was cut short
    await take.refused(snapshot)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "config.json"])
async def test_a_link_cannot_publish_a_file_of_the_owner(
    tmp_path: Path, take: Importer, name: str
) -> None:
    """Text files go to every peer, so a stranger's folder must not point at the owner's secrets."""
    secret = tmp_path / "secret"
    for place in ("m", "snapshots/0123abcd"):
        folder = write_folder(tmp_path / place)
        if (folder / name).exists():
            secret.write_bytes((folder / name).read_bytes())
            (folder / name).unlink()
        else:
            secret.write_text("my key")
        (folder / name).symlink_to(secret)
        assert (await take.refused(folder)).code == "foreign-link"
    linked = tmp_path / "linked"  # the owner chose this folder, so a link to it is fine
    linked.symlink_to(write_folder(tmp_path / "plain"))
    assert (await take(linked)).layers == 3


async def test_optional_files_come_along(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    texts = {
        "generation_config": ("generation_config.json", '{"eos_token_id": [2, 3]}'),
        "special_tokens": ("special_tokens_map.json", '{"bos_token": "<s>"}'),
        "tokenizer_config": ("tokenizer_config.json", '{"model_max_length": 1024}'),
        "added_tokens": ("added_tokens.json", "{}"),
    }
    for name, text in texts.values():
        (folder / name).write_text(text)
    manifest = await take(folder)
    assert set(manifest.files) == {"tokenizer", *texts}
    for key, (_, text) in texts.items():
        assert take.store.get(manifest.files[key].chunks[0]) == text.encode()


TEMPLATES: list[tuple[dict[str, object], str | None]] = [
    ({"tokenizer_config.json": {"chat_template": "one"}}, "one"),
    ({"tokenizer_config.json": {}}, None),
    ({"tokenizer_config.json": {"chat_template": None}}, None),
    ({"chat_template.jinja": "file", "tokenizer_config.json": {"chat_template": "one"}}, "file"),
    ({"chat_template.json": {"chat_template": "json"}}, "json"),
    (
        {
            "tokenizer_config.json": {
                "chat_template": [
                    {"name": "tool_use", "template": "tools"},
                    {"name": "default", "template": "plain"},
                ]
            }
        },
        "plain",
    ),
    ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "x"}]}}, None),
    ({"tokenizer_config.json": {"chat_template": [7, {"name": []}, {"name": "default"}]}}, None),
    ({"tokenizer_config.json": {"chat_template": {"default": "x"}}}, None),
]


@pytest.mark.parametrize(("files", "template"), TEMPLATES)
async def test_chat_templates(
    tmp_path: Path, take: Importer, files: Mapping[str, object], template: str | None
) -> None:
    folder = write_folder(tmp_path / "m")
    for name, value in files.items():
        (folder / name).write_text(value if isinstance(value, str) else json.dumps(value))
    manifest = await take(folder)
    if template is None:
        assert "chat_template" not in manifest.files
    else:
        chunks = manifest.files["chat_template"].chunks
        assert b"".join(map(take.store.get, chunks)) == template.encode()


async def test_a_template_must_be_text(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError) as error:
        await take(folder)
    assert error.value.code == "bad-template"
    (folder / "chat_template.jinja").write_bytes(b"x" * (CHUNK + 1))
    assert (await take.refused(folder)).code == "too-large"


# --- bad input ---------------------------------------------------------------------------


async def test_no_folder(tmp_path: Path, take: Importer) -> None:
    assert (await take.refused(tmp_path / "absent")).code == "no-folder"
    (tmp_path / "file").write_text("x")
    assert (await take.refused(tmp_path / "file")).code == "not-a-folder"
    (tmp_path / "empty").mkdir()
    assert (await take.refused(tmp_path / "empty")).code == "no-config"


async def test_no_safetensors(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    assert (await take.refused(folder)).code == "no-weights"
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"")
    error = await take.refused(folder)
    assert error.code == "no-weights"
    assert "index" in error.message


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "x.pth", "last.ckpt", "A.PKL"])
async def test_pickles_are_never_opened(tmp_path: Path, take: Importer, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / name).write_bytes(pickle.dumps({"w": 1}))
    take.host.files.unreadable = lambda path: path.name == name  # reading it would raise
    error = await take.refused(folder)
    assert error.code == "pickle-only"
    assert name in error.message


async def test_a_pickle_beside_safetensors_is_ignored(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": 1}))
    (folder / "modeling.py").write_text("raise SystemExit")
    take.host.files.unreadable = lambda path: path.suffix in (".bin", ".py")
    await take(folder)


async def test_a_truncated_file(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    data = (folder / "model.safetensors").read_bytes()
    for size in (0, 7, 8, 100, len(data) - 1):
        (folder / "model.safetensors").write_bytes(data[:size])
        assert (await take.refused(folder)).code == "truncated"
    assert not take.host.files.writes


async def test_a_file_that_shrinks_during_import(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    path = folder / "model.safetensors"

    def cut(done: int, total: int) -> None:
        os.truncate(path, path.stat().st_size - 1)

    with pytest.raises(ModelError, match="shrank"):
        await take(folder, progress=cut)


async def test_a_lying_header(tmp_path: Path, take: Importer) -> None:
    tensors = weights()
    folder = write_folder(tmp_path / "m", tensors)
    header = header_of(tensors)
    header["model.norm.weight"]["shape"] = [800]
    (folder / "model.safetensors").write_bytes(safetensors(tensors, header))
    assert (await take.refused(folder)).code == "bad-header"
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}" * 100)
    assert (await take.refused(folder)).code == "bad-header"


async def test_custom_code(tmp_path: Path, take: Importer) -> None:
    bad = write_folder(tmp_path / "m", auto_map={"AutoModel": "modeling.X"})
    assert (await take.refused(bad)).code == "custom-code"
    folder = write_folder(tmp_path / "t")
    (folder / "chat_template.jinja").write_text("hello")
    (folder / "tokenizer_config.json").write_text('{"auto_map": {"AutoTokenizer": ["x.Y", null]}}')
    assert (await take.refused(folder)).code == "custom-code"


async def test_an_unsupported_architecture(tmp_path: Path, take: Importer) -> None:
    def check(config: Mapping[str, Any]) -> CheckShapes:
        if config["model_type"] != "llama":
            raise ShoalError(f"`{config['model_type']}` is not supported")
        return seen.append

    seen: list[Mapping[str, Sequence[int]]] = []

    folder = write_folder(tmp_path / "m")
    (folder / "config.json").write_text('{"model_type": "mamba", "n_layer": 2}')
    with pytest.raises(ShoalError, match="mamba"):  # not that `num_hidden_layers` is missing
        await take(folder, check_config=check)
    assert not take.host.files.writes
    await take(write_folder(tmp_path / "n"), check_config=check)
    assert "model.norm.weight" in seen[0], "the shapes are checked too"


@pytest.mark.parametrize(
    "name",
    [
        "model.layers.1.mlp.up_proj.weight",
        "model.layers.2.input_layernorm.weight",
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    ],
)
async def test_a_missing_tensor(tmp_path: Path, take: Importer, name: str) -> None:
    tensors = weights()
    del tensors[name]
    error = await take.refused(write_folder(tmp_path / "m", tensors))
    assert error.code == "missing-tensor"
    assert name in error.message


async def test_all_layers_have_the_same_tensors(tmp_path: Path, take: Importer) -> None:
    bias = "model.layers.{}.self_attn.q_proj.bias"
    tensors: Weights = {**weights(), bias.format(0): tensor([8], 0), bias.format(1): tensor([8], 1)}
    error = await take.refused(write_folder(tmp_path / "m", tensors))
    assert error.code == "missing-tensor"
    assert bias.format(2) in error.message
    tensors[bias.format(2)] = tensor([8], 2)
    await take(write_folder(tmp_path / "n", tensors))


async def test_more_layers_declared_than_present(tmp_path: Path, take: Importer) -> None:
    error = await take.refused(write_folder(tmp_path / "m", num_hidden_layers=4))
    assert error.code == "missing-tensor"
    assert "model.layers.3." in error.message
    error = await take.refused(write_folder(tmp_path / "n", num_hidden_layers=10**12))
    assert error.code == "bad-config"


async def test_an_index_that_lists_absent_tensors(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m", shards=2)
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    first = index["weight_map"]["lm_head.weight"]
    index["weight_map"]["model.norm.weight"] = (
        "model-00002-of-00002.safetensors" if first.startswith("model-00001") else first
    )
    index["weight_map"]["model.layers.0.self_attn.q_proj.bias"] = first
    path.write_text(json.dumps(index))
    assert (await take.refused(folder)).code == "missing-tensor"
    (folder / first).unlink()
    assert (await take.refused(folder)).code == "missing-file"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "no tokenizer.json"),
        (["tokenizer.model"], "tokenizer.model"),
        (["vocab.json"], "vocab"),
    ],
)
async def test_no_tokenizer(tmp_path: Path, take: Importer, files: list[str], words: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    for name in files:
        (folder / name).write_text("x")
    error = await take.refused(folder)
    assert error.code == "no-tokenizer"
    assert words in error.message
    assert bool(files) == ("save_pretrained" in (error.hint or ""))


@pytest.mark.parametrize("text", ["", "{", "[]", "7", "[" * 3000, '{"a":' * 40 + "1" + "}" * 40])
@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
async def test_invalid_json(tmp_path: Path, take: Importer, name: str, text: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / name).write_text(text)
    assert (await take.refused(folder)).code in ("bad-json", "empty-file")


async def test_files_have_a_maximum_size(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    os.truncate(folder / "config.json", 2 * CHUNK)
    assert (await take.refused(folder)).code == "too-large"


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
async def test_unreadable(tmp_path: Path, take: Importer, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    take.host.files.unreadable = lambda path: path.name == name
    error = await take.refused(folder)
    assert error.code == "unreadable"
    assert name in error.message


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
async def test_pipes_are_not_opened(tmp_path: Path, take: Importer, name: str) -> None:
    folder = write_folder(tmp_path / "m")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert (await take.refused(folder)).code in ("empty-file", "truncated")


# --- a full disk -------------------------------------------------------------------------


async def test_a_full_disk_is_reported_at_once(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m")
    take.host.files.free = 500
    with pytest.raises(NotEnoughDisk) as error:
        await take(folder)
    assert error.value.needed > 500
    assert error.value.free == 500
    assert not take.host.files.writes


async def test_a_disk_that_fills_at_any_write_loses_nothing(tmp_path: Path, take: Importer) -> None:
    folder = write_folder(tmp_path / "m", weights(1), num_hidden_layers=1)
    whole = Importer(tmp_path / "whole")
    root = (await whole(folder)).root
    for number in range(len(whole.host.files.writes)):
        take.host.files.fail_at = number
        with pytest.raises(NotEnoughDisk):
            await take(folder)
        for path in take.host.files.writes:
            take.store.get(path.name)
    take.host.files.fail_at = None
    assert (await take(folder)).root == root
    assert len(take.host.files.writes) == len(whole.host.files.writes)


async def test_an_interrupted_import_needs_space_only_for_the_rest(
    tmp_path: Path, take: Importer
) -> None:
    folder = write_folder(tmp_path / "m")
    manifest = await take(folder)
    take.host.files.remove(take.store.path(manifest.tensors[0].chunks[0]))
    take.host.files.free = manifest.tensors[0].size + 100
    assert (await take(folder)).root == manifest.root
