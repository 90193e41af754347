"""The memory of a shard is predicted before it is loaded."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import trio

from shoal.tasks.engine import watchdog
from shoal.tasks.engine.families import architecture, kv_room, kv_token_bytes, weight_bytes
from shoal.tasks.engine.families.shapes import stored_tensors
from shoal.tasks.engine.interface import EngineEvent, LoadShard, Parts, Span, TokenEvent
from shoal.tasks.engine.kv.blocks import BLOCK
from shoal.tasks.engine.process import EngineProcess
from shoal.transport.host.real import RealHost
from tests.tasks.engine.measure_shard import CONFIG, source

SCRIPT = Path(__file__).parent / "measure_shard.py"
KV_BYTES = 64 << 20
SESSIONS = 4
# With many heads, so that few positions fill the KV.
DENSE: dict[str, Any] = {
    **CONFIG,
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "num_hidden_layers": 16,
}
EXPERTS: dict[str, Any] = {
    **DENSE,
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 64,
    "num_experts": 16,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 8,
}
MODELS = {"dense": DENSE, "experts": EXPERTS}


@pytest.mark.ci
@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_a_shard_takes_what_was_predicted(precision: str, tmp_path: Path) -> None:
    """1.1 B parameters: within 5 % in each precision."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), precision, str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    predicted, used = map(int, done.stdout.split())
    assert abs(used - predicted) <= 0.05 * predicted, (predicted, used)


def resident(pid: int | None) -> int:
    """Bytes of a process in memory, its share of what it has in common with others included."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def shard_of(config: dict[str, Any], folder: Path, kv_bytes: int = KV_BYTES) -> LoadShard:
    """A whole model with room for KV."""
    arch, whole = architecture(config), Parts(True, 0, config["num_hidden_layers"], True)
    tensors = tuple(
        source(role, kind or "BF16", shape, folder)
        for role, (kind, shape) in stored_tensors(arch, whole).items()
    )
    return LoadShard("ab" * 32, whole, config, tensors, "bfloat16", kv_bytes)


async def fill(engine: EngineProcess, shard: LoadShard) -> None:
    """Use all of a shard's KV: the prompts of some sessions."""
    arch = architecture(shard.config)
    room = kv_room(arch, shard.parts, shard.dtype, shard.kv_bytes).positions
    each, ended, done = room // SESSIONS // BLOCK * BLOCK, list[EngineEvent](), trio.Event()

    def note(event: EngineEvent) -> None:
        ended.append(event)
        if len(ended) == SESSIONS:
            done.set()

    with trio.fail_after(600):
        for number in range(SESSIONS):
            name = bytes([65 + number]) * 16
            assert await engine.open(name, each, note) == 0
            tokens = tuple((number + 7 * at) % 1000 for at in range(each))
            engine.submit(Span(name, 0, 0, each, tokens=tokens, want="token", steps=1))
        await done.wait()
    assert all(isinstance(event, TokenEvent) for event in ended), ended
    assert (await engine.usage())["kv_bytes_reserved"] == SESSIONS * each * kv_token_bytes(
        arch, 0, arch.layers, shard.dtype
    )


@pytest.mark.ci
@pytest.mark.trio
@pytest.mark.parametrize("model", list(MODELS))
async def test_a_worker_takes_what_was_predicted_with_all_of_its_kv_in_use(
    model: str, nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 5 % of weights and KV, beside what a worker takes that has computed something."""
    monkeypatch.setattr(watchdog, "WORKER_DEADLINE", 600.0)
    config = MODELS[model]
    small = {**config, "num_hidden_layers": 1, "hidden_size": 256, "intermediate_size": 256,
             "vocab_size": 64}  # fmt: skip
    shard = shard_of(config, tmp_path)
    predicted = weight_bytes(architecture(config), shard.parts, shard.dtype) + KV_BYTES
    engine = EngineProcess(RealHost(), threads=1)
    await nursery.start(engine.run)
    await engine.load(shard_of(small, tmp_path, 1 << 20))
    await engine.unload(0)
    before = resident(engine.pid)
    await engine.load(shard)
    await fill(engine, shard)
    used = resident(engine.pid) - before
    assert abs(used - predicted) <= 0.05 * predicted, (predicted, used)
    nursery.cancel_scope.cancel()
