"""A process' identity among the ranks, from the launchers' variables."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from distprof.errors import UsageError
from distprof.world import join, leave, list_groups, read_identity, resolve_backend, resolve_device_type

TORCHRUN = {
    "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "a", "MASTER_PORT": "1",
}  # fmt: skip


def test_without_a_launcher_a_process_is_alone() -> None:
    identity = read_identity({})
    assert (identity.rank, identity.world_size, identity.launched) == (0, 1, False)


def test_torchruns_word_is_taken() -> None:
    identity = read_identity({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2"})
    assert (identity.rank, identity.local_rank, identity.world_size, identity.local_world_size) == (5, 1, 8, 4)
    assert identity.launched and (identity.restarts, identity.restarts_left) == (2, 0)
    most = {"TORCHELASTIC_MAX_RESTARTS": "3"}
    assert read_identity({**TORCHRUN, "TORCHELASTIC_RESTART_COUNT": "2", **most}).restarts_left == 1


def test_ranks_of_one_agent_know_it_in_all_their_starts() -> None:
    def read_agent(path: str) -> str | None:
        return read_identity({**TORCHRUN, "TORCHELASTIC_ERROR_FILE": path}).agent

    folder = "/tmp/torchelastic_ab12/none_cd34"
    first = read_agent(f"{folder}/attempt_0/0/error.json")
    assert first is not None and first == read_agent(f"{folder}/attempt_2/1/error.json")
    assert first != read_agent("/tmp/torchelastic_ab12/none_ef56/attempt_0/0/error.json")
    assert (
        read_identity(TORCHRUN).agent is None and read_agent("/dev/null") is None and read_agent("error.json") is None
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"RANK": None}, "RANK not set"),
        ({"MASTER_ADDR": None, "MASTER_PORT": None}, "MASTER_ADDR, MASTER_PORT not set"),
        ({"RANK": "x"}, "not a whole number"),
        ({"RANK": ""}, "RANK=: not a whole number"),
        ({"RANK": "1_0"}, "not a whole number"),
        ({"WORLD_SIZE": "9" * 5000}, "WORLD_SIZE=9+: not a whole number"),
        ({"WORLD_SIZE": "-8"}, "do not fit together"),
        ({"LOCAL_RANK": "\u0661"}, "not a whole number"),
        ({"MASTER_PORT": "http"}, "MASTER_PORT=http: not a whole number"),
        ({"RANK": "8"}, "do not fit together"),
        ({"LOCAL_RANK": "4"}, "do not fit together"),
        ({"LOCAL_WORLD_SIZE": "9"}, "do not fit together"),
    ],
)
def test_half_a_launcher_is_refused(change: dict[str, str | None], message: str) -> None:
    environment = {key: value for key, value in {**TORCHRUN, **change}.items() if value is not None}
    with pytest.raises(UsageError, match=message):
        read_identity(environment)


@pytest.mark.parametrize(
    ("wanted", "device_type", "ranks", "gpus", "expected", "says"),
    [
        ("auto", "cpu", 4, 0, "gloo", False),
        ("auto", "cuda", 4, 4, "nccl", False),
        ("auto", "cuda", 4, 1, "gloo", True),
        ("gloo", "cuda", 2, 2, "gloo", False),
        ("nccl", "cuda", 1, 1, "nccl", False),
    ],
)
def test_the_backend_is_what_the_devices_allow(
    wanted: str, device_type: str, ranks: int, gpus: int, expected: str, says: bool
) -> None:
    backend, note = resolve_backend(wanted, device_type=device_type, local_world_size=ranks, num_devices=gpus)
    assert backend == expected and (note is not None) == says
    assert not says or "device times include the other ranks' turns" in str(note)


def test_nccl_on_a_shared_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match="4 ranks share 1 GPU"):
        resolve_backend("nccl", device_type="cuda", local_world_size=4, num_devices=1)


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device_type("auto") == "cpu"
    with pytest.raises(UsageError, match="torch sees no GPU"):
        resolve_device_type("cuda")


def test_without_a_process_group_there_are_none_to_list() -> None:
    assert list_groups() == []


def test_a_process_alone_has_a_group_of_one() -> None:
    world = join(read_identity({}), device="cpu", backend="auto", timeout_s=30)
    try:
        assert (world.rank, world.size, world.backend, str(world.device)) == (0, 1, "gloo", "cpu")
        assert torch.distributed.get_world_size() == 1
    finally:
        leave()


LEAVE = """
import sys, torch, torch.distributed as dist
from distprof.world import leave
sys.setswitchinterval(60)  # Python's lock is not given away unasked: what races on a busy machine is certain here
for _ in range(5):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.zeros(1))
    leave()
"""


def test_leaving_does_not_wait_for_what_the_last_collective_still_holds() -> None:
    """torch 2.6 hangs here if groups are destroyed as its documentation recommends."""
    done = subprocess.run(
        [sys.executable, "-c", LEAVE], capture_output=True, text=True, timeout=60, env={**os.environ, "RANK": "0"}
    )
    assert done.returncode == 0, done.stderr
