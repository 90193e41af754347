"""Everything that an accelerator computes goes through the same code; here on a stand-in without a
GPU, and on one if this machine has it."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace as changed
from typing import Any

import psutil
import pytest
import torch
import trio
from msgspec.structs import replace

from shoal.tasks.engine.compute import products, torchcompute
from shoal.tasks.engine.compute.attention import Attention
from shoal.tasks.engine.compute.device import CPU, ComputeDevice
from shoal.tasks.engine.compute.products import packs
from shoal.tasks.engine.compute.torchcompute import TorchCompute
from shoal.tasks.engine.core import Core
from shoal.tasks.engine.defaults import EXIT_NO_DEVICE
from shoal.tasks.engine.devicecore import DeviceCore
from shoal.tasks.engine.errors import EngineError, EngineUnavailable
from shoal.tasks.engine.interface import Sampling, Span, TokenEvent
from shoal.tasks.engine.kv.blocks import BlockPool, BlockTable
from shoal.tasks.engine.process import EngineProcess
from shoal.tasks.engine.sampling import choose
from shoal.tasks.engine.spans.answers import FrameOutput
from shoal.transport.host.real import RealHost

TOKENS = (5, 17, 3, 88, 41, 9, 60)


class StandIn(ComputeDevice):
    """A device whose memory is not that of the CPU, as far as the engine can tell."""

    def __init__(self) -> None:
        super().__init__("cpu")
        self.is_cpu = False
        self.waits = self.uploads = 0

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        self.uploads += 1
        return super().upload(tensor).clone()

    def synchronize(self) -> None:
        self.waits += 1


def _cuda() -> ComputeDevice:
    return ComputeDevice("cuda:0")


DEVICES = [StandIn, *([_cuda] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ComputeDevice:
    """A device on which cores compute in this test."""
    made: ComputeDevice = request.param()
    return made


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Callable[[ComputeDevice], None]:
    """Return a function that makes cores compute on a device."""

    def put(device: ComputeDevice) -> None:
        monkeypatch.setattr(
            Core, "compute", lambda core, arch, shard: TorchCompute(arch, shard, device)
        )

    return put


SAMPLINGS = [Sampling(), Sampling(0.8, 20, 0.9, seed=7)]


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_the_tokens_are_those_of_the_cpu(
    checkpoint: Any, driver: Any, device: ComputeDevice, on: Any, sampling: Sampling
) -> None:
    """float32 on another device differs in the last bits at most, which changes no token here."""
    made = checkpoint("Llama")
    found = []
    for each in (CPU, device):
        on(each)
        engine = driver(made.shard())
        name = engine.open(b"a")
        span = Span(
            name, 0, 0, len(TOKENS), tokens=TOKENS, want="token", steps=20, sampling=sampling
        )
        found.append(engine.run(span))
    ours, theirs = found
    assert [each.token for each in ours] == [each.token for each in theirs]
    assert len(ours) == 20 and all(isinstance(each, TokenEvent) for each in ours)
    if isinstance(device, StandIn):
        assert [each.logprob for each in theirs] == pytest.approx([e.logprob for e in ours])
        assert device.uploads > 20


def test_hidden_states_pass_between_devices(
    checkpoint: Any, chain: Any, device: ComputeDevice, on: Any
) -> None:
    made = checkpoint("Qwen3")
    expected = chain(made, made.splits(2)).logits(TOKENS)
    on(device)
    found = chain(made, made.splits(2)).logits(TOKENS)
    assert torch.allclose(found, expected, atol=1e-4)
    if isinstance(device, StandIn):
        assert device.waits >= 2, "what left the device was not complete"


def test_exported_kv_is_for_devices_of_the_same_class(
    checkpoint: Any, driver: Any, device: ComputeDevice, on: Any
) -> None:
    made = checkpoint("Llama")
    first = Span(b"", 0, 0, len(TOKENS), tokens=TOKENS, want="token")
    states, tokens = [], []
    for source, target in ((CPU, CPU), (device, device), (CPU, device)):
        on(source)
        one = driver(made.shard())
        name = one.open(b"a")
        (event,) = one.run(changed(first, session=name))
        state = one.request("export", name)[-1]
        on(target)
        other = driver(made.shard())
        other.open(b"a")
        reply = other.request("import", name, payload=state)[:2]
        if one.shard.compute.exactness != other.shard.compute.exactness:
            assert reply == ("refused", "bad-state")
            continue
        assert reply == ("ok", len(TOKENS))
        again = Span(name, 0, len(TOKENS), 1, tokens=(event.token,), want="token")
        states.append(torch.frombuffer(bytearray(state), dtype=torch.uint8))
        tokens.append([each.token for each in other.run(again)])
    assert tokens[0] == tokens[1]
    # The header names the class of exactness, whose text may be longer than another's.
    assert {len(state) - _header_bytes(state) for state in states} == {_kv_bytes(one)}


def _header_bytes(state: torch.Tensor) -> int:
    return 4 + int.from_bytes(bytes(state[:4].tolist()))


def _kv_bytes(engine: Any) -> int:
    return len(TOKENS) * int(engine.shard.token_bytes)


def test_weights_are_checked_on_their_way(checkpoint: Any, device: ComputeDevice) -> None:
    made = checkpoint("Llama")
    compute = TorchCompute(_arch(made), made.shard(dtype="bfloat16"), device)
    plain = TorchCompute(_arch(made), made.shard(dtype="bfloat16"))
    ours, theirs = (each.layers[0].input_norm.weight for each in (compute, plain))
    assert torch.equal(ours.cpu(), theirs) and ours.device.type == device.torch.type
    (source, *others) = made.shard().tensors
    wrong = replace(source, digests=(bytes(32),) * len(source.digests))
    with pytest.raises(EngineError) as failure:
        TorchCompute(_arch(made), changed(made.shard(), tensors=(wrong, *others)), device)
    assert failure.value.code == "digest-mismatch"


def test_values_that_are_not_finite_are_refused_before_the_device(
    checkpoint: Any, tmp_path: Any, cut_one: Any, device: ComputeDevice
) -> None:
    made = checkpoint("Llama")
    source = next(each for each in made.tensors if each.roles == ("model.norm.weight",))
    values = torch.full(source.shape, float("nan"))
    wrong = cut_one(values, source.roles, tmp_path / "chunks")
    tensors = (wrong, *(each for each in made.tensors if each is not source))
    with pytest.raises(EngineError, match="not finite"):
        TorchCompute(_arch(made), changed(made.shard(), tensors=tensors), device)


def _arch(made: Any) -> Any:
    from shoal.tasks.engine.families import architecture

    return architecture(made.config)


def test_costs_are_measured_on_the_device(checkpoint: Any, device: ComputeDevice) -> None:
    made = checkpoint("Llama")
    with torch.inference_mode():
        compute = TorchCompute(_arch(made), made.shard(), device)
        compute.allocate(8, 0)
        costs = compute.costs()
    assert costs.fixed >= 0 and costs.row >= 0


def test_attention_is_on_the_device(device: ComputeDevice) -> None:
    table = BlockTable(BlockPool(2), 20)
    table.prepare(0, 20)

    class Piece:
        count, position, decode, state = 20, 0, False, None

    piece = Piece()
    piece.table = table  # type: ignore[attr-defined]
    batch = Attention([piece], 1, device)  # type: ignore[list-item]
    assert batch.end == 20
    assert {batch.positions.device.type, batch.slots.device.type} == {device.torch.type}
    assert batch.mask(0, 0, 0).device.type == device.torch.type


def test_only_the_cpu_packs() -> None:
    assert not packs(torch.float32, "cuda") and not packs(torch.bfloat16, "xpu")
    assert products.packs(torch.float32) == products.packs(torch.float32, "cpu")


def test_memory_of_the_cpu() -> None:
    assert 0 < CPU.available_bytes() <= psutil.virtual_memory().total
    assert 0 < CPU.used_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_the_core_asks_its_device_for_memory() -> None:
    class Full(StandIn):
        def available_bytes(self) -> int:
            return 7

        def used_bytes(self) -> int:
            return 5

    def ignore(*_: object) -> None:
        """Take frames and settle."""

    core = DeviceCore(Full(), FrameOutput(ignore), memory_bytes=0)
    assert (core.available_bytes(), core.resident_bytes()) == (7, 5)


@pytest.mark.parametrize("name", ["cuda:77", "xpu:3", "rubbish", "mps"])
def test_a_device_that_torch_cannot_use(name: str) -> None:
    with pytest.raises(EngineError, match=f"`{name}` cannot be used") as failure:
        ComputeDevice(name)
    assert failure.value.code == "no-device" and "\n" not in failure.value.message


@pytest.mark.trio
async def test_a_worker_without_its_device_says_so() -> None:
    engine = EngineProcess(RealHost(), threads=1, device="cuda:77")
    with trio.fail_after(60), pytest.raises(EngineUnavailable) as failure:
        await engine.run()
    assert "`cuda:77`" in failure.value.message and "shoal doctor" in (failure.value.hint or "")


def test_the_status_of_a_worker_without_its_device() -> None:
    code = "import socket, sys, subprocess; a, b = socket.socketpair(); b.set_inheritable(True);"
    code += "print(subprocess.call([sys.executable, '-m', 'shoal.tasks.engine.worker',"
    code += "str(b.fileno()), '--device', 'cuda:77'], close_fds=False))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(EXIT_NO_DEVICE) and "`cuda:77` cannot be used" in done.stderr


def test_reports_of_likely_tokens_leave_the_choices_of_others_on_the_device(
    checkpoint: Any, driver: Any, device: ComputeDevice, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, sampling = checkpoint("Llama"), Sampling(0.8, 20, 0.9, seed=7)

    def events() -> dict[bytes, list[tuple[int, int]]]:
        worker = driver(made.shard())
        for name, top in ((b"a", 0), (b"b", 3), (b"c", 0)):
            session = worker.open(name)
            tokens = TOKENS[: 3 + len(name)] + tuple(name)
            count = len(tokens)
            span = Span(session, 0, 0, count, tokens=tokens, want="token", steps=6)
            worker.submit(changed(span, sampling=sampling, top=top))
        found: dict[bytes, list[tuple[int, int]]] = {}
        for event in worker.events():
            found.setdefault(event.session, []).append((event.token, len(event.top)))
        return found

    expected, here = events(), [0]

    def counted(*args: Any) -> tuple[int, float]:
        here[0] += 1
        return choose(*args)

    monkeypatch.setattr(torchcompute, "choose", counted)
    on(device)
    assert events() == expected
    assert here == [6], "only the tokens of the session that asks for reports"
