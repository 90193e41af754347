"""Describes models, shards, peers and figures of a node as messages of the control socket."""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from ...dht.content.library import Library
from ...dht.content.manifest import Manifest
from ...dht.content.quota import LibraryLimit
from ...state.directory import Directory
from ...state.membership.record import Capacity, DeviceSpeed, MemberRecord, ModelName, ShardRecord
from ...tasks.costs.tracker import Deviation
from ...tasks.engine.families import architecture
from ...tasks.engine.interface import Parts
from ...tasks.errors import NoRoute
from ...tasks.hardware.facts import Device, Speed
from ...tasks.hardware.hardware import Hardware
from ...tasks.inference.choice import AnswerErrors
from ...tasks.inference.shards import find_route, largest_room
from ...tasks.inference.speed import ServedSpeed
from ...tasks.inference.stage import Stage
from ...tasks.models.adding import Added
from ...tasks.placement.precision import smaller
from ...tasks.placement.shard import choose_dtype
from ...tasks.serving.interface import ServingStatus
from ...transport.address import Address
from ...transport.errors import TransportError
from ...transport.identity import PeerId
from ...transport.link.link import Link
from ...transport.networks import is_public
from ..daemon.stall import StallGuard
from ..defaults import VOUCHERS_SHOWN
from ..health import Condition
from .messages.encoding import extended
from .messages.machine import (
    CapacityView,
    DeviceView,
    DiskView,
    KernelsView,
    MachineView,
    PublishedDevice,
    SpeedView,
)
from .messages.models import AddedModel, ModelEntry, ServingNode, ShownModel, VoucherView
from .messages.node import ConditionView, Stalls
from .messages.reach import PeerView
from .messages.serving import AnswersView, PredictionView, ServingView, ShardView

Members = Mapping[PeerId, MemberRecord]

# Keys of config.json that `shoal model show` prints; the others stay in the manifest.
SHOWN_CONFIG = (
    "model_type", "hidden_size", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "vocab_size", "max_position_embeddings", "torch_dtype", "dtype",
)  # fmt: skip


def why_not_served(members: Members, root: str, layers: int) -> str | None:
    """Return a sentence that explains why no chain of members serves a model. Returns None if a
    chain does."""
    try:
        find_route(members, root, layers, 1)
    except NoRoute as error:
        return error.message
    return None


def known_models(members: Members) -> dict[str, ModelName]:
    """Return every model that a member gives a name to, by root. A model with several names appears
    under the alphabetically first one."""
    found: dict[str, ModelName] = {}
    for record in members.values():
        for model in record.models:
            if model.root not in found or model.name < found[model.root].name:
                found[model.root] = model
    return found


def named_models(members: Members) -> list[ModelName]:
    """Return every pair of name and model that a member announces, sorted by name. A model may
    appear under several names."""
    found = {(model.name, model.root): model for r in members.values() for model in r.models}
    return [found[key] for key in sorted(found)]


def model_entry(name: str, manifest: Manifest, *, local: bool) -> ModelEntry:
    """Describe a model from its manifest only. The fields about the swarm stay unknown."""
    return ModelEntry(
        name=name,
        root=manifest.root,
        layers=manifest.layers,
        weight_bytes=manifest.weight_bytes(True, 0, manifest.layers, True),
        local=local,
        complete=None,
        missing=None,
        room_tokens=None,
        vouchers=(),
    )


def added_model(added: Added, before: Mapping[str, str]) -> AddedModel:
    """Describe a model that was just added. `before` maps each earlier name of the library to its
    root."""
    name, root = added.name, added.manifest.root
    old = before.get(name, root)
    entry = model_entry(name, added.manifest, local=True)
    return extended(AddedModel, entry, replaced=None if old == root else old, notes=added.notes)


def swarm_entry(
    model: ModelName, members: Members, local: Iterable[str], own: PeerId
) -> ModelEntry:
    """Describe a model as the swarm knows it: which members vouch for its name, and whether a chain
    serves it."""
    missing = why_not_served(members, model.root, model.layers)
    return ModelEntry(
        name=model.name,
        root=model.root,
        layers=model.layers,
        weight_bytes=model.weight_bytes,
        local=model.root in set(local),
        complete=missing is None,
        missing=missing,
        room_tokens=None if missing else largest_room(members, model.root, model.layers),
        vouchers=vouchers(model, members, own),
    )


def vouchers(model: ModelName, members: Members, own: PeerId) -> tuple[VoucherView, ...]:
    """Return at most VOUCHERS_SHOWN members that give this name to this model. This node comes
    first if it is one of them."""
    found = [
        VoucherView(peer, "here" if peer == own else "members", 0.0)
        for peer, record in members.items()
        if any(one.name == model.name and one.root == model.root for one in record.models)
    ]
    return tuple(sorted(found, key=lambda one: one.source != "here")[:VOUCHERS_SHOWN])


def swarm_models(directory: Directory, library: Library) -> list[ModelEntry]:
    """Describe every model that this node or a member gives a name to."""
    members, local, own = directory.members(), library.roots(), directory.own().peer
    return [swarm_entry(model, members, local, own) for model in named_models(members)]


def _precision(manifest: Manifest) -> str:
    """Return in what precision the weights are and, if they are not quantised, what the other ones
    would cost."""
    arch = architecture(manifest.config)
    if arch.layouts.precision:
        return arch.layouts.precision
    costs = (
        f"{each.precision} would need {each.everything / 2**20:,.0f} MiB and lose "
        f"{100 * each.loss:g} % at most"
        for each in smaller(arch, choose_dtype(manifest, "auto"))
    )
    return "; ".join(("not quantised", *costs))


def shown_model(name: str, manifest: Manifest, members: Members, *, local: bool) -> ShownModel:
    """Describe a model with its configuration and the members that serve it. Vouchers are not
    included.

    If `members` is empty, it is unknown whether a chain serves the model.
    """
    missing = why_not_served(members, manifest.root, manifest.layers) if members else None
    providers = [
        ServingNode(peer, layers_text(shard), shard.dtype)
        for peer, record in members.items()
        for shard in record.shards
        if shard.root == manifest.root
    ]
    entry = replace(
        model_entry(name, manifest, local=local),
        complete=missing is None if members else None,
        missing=missing,
    )
    config = {key: manifest.config[key] for key in SHOWN_CONFIG if key in manifest.config}
    config["precision"] = _precision(manifest)
    return extended(ShownModel, entry, providers=tuple(providers), config=config)


def layers_text(shard: ShardRecord) -> str:
    """Return the layers of a shard as `start:stop`, where stop is exclusive."""
    return f"{shard.start}:{shard.stop}"


def shard_view(shard: ShardRecord, names: Mapping[str, ModelName]) -> ShardView:
    """Describe a shard that a node serves. `names` maps roots to models; a shard whose model has no
    name is shown by its root."""
    named = names.get(shard.root)
    return ShardView(
        model=named.name if named else shard.root[:16],
        root=shard.root,
        layers=layers_text(shard),
        embedding=shard.embedding,
        head=shard.head,
        dtype=shard.dtype,
        kv_tokens_free=shard.kv_tokens_free,
        exactness=shard.exactness,
    )


def serving_view(
    shards: Collection[ShardRecord],
    names: Mapping[str, ModelName],
    stage: Stage,
    status: ServingStatus,
) -> ServingView:
    """Describe what the node serves now in one slot, or its progress until it serves.

    `shards` are those that the node has published.
    """
    found = [shard for shard in shards if shard.root == status.root]
    found.sort(key=lambda shard: shard.start)
    parts = [Parts(each.embedding, each.start, each.stop, each.head) for each in found]
    rooms = [stage.room(shard.root, part) for shard, part in zip(found, parts, strict=True)]
    first = next(iter(found), None)
    predicted = prediction_view(stage.speed(first.root, parts[0])) if first else None
    return ServingView(
        phase=status.phase,
        state=status.text,
        why=status.why,
        done_bytes=status.done_bytes,
        total_bytes=status.total_bytes,
        room_tokens=min(rooms, default=0),
        shard=shard_view(first, names) if first else None,
        further=tuple(shard_view(each, names) for each in found[1:]),
        predicted=predicted,
    )


def answers_view(errors: AnswerErrors) -> AnswersView:
    """Describe how far predictions about this gateway's answers are wrong."""
    first, token = errors.first.value, errors.token.value
    return AnswersView(first.mean, first.samples, token.mean, token.samples)


def prediction_view(speed: ServedSpeed) -> PredictionView | None:
    """Describe the predictions about a shard. Return None if its speed is unknown."""
    if not speed.tokens_per_s:
        return None
    error = speed.error
    return PredictionView(speed.tokens_per_s, error.mean, error.samples)


def disk_view(allowance: LibraryLimit, used: int) -> DiskView:
    """Describe the disk use of models and blobs (`used`, in bytes) and its limit."""
    return DiskView(used, allowance.limit, allowance.firm)


def capacity_view(capacity: Capacity) -> CapacityView:
    """Describe the measured capacity of a machine."""
    return CapacityView(
        cores=capacity.cores,
        memory_bytes=capacity.memory_bytes,
        engine=capacity.engine,
        load_rate=capacity.load_rate or None,
        devices=tuple(map(_published_device, capacity.devices)),
    )


def _published_device(device: DeviceSpeed) -> PublishedDevice:
    return PublishedDevice(
        device.name, device.instructions, device.memory_bytes, _speed_view(device)
    )


def _speed_view(speed: DeviceSpeed | Speed) -> SpeedView | None:
    """Describe the speed of a device. Return None if it is unknown."""
    if not speed.batch:
        return None
    return SpeedView(speed.bandwidth, speed.float32, speed.bfloat16, speed.batch)


def machine_view(hardware: Hardware) -> MachineView:
    """Describe the hardware of this node."""
    return MachineView(
        progress=hardware.progress,
        failure=hardware.failure or None,
        load_rate=hardware.load_rate or None,
        devices=tuple(_device_view(each, hardware.chosen) for each in hardware.devices()),
        kernels=tuple(
            KernelsView(each.name, each.unused or None, each.beside or None)
            for each in hardware.kernels
        ),
    )


def _device_view(device: Device, chosen: Collection[str]) -> DeviceView:
    return DeviceView(
        name=device.name or None,
        label=device.label,
        instructions=device.instructions,
        memory_bytes=device.memory_bytes,
        used=device.name in chosen,
        unused=device.unused or None,
        hint=device.hint or None,
        speed=_speed_view(device.speed),
    )


def condition_view(condition: Condition) -> ConditionView:
    """Describe a condition from the node's `Health`."""
    return ConditionView(condition.name, condition.sentence, condition.hint)


def stall_view(guard: StallGuard) -> Stalls:
    """Describe how often a task has blocked the event loop, and the longest such step."""
    worst = guard.worst
    return Stalls(
        guard.count, worst.seconds * 1000 if worst else None, worst.task if worst else None
    )


def listening_address(record: MemberRecord, seen: str | None) -> str | None:
    """Return the address at which a peer listens, as IP:PORT, or only its IP address if the port is
    unknown.

    `seen` is the IP address of the peer on its link, or None. Among the addresses in the peer's
    record, the one at `seen` is preferred, then the first. If `seen` is a public address, only
    public addresses are considered, because the others are behind the peer's router. If no address
    remains, the result is `seen` without a port: if the peer dialled the link, nothing listens on
    the link's port.
    """
    found = []
    for text in record.addresses:
        with suppress(TransportError):
            found.append(Address.parse(text))
    found = [each for each in found if each.relay is None]
    if seen is not None and is_public(seen):
        found = [each for each in found if is_public(each.host)]
    best = next((each for each in found if each.host == seen), next(iter(found), None))
    if best is None:
        return seen
    return f"[{best.host}]:{best.port}" if ":" in best.host else f"{best.host}:{best.port}"


def peer_view(
    record: MemberRecord,
    link: Link | None,
    names: Mapping[str, ModelName],
    now: float,
    error: Deviation,
) -> PeerView:
    """Describe another node from its member record, and from the measurements of the link to it.
    `link` is None if there is none. `now` is in seconds on the host's clock. `error` is that of
    predictions about the peer's stages."""
    status = link.status if link else None
    return PeerView(
        peer=record.peer,
        version=record.version,
        address=listening_address(record, status.address[0] if status else None),
        path=status.path if status else None,
        rtt_ms=status.rtt * 1000 if status and status.rtt is not None else None,
        bytes_in=status.bytes_in if status else 0,
        bytes_out=status.bytes_out if status else 0,
        linked_s=now - status.since if status else None,
        shards=tuple(shard_view(shard, names) for shard in record.shards),
        capacity=capacity_view(record.capacity),
        token_error=error.mean,
        token_samples=error.samples,
    )
