"""Configurations that decode and cannot work: every refusal of `check` is tried."""

from __future__ import annotations

import ast
import importlib.util
import inspect
from collections.abc import Iterator, Sequence

import pytest

from distprof.config import check as check_module
from distprof.config.check import check
from distprof.errors import UsageError
from tests.config.test_config import Overrides, make_config

TEXT = {"name": "text", "path": None, "glob": "*", "max_bytes": 1000, "workers": 0}
VICTIM = {"rank": 1, "phase": "data", "delay_ms": 5.0, "from_step": 0, "action": "delay"}
WANDB = {"name": "wandb", "project": "p", "entity": None, "group": None, "mode": "offline", "init_timeout_s": 15.0}

FSDP = {"name": "fsdp", "reshard_after_forward": True, "replicas": 1}

ABOVE_ZERO = (
    "train.steps", "train.seq_len", "train.micro_batch", "train.grad_accum", "group_timeout_s", "train.model.layers",
    "train.model.width", "train.model.heads", "train.model.vocab_size", "profile.window_s", "train.learning_rate",
)  # fmt: skip
REFUSALS: list[tuple[Overrides, str]] = [
    *(({key: 0}, f"{key}=0") for key in ABOVE_ZERO),
    ({"train.warmup_steps": -1}, "train.warmup_steps=-1"),
    ({"train.clip_norm": 0}, "train.clip_norm=0.0"),
    ({"train.model.heads": 3}, "train.model.heads=3 must divide width=128"),
    ({"train.model.style": "llama", "train.model.width": 12, "train.model.heads": 4}, "an even head size"),
    ({"train.seq_len": 257}, "train.seq_len=257 exceeds train.model.max_seq_len=256"),
    ({"strategy": {"name": "single"}}, "strategy=single is one process, but this job has 2 ranks"),
    ({"strategy": {"name": "accelerate", "wrap": "fsdp"}}, "strategy=accelerate strategy.wrap=fsdp"),
    (
        {"strategy": {"name": "fsdp", "reshard_after_forward": True, "replicas": 3}},
        "strategy.replicas=3 must divide the 2 ranks of the job",
    ),
    ({"parallel.pp": 0}, "parallel.pp=0: must be 1 or more"),
    ({"parallel.micro_batches": 2}, "parallel.micro_batches without a pipeline"),
    ({"parallel.pp": 3}, "parallel.pp=3 parallel.tp=1: pp x tp must divide the 2 rank(s)"),
    ({"parallel.tp": 2, "train.model.heads": 1}, "parallel.tp=2 must divide train.model.heads=1"),
    ({"parallel.tp": 2, "train.model.ffn_width": 5}, "and the feed-forward's width, 5"),
    ({"parallel.pp": 2, "train.model.layers": 1}, "parallel.pp=2: train.model.layers=1 is fewer than one per stage"),
    ({"parallel.pp": 2, "strategy": {"name": "single"}}, "strategy=single is one process"),
    (
        {"parallel.pp": 2, "strategy": {"name": "accelerate", "wrap": "ddp"}},
        "works with strategy=ddp, or strategy=fsdp",
    ),
    ({"parallel.pp": 2, "strategy": {**FSDP, "replicas": 2}}, "works with strategy=ddp, or strategy=fsdp"),
    ({"parallel.pp": 2, "train.precision": "fp16"}, "parallel.tp=1 train.precision=fp16"),
    ({"parallel.pp": 2, "train.compile": True}, "a model that is cut is not compiled"),
    ({"parallel.pp": 2, "profile.level": "modules"}, "parallel.tp=1 profile.level=modules"),
    ({"parallel.pp": 2, "train.mode": "forward"}, "parallel.pp=2 train.mode=forward: a pipeline runs forward"),
    ({"parallel.pp": 2, "train.micro_batch": 3}, "a step has 3 sequence(s)"),
    ({"parallel.pp": 2, "parallel.micro_batches": 1}, "cut into 1 equal micro-batches, at least one per stage"),
    ({"parallel.pp": 2, "inject": {**VICTIM, "module": "head"}}, "inject.module=head: only one stage has it"),
    ({"train.precision": "tf32"}, "train.precision=tf32 needs a GPU"),
    (
        {"train.precision": "fp16", "strategy": {"name": "fsdp", "reshard_after_forward": True, "replicas": 1}},
        "train.precision=fp16 strategy=fsdp",
    ),
    ({"backend": "nccl"}, "backend=nccl needs a GPU"),
    ({"hardware.peak": 0}, "hardware.peak=0.0"),
    ({"data": {**TEXT, "workers": -1}}, "data.workers=-1"),
    ({"data": TEXT, "train.model.vocab_size": 255}, "data=text has 256 tokens, but train.model.vocab_size=255"),
    ({"train.model.ffn_width": 0}, "train.model.ffn_width=0"),
    ({"name": " "}, "name: empty"),
    (
        {
            "logger": {
                "name": "wandb",
                "project": "p",
                "entity": None,
                "group": None,
                "mode": "auto",
                "init_timeout_s": float("nan"),
            }
        },
        "logger.init_timeout_s=nan",
    ),
    ({"profile.nvtx_module_depth": -1}, "profile.nvtx_module_depth=-1"),
    ({"profile.collectives": -1}, "profile.collectives=-1"),
    ({"profile.shadow_every": 1}, "profile.shadow_every=1"),
    ({"profile.max_overhead_ratio": 0}, "profile.max_overhead_ratio=0.0"),
    ({"profile.record": "9 of 8"}, "profile.record='9 of 8': must be auto, all, or like 100 of 1000"),
    ({"profile.keep_steps": 99}, "profile.keep_steps=99: must be 100 or more, or null for all"),
    ({"profile.metrics_port": 65536}, "profile.metrics_port=65536: must be 0 to 65535, or null for none"),
    ({"profile.kernel_steps": 0}, "profile.kernel_steps=0"),
    ({"profile.loggers": ["tensorboard"]}, "profile.loggers=tensorboard: needs the package tensorboard: pip install"),
    ({"profile.loggers": ["wandb"], "logger": WANDB}, "profile.loggers=wandb logger=wandb: both log the same"),
    ({"profile.record": "none"}, "profile.record='none': must be auto, all, or like 100 of 1000, from 1 on"),
    ({"profile.kernel_from": -1}, "profile.kernel_from=-1: must be 0 or more, or null"),
    ({"profile.kernel_from": 2}, "profile.kernel_from=2: must be 3, after the warm-up, to 23, after the last step"),
    ({"profile.module_steps": 0}, "profile.module_steps=0"),
    ({"profile.module_from": 24}, "profile.module_from=24: must be 3, after the warm-up, to 23, after the last step"),
    ({"strategy": {"name": "ddp", "bucket_mb": -1.0}}, "strategy.bucket_mb=-1.0"),
    ({"train.learning_rate": float("inf")}, "train.learning_rate=inf"),
    ({"data": {**TEXT, "max_bytes": 0}}, "data.max_bytes=0"),
    ({"train.mode": "backward", "train.grad_accum": 2}, "train.mode=backward train.grad_accum=2"),
    ({"sweep.ranks": 3}, "sweep.ranks=3: this job has 2 rank(s)"),
    ({"sweep.timeout_s": 0.0}, "sweep.timeout_s=0.0: must be above 0"),
    ({"sweep.nsys": True, "profile.level": "kernels"}, "sweep.nsys=true with profile.level=kernels"),
    ({"sweep.nsys": True, "profile.nvtx": False}, "profile.nvtx=false: nsys needs the ranges"),
    ({"inject": {**VICTIM, "from_step": 10**6}}, "inject.from_step=1000000: this job has steps 0 to"),
    ({"inject.delay_ms": 5}, "inject.module or inject.where without a rank"),
    ({"inject.action": "kill"}, "inject.module or inject.where without a rank"),
    ({"inject.module": "head"}, "inject.module or inject.where without a rank"),
    (
        {"inject": {**VICTIM, "phase": "backward", "module": "head"}},
        "inject.module=head: happens in",
    ),
    ({"inject": {**VICTIM, "module": "head"}, "train.compile": True}, "inject.module=head: a compiled block"),
    ({"inject.where": "device"}, "inject.module or inject.where without a rank"),
    ({"inject": {**VICTIM, "where": "device"}}, "inject.where=device needs a GPU"),
    ({"inject": {**VICTIM, "where": "device", "action": "kill"}}, "inject.where=device inject.action=kill: only a"),
    ({"inject": {**VICTIM, "rank": 2}}, "inject.rank=2: this job has ranks 0 to 1"),
    ({"inject": {**VICTIM, "rank": -1}}, "inject.rank=-1"),
    ({"inject": {**VICTIM, "delay_ms": -1.0}}, "inject.delay_ms=-1.0"),
    ({"inject": {**VICTIM, "phase": "backward"}, "train.mode": "forward"}, "inject.phase=backward"),
    ({"inject": VICTIM, "train.mode": "backward"}, "inject.phase=data"),
    ({"inject": {**VICTIM, "phase": "grad_norm"}, "train.clip_norm": None}, "inject.phase=grad_norm"),
    ({"inject": {**VICTIM, "phase": "optimizer"}, "train.mode": "forward_backward"}, "inject.phase=optimizer"),
]
"""What is changed in a job of two ranks on a CPU that can run, and how the refusal begins or what it holds."""


@pytest.fixture(autouse=True)
def no_tensorboard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is installed here."""
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name))


def test_the_job_that_the_refusals_start_from_can_run() -> None:
    check(make_config(), world_size=2, device_type="cpu")
    check(make_config({"inject": VICTIM}), world_size=2, device_type="cpu")
    check(make_config({"data": TEXT}), world_size=2, device_type="cpu")
    check(make_config({"inject": {**VICTIM, "module": "head"}}), world_size=2, device_type="cpu")
    check(make_config({"profile.kernel_from": 23}), world_size=2, device_type="cpu")
    check(make_config({"parallel.pp": 2, "parallel.tp": 2}), world_size=4, device_type="cpu")
    check(make_config({"parallel.tp": 2, "strategy": FSDP}), world_size=4, device_type="cpu")


def test_tensor_parallel_replicas_need_fsdp() -> None:
    with pytest.raises(UsageError, match="with 2 replicas: DistributedDataParallel cannot hold"):
        check(make_config({"parallel.tp": 2}), world_size=4, device_type="cpu")


@pytest.mark.parametrize(("overrides", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_what_cannot_work_is_refused(overrides: Overrides, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        check(make_config(overrides), world_size=2, device_type="cpu")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "world_size"),
    [
        ({"train.precision": "tf32"}, 2),
        ({"backend": "nccl"}, 2),
        ({"strategy": {"name": "accelerate", "wrap": "fsdp"}}, 2),
        ({"train.precision": "fp16", "strategy": {"name": "fsdp", "reshard_after_forward": True, "replicas": 1}}, 2),
        ({"strategy": {"name": "single"}}, 1),
        ({"train.seq_len": 256, "train.warmup_steps": 0}, 2),
    ],
)
def test_what_works_elsewhere_is_not_refused_there(overrides: Overrides, world_size: int) -> None:
    check(make_config(overrides), world_size=world_size, device_type="cuda")


def test_every_refusal_is_tried() -> None:
    source = inspect.getsource(check_module)
    written = {
        node.lineno: ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_require"
    }
    untried = {line: call for line, call in written.items() if line not in set(find_refusing_lines(REFUSALS))}
    assert not untried, f"add a row to REFUSALS for {list(untried.values())}"


def find_refusing_lines(rows: Sequence[tuple[Overrides, str]]) -> Iterator[int]:
    """Lines of check.py whose `_require` refused a row."""
    for overrides, _ in rows:
        with pytest.raises(UsageError) as caught:
            check(make_config(overrides), world_size=2, device_type="cpu")
        yield caught.traceback[-2].lineno + 1
