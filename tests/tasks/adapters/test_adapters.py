"""Adapters in a library: import of `peft` folders, names, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from shoal.dht.content.library import Library
from shoal.dht.content.manifest import Blob, Manifest, Tensor
from shoal.dht.errors import ModelError
from shoal.tasks.adapters.adapters import Adapters
from shoal.tasks.adapters.file import read_head
from shoal.tasks.engine import families
from shoal.tasks.engine.interface import Parts
from shoal.transport.host.real import RealHost
from tests.tasks.peft_folder import make_tensors, role, save

pytestmark = pytest.mark.trio
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 101,
    "max_position_embeddings": 96,
}


async def put_model(library: Library, **changes: Any) -> str:
    """Store the manifest of a model without its chunks; return its root."""
    config = {**CONFIG, **changes}
    arch = families.architecture(config)
    shapes = families.tensor_shapes(arch, Parts(True, 0, arch.layers, True))
    tensors = []
    for name, shape in shapes.items():
        size = 4 * torch.Size(shape).numel()
        chunks = tuple(f"{hash((name, n)) % 2**64:064x}" for n in range(-(-size // 2**20)))
        tensors.append(Tensor((name,), "F32", shape, chunks))
    tensors.sort(key=lambda tensor: tensor.roles)
    manifest = Manifest(config, {"tokenizer": Blob(5, ("ef" * 32,))}, tuple(tensors))
    return (await library.save(manifest.encode())).root


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = RealHost()
        self.library = Library(self.host, folder / "library")
        self.adapters = Adapters(self.host, self.library, folder / "library")


@pytest.fixture
async def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    await world.library.open()
    return world


async def refused(world: World, folder: Path, code: str, **more: Any) -> ModelError:
    before = world.library.blobs.roots()
    with pytest.raises(ModelError) as caught:
        await world.adapters.add(folder, more.get("name"), more.get("base"))
    assert caught.value.code == code, caught.value
    assert caught.value.hint
    assert world.library.blobs.roots() == before and not await world.adapters.names()
    assert not (world.folder / "library" / ".adapter.tmp").exists()
    return caught.value


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
async def test_a_folder_becomes_a_blob_with_its_tensors_in_order(
    world: World, dtype: torch.dtype
) -> None:
    root = await put_model(world.library)
    tensors = {name: each.to(dtype) for name, each in make_tensors(CONFIG).items()}
    added = await world.adapters.add(save(world.folder / "poet", tensors), None, None)
    assert added.name == "poet" and added.head is not None
    assert added.head.terms.base == root and added.head.terms.scale == 2.0
    out = world.folder / "out"
    await world.library.blobs.write_out(added.root, out)
    data = out.read_bytes()
    head = read_head(data, len(data))
    assert head == added.head
    head.check_fits(root, families.architecture(CONFIG))
    start, end = head.range_of(families.architecture(CONFIG), 2, 3)
    first = tensors[role(2, "q_proj", "A")].contiguous().view(torch.uint8).numpy().tobytes()
    last = tensors[role(2, "down_proj", "B")].contiguous().view(torch.uint8).numpy().tobytes()
    assert data[start:].startswith(first) and data[:end].endswith(last)
    again = await world.adapters.add(save(world.folder / "copy", tensors), "other", root)
    assert again.root == added.root
    assert await world.adapters.names() == {"poet": added.root, "other": added.root}


async def test_names_and_roots_mean_adapters(world: World) -> None:
    await put_model(world.library)
    one = await world.adapters.add(save(world.folder / "one", make_tensors(CONFIG)), None, None)
    two = await world.adapters.add(
        save(world.folder / "b", make_tensors(CONFIG, seed=2)), "two", None
    )
    resolve = world.adapters.resolve
    assert await resolve("one") == ("one", one.root)
    assert await resolve(two.root[:8]) == ("two", two.root)
    assert await resolve(two.root.upper()) == ("two", two.root)
    assert await resolve("ab" * 32) == ("", "ab" * 32)
    for text in ("three", two.root[:7], "", "ab" * 31):
        with pytest.raises(ModelError) as caught:
            await resolve(text)
        assert caught.value.code == "no-adapter" and caught.value.hint
    await world.library.remove(one.root)  # as `shoal blob rm` does
    assert await world.adapters.names() == {"two": two.root}
    assert [each.name for each in await world.adapters.all()] == ["two"]
    await world.adapters.forget(two.root)
    assert await world.adapters.names() == {}


async def test_the_model_is_found_or_must_be_named(world: World) -> None:
    folder = save(world.folder / "poet", make_tensors(CONFIG))
    await refused(world, folder, "no-base")
    other = await put_model(world.library, hidden_size=40, head_dim=8)
    error = await refused(world, folder, "bad-adapter")
    assert "shape" in error.message
    await refused(world, folder, "bad-adapter", base=other)
    one = await put_model(world.library)
    assert (await world.adapters.add(folder, None, None)).head.terms.base == one  # type: ignore[union-attr]
    await world.adapters.forget((await world.adapters.resolve("poet"))[1])
    await put_model(world.library, rms_norm_eps=1e-5)
    with pytest.raises(ModelError, match="fits 2 of the 3 models") as caught:
        await world.adapters.add(folder, None, None)
    assert caught.value.code == "no-base"


@pytest.mark.parametrize(
    "change",
    [
        {"use_dora": True},
        {"bias": "all"},
        {"modules_to_save": ["lm_head"]},
        {"rank_pattern": {"q_proj": 8}},
        {"alpha_pattern": {"q_proj": 8}},
        {"fan_in_fan_out": True},
        {"layer_replication": [[0, 2]]},
        {"lora_bias": True},
        {"init_lora_weights": "pissa"},
        {"task_type": "SEQ_CLS"},
        {"peft_type": "IA3"},
        {"peft_type": None},
    ],
)
async def test_options_that_cannot_be_computed_are_refused_by_name(
    world: World, change: dict[str, Any]
) -> None:
    await put_model(world.library)
    folder = save(world.folder / "poet", make_tensors(CONFIG), **change)
    error = await refused(world, folder, "unsupported-adapter")
    assert next(iter(change)) in error.message


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 5},
        {"r": 0},
        {"r": 257},
        {"r": "4"},
        {"r": True},
        {"lora_alpha": None},
        {"lora_alpha": 1e6},
        {"use_rslora": "yes"},
    ],
)
async def test_wrong_settings_are_refused(world: World, change: dict[str, Any]) -> None:
    await put_model(world.library)
    await refused(world, save(world.folder / "a", make_tensors(CONFIG), **change), "bad-adapter")


async def test_wrong_tensors_are_refused(world: World) -> None:
    await put_model(world.library)
    good = make_tensors(CONFIG)
    name = role(1, "o_proj", "B")

    async def refuse(code: str, **changed: Any) -> None:
        tensors = {**good, **{key.replace("__", "."): value for key, value in changed.items()}}
        tensors = {key: value for key, value in tensors.items() if value is not None}
        await refused(world, save(world.folder / "a", tensors), code)

    nan, infinite = good[name].clone(), good[name].clone()
    nan[3, 1], infinite[0, 0] = float("nan"), float("-inf")
    for wrong in (nan, infinite, good[name][:-1].clone(), good[name].half()):
        await refuse("bad-adapter", **{name: wrong})
    await refuse("bad-adapter", **{name: None})
    await refuse("bad-adapter", **{role(4, "o_proj", h): good[role(1, "o_proj", h)] for h in "AB"})
    await refuse("bad-adapter", **{role(1, "o_proj", "A"): None, name: None})
    await refuse("unsupported-adapter", **{"base_model.model.lm_head.lora_A.weight": good[name]})
    await refuse("unsupported-adapter", **{role(1, "o_proj", "A")[:-7] + ".bias": good[name]})
    for dtype in (torch.float16, torch.bfloat16):
        halves = {key: value.to(dtype) for key, value in {**good, name: nan}.items()}
        await refused(world, save(world.folder / "a", halves), "bad-adapter")
    await refused(world, save(world.folder / "a", {}), "bad-adapter")


async def test_folders_without_what_is_needed_are_refused(world: World) -> None:
    await put_model(world.library)
    folder = save(world.folder / "a", make_tensors(CONFIG))
    (folder / "adapter_config.json").rename(folder / "away")
    await refused(world, folder, "no-config")
    (folder / "away").rename(folder / "adapter_config.json")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert "pickle" in (await refused(world, folder, "no-weights")).message
    save(folder, make_tensors(CONFIG))
    await refused(world, folder, "bad-name", name="-x")
    (folder / "adapter_config.json").write_text("[" * 10_000)
    await refused(world, folder, "bad-json")


async def test_rslora_has_its_own_scale(world: World) -> None:
    await put_model(world.library)
    folder = save(world.folder / "a", make_tensors(CONFIG, rank=16), rank=16, use_rslora=True)
    added = await world.adapters.add(folder, None, None)
    assert added.head is not None and added.head.terms.scale == 8.0


async def test_a_damaged_list_of_names_is_named(world: World) -> None:
    path = world.folder / "library" / "adapters.json"
    for data in (b"x", b"[]", json.dumps({"names": {"a": "b"}}).encode()):
        path.write_bytes(data)
        with pytest.raises(ModelError) as caught:
            await world.adapters.names()
        assert caught.value.code == "bad-library" and "rm " in (caught.value.hint or "")
