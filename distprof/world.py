"""This process among the ranks, and the process group they share. Nothing else reads torchrun's environment."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import re
import socket
from collections import deque
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from msgspec import Struct

from distprof.errors import DistprofError, UsageError

MAX_GROUPS, MAX_GROUP_RANKS = 64, 4096
"""Process groups of a rank that are listed, and the ranks of the largest."""
_held: deque[object] = deque(maxlen=8)
"""Distprof's own collectives; see `hold_reference`."""
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_held))  # never freed, also when Python frees what modules hold


class Identity(Struct, frozen=True, kw_only=True):
    """What the launcher's environment says about this process, before there is a process group."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    launched: bool
    """Whether a launcher started it; otherwise it is rank 0 of 1."""
    restarts: int
    """How often the launcher restarted the job."""
    restarts_left: int = 0
    """How often the launcher would start the ranks again if one failed."""
    agent: str | None = None
    """Which of torchrun's agents started this process, the same one for each start of its ranks. None: none did."""


class World(Struct, frozen=True, kw_only=True):
    """This process among the ranks, once the process group exists."""

    identity: Identity
    host: str
    device: torch.device
    backend: str
    notes: tuple[str, ...]
    """Anything unusual, such as several ranks on one GPU."""

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.identity.rank

    @property
    def size(self) -> int:
        """The number of ranks of the job."""
        return self.identity.world_size


def read_identity(environment: Mapping[str, str] = os.environ) -> Identity:
    """Reads the environment that torchrun (or a compatible launcher) has set.

    Raises:
        UsageError: Some of the variables are missing, or their numbers do not fit together.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return Identity(rank=0, local_rank=0, world_size=1, local_world_size=1, launched=False, restarts=0)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in names if name not in environment]
    if missing:
        raise UsageError(f"{', '.join(missing)} not set beside RANK or WORLD_SIZE: start the job with torchrun")
    defaults = {
        "LOCAL_WORLD_SIZE": environment["WORLD_SIZE"], "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
    }  # fmt: skip
    rank, size, local_rank, _, local_size, restarts, most_restarts = (
        _read_number(name, environment.get(name, defaults.get(name, "")))
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT", *defaults)
    )
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise UsageError(
            f"RANK={rank} LOCAL_RANK={local_rank} WORLD_SIZE={size} LOCAL_WORLD_SIZE={local_size} do not fit together: "
            "start the job with torchrun"
        )
    return Identity(
        rank=rank, local_rank=local_rank, world_size=size, local_world_size=local_size, launched=True,
        restarts=restarts, restarts_left=max(most_restarts - restarts, 0), agent=_identify_agent(environment),
    )  # fmt: skip


def _identify_agent(environment: Mapping[str, str]) -> str | None:
    """From the folder that each agent makes for its ranks, with random letters in its name."""
    attempt = Path(environment.get("TORCHELASTIC_ERROR_FILE", "")).parent.parent
    if not attempt.name.startswith("attempt_"):
        return None
    return hashlib.sha256(str(attempt.parent).encode()).hexdigest()[:16]


def _read_number(name: str, text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise UsageError(f"{name}={text}: not a whole number, which launchers set: start the job with torchrun")
    return int(text)


def resolve_device_type(wanted: str) -> str:
    """ "cpu" or "cuda": as asked for, or what is available with "auto".

    Raises:
        UsageError: cuda was asked for and torch sees no GPU.
    """
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UsageError("device=cuda: torch sees no GPU here: use device=cpu, or install a CUDA build of torch")
    return wanted if wanted != "auto" else "cuda" if available else "cpu"


def count_devices(wanted: str) -> int:
    """How many GPUs this machine has; 0 if none is wanted."""
    return torch.cuda.device_count() if resolve_device_type(wanted) == "cuda" else 0


def resolve_backend(
    wanted: str, *, device_type: str, local_world_size: int, num_devices: int
) -> tuple[str, str | None]:
    """The backend, and a note if it is not the obvious one.

    Raises:
        UsageError: nccl was asked for and ranks would share a GPU, which NCCL refuses.
    """
    shared = device_type == "cuda" and local_world_size > num_devices
    if wanted == "nccl" and shared:
        raise UsageError(
            f"backend=nccl: {local_world_size} ranks share {num_devices} GPU(s), which NCCL refuses: "
            "start one rank per GPU, or use backend=gloo"
        )
    if wanted == "auto":
        wanted = "nccl" if device_type == "cuda" and not shared else "gloo"
    if shared:
        note = f"{local_world_size} ranks share {num_devices} GPU(s): device times include the other ranks' turns"
        return wanted, f"{note}, and gloo moves their data over the host"
    return wanted, None


def join(identity: Identity, *, device: str, backend: str, timeout_s: float) -> World:
    """Joins the process group of the job. Collective; every rank of the job must call it.

    Args:
        identity: From `read_identity`.
        device: "auto", "cpu" or "cuda".
        backend: "auto", "nccl" or "gloo".
        timeout_s: How long a collective waits for a missing rank.

    Raises:
        UsageError: The device or backend is not available.
        DistprofError: The ranks could not connect to each other.
    """
    device_type = resolve_device_type(device)
    num_devices = torch.cuda.device_count() if device_type == "cuda" else 0
    backend, note = resolve_backend(
        backend, device_type=device_type, local_world_size=identity.local_world_size, num_devices=num_devices
    )
    own = torch.device("cpu")
    if device_type == "cuda":
        own = torch.device("cuda", identity.local_rank % num_devices)
        torch.cuda.set_device(own)
    options: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s)}
    if not identity.launched:
        options |= {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # type: ignore[attr-defined]
    try:
        dist.init_process_group("cpu:gloo,cuda:nccl" if backend == "nccl" else "gloo", **options)
    except (RuntimeError, ValueError) as error:
        raise DistprofError(f"the ranks did not find each other over {backend}: {error}") from error
    notes = (note,) if note else ()
    return World(identity=identity, host=socket.gethostname(), device=own, backend=backend, notes=notes)


def read_world(device: torch.device) -> World:
    """This process among the ranks of the process group that exists; alone, if there is none. Makes none.

    Args:
        device: Where this process trains.
    """
    try:
        identity = read_identity()
    except UsageError:
        identity = None
    rank, size, backend = 0, 1, ""
    if dist.is_available() and dist.is_initialized():
        rank, size, backend = dist.get_rank(), dist.get_world_size(), dist.get_backend()
        pairs = (pair.partition(":") for pair in dist.get_backend_config().split(","))
        backend = {kind: name for kind, _, name in pairs}.get(device.type, backend)
    if identity is None or (identity.rank, identity.world_size) != (rank, size):
        identity = Identity(
            rank=rank, local_rank=rank, world_size=size, local_world_size=size, launched=size > 1, restarts=0
        )
    return World(identity=identity, host=socket.gethostname(), device=device, backend=backend, notes=())


def list_groups() -> list[tuple[str, tuple[int, ...]]]:
    """Description and global ranks of each of the script's process groups that this process shares with some ranks.

    Read from torch's own table, which stays as it is; any thread may call it. Empty if this torch has none such.
    """
    try:
        table: list[tuple[Any, dict[int, int]]] = list(dist.distributed_c10d._world.pg_group_ranks.items())
        size = dist.get_world_size()
    except (AttributeError, RuntimeError, ValueError):
        return []
    shared = [(group, ranks) for group, ranks in table if 1 < len(ranks) < size and len(ranks) <= MAX_GROUP_RANKS]
    return [
        (str(getattr(group, "group_desc", "")), tuple(sorted(ranks, key=lambda rank: ranks[rank])))
        for group, ranks in shared[:MAX_GROUPS]
    ]


def is_launched() -> bool:
    """Whether this process is one of several ranks, as far as known before there is a process group."""
    try:
        return dist.is_initialized() or read_identity().world_size > 1
    except UsageError:
        return False


def leave() -> None:
    """Leaves the process group, if there is one."""
    if dist.is_initialized():
        held = _hold_backends()
        dist.destroy_process_group()
        del held
        release_references()


def _hold_backends() -> list[object]:
    """The backends of gloo's groups, to be released after the groups themselves.

    Up to torch 2.6, destroying a group waits for its threads while holding the GIL, and a thread that still has to
    release its last tensor waits for the GIL: a deadlock. Destroying a backend by itself releases the GIL first.
    """
    backends: list[object] = []
    for group in list(dist.distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):  # a group without a CPU backend
            backends.append(group._get_backend(torch.device("cpu")))
    return backends


def hold_reference(work: Any) -> Any:
    """Holds one of distprof's own collectives over gloo until later ones have taken its place; returns it.

    The thread of gloo that runs a collective needs the GIL to let go of the last reference to its tensors, at some time
    after the collective has ended. If Python has ended by then, the process aborts, so the last reference stays here.
    """
    _held.append(work)
    return work


def release_references() -> None:
    """Holds none of them any more. The connections of a process group that is gone end with the last of them."""
    _held.clear()


def share_text(text: str | None, *, source: int = 0, group: dist.ProcessGroup | None) -> str:
    """Broadcasts a text from rank ``source`` to every rank. Collective, over the CPU.

    Args:
        text: The text on ``source``; ignored elsewhere.
        source: The rank that sends.
        group: A group of all ranks with a gloo backend for the CPU. None: there is one rank.
    """
    if group is None:
        return text or ""
    data = (text or "").encode() if group.rank() == source else b""
    length = torch.tensor([len(data)])
    _broadcast(length, source, group)
    buffer = _as_buffer(data, int(length))
    _broadcast(buffer, source, group)
    return buffer.numpy().tobytes().decode()


def collect_texts(text: str, *, group: dist.ProcessGroup | None) -> list[str]:
    """Gathers one text from every rank on every rank, in rank order. Collective; ``group`` as in `share_text`."""
    if group is None:
        return [text]
    data = text.encode()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    hold_reference(group.allgather([lengths], [torch.tensor([len(data)])])).wait()
    longest = int(max(lengths))
    buffers = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
    hold_reference(group.allgather([buffers], [_as_buffer(data, longest)])).wait()
    return [buffer.numpy().tobytes()[: int(length)].decode() for buffer, length in zip(buffers, lengths, strict=True)]


def all_reduce_max(number: int, *, group: dist.ProcessGroup | None) -> int:
    """The largest of the ranks' numbers, once every rank is here. Collective; ``group`` as in `share_text`."""
    largest = torch.tensor([number])
    if group is not None:
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        hold_reference(group.allreduce([largest], options)).wait()
    return int(largest)


def wait_for_ranks(group: dist.ProcessGroup | None) -> None:
    """Returns when every rank is here. Collective; ``group`` as in `share_text`."""
    all_reduce_max(0, group=group)


def _broadcast(tensor: torch.Tensor, source: int, group: dist.ProcessGroup) -> None:
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = source, 0
    hold_reference(group.broadcast([tensor], options)).wait()


def _as_buffer(data: bytes, length: int) -> torch.Tensor:
    buffer = torch.zeros(length, dtype=torch.uint8)
    if data:
        buffer[: len(data)] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return buffer
