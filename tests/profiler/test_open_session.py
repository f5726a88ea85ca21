"""`distprof.start` as a new user would: little is said, and the rest is found out, or refused in one sentence."""

from __future__ import annotations

import gc
import gzip
import json
import os
import re
import signal
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import distprof
from distprof.cli.parser import run_verb
from distprof.config.choice import read_choice
from distprof.config.schema import HardwareConfig, ProfileConfig, decode
from distprof.errors import UsageError
from distprof.facts.run import Work
from distprof.profiler import end_report, open_session
from distprof.profiler.job.agreement import NotAllHere
from distprof.profiler.job.model_inspection import describe_strategy, infer_device, list_wrapped, name_strategies
from distprof.profiler.job.run_files import JobPlan
from distprof.profiler.session.recording import Recording
from distprof.storage.run_folder import read_run
from tests.profiler.session.session_case import LONG, find_run

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _close_what_tests_leave_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    for session in list(open_session._open):
        session.close()


def test_how_the_process_ends_after_its_session_is_told(tmp_path: Path) -> None:
    """As ``sys.exit(7)`` after the script's process group is gone."""
    with distprof.start("mine", run_dir=str(tmp_path / "run"), **LONG) as profiler:
        for _ in profiler.steps(range(3)):
            pass
    profiler.end_process(SystemExit(0))
    profiler.end_process(None)
    (info,) = read_run(tmp_path / "run").ranks
    assert info.ended == "completed"
    profiler.end_process(SystemExit(7))
    (after,) = read_run(tmp_path / "run").ranks
    assert (after.ended, after.error, after.notes) == ("failed", "exit code 7", info.notes)


def test_the_end_of_a_job_writes_a_timeline_of_as_many_steps_as_it_may_and_a_report_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(end_report, "MOST_SLICES", 20)
    with distprof.start("mine", run_dir="run", **LONG) as profiler:
        for _ in profiler.steps(range(30)):
            pass

    def read() -> tuple[int, int]:
        about = json.loads(gzip.decompress(Path("run/trace.json.gz").read_bytes()))["otherData"]
        return about["steps"], about["of_steps"]

    shown, of_steps = read()
    assert 0 < shown < of_steps == 30
    assert run_verb(["report", "run"]) == 0 and read() == (30, 30)


def test_three_lines_are_enough(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = nn.Linear(4, 4)
    generator, before = torch.get_rng_state(), signal.getsignal(signal.SIGTERM)
    settings = SimpleNamespace(dtype=torch.bfloat16, lr=float("nan"), sizes=(1, 2), api_key="x")
    with distprof.start("mine", config=settings) as profiler:
        assert profiler.folder is None and not dist.is_initialized()
        profiler.watch(model)
        for batch in profiler.steps(torch.ones(5, 2, 4)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                model(batch)
        assert not dist.is_initialized()
    assert torch.equal(generator, torch.get_rng_state()) and signal.getsignal(signal.SIGTERM) is before
    run = find_run(tmp_path, "_mine")
    assert run.column("warmup").tolist() == [[1, 1, 1, 0, 0]] and run.ranks[0].ended == "completed"
    assert (run.meta.strategy, run.meta.precision, run.meta.backend) == ("single", "bf16", None)
    assert not model._forward_pre_hooks
    kept = {"dtype": "torch.bfloat16", "lr": "NaN", "sizes": [1, 2], "api_key": "[redacted]"}
    assert {key: run.meta.config[key] for key in kept} == kept and run.meta.config["script"]
    out, err = capfd.readouterr()
    assert out == "" and re.search(r"distprof: step time .*\ndistprof: run folder: .*_mine  \(report.html, ", err)
    assert (profiler.folder or tmp_path).samefile(next((tmp_path / "runs").iterdir()))


def test_a_model_that_the_script_lets_go_of_is_freed_and_still_told_of(tmp_path: Path) -> None:
    """As in cross validation, where each fold has a model of its own."""
    freed: list[weakref.ref[nn.Module]] = []

    def fold(profiler: distprof.Session) -> None:
        model = nn.Linear(4, 4, dtype=torch.bfloat16)
        profiler.watch(model)
        for batch in profiler.steps(torch.ones(3, 2, 4, dtype=torch.bfloat16)):
            model(batch).sum().backward()
        freed.append(weakref.ref(model))

    with distprof.start("mine", find=False) as profiler:
        for _ in range(2):
            fold(profiler)
            gc.collect()
        assert [model() for model in freed] == [None, None]
    assert find_run(tmp_path, "_mine").meta.precision == "bf16"


def test_every_key_of_conf_profile_is_an_option_with_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[JobPlan, ProfileConfig]] = []

    def keep(plan: JobPlan, profile: ProfileConfig, **options: Any) -> SimpleNamespace:
        seen.append((plan, profile))
        return SimpleNamespace(name=plan.name, warn_once=str, close=lambda: None, in_doubt=False)

    monkeypatch.setattr(open_session, "OwnSession", keep)
    monkeypatch.setattr(open_session, "_open", [])
    given: list[dict[str, Any]] = [{}, {"level": "off"}, {"level": "kernels", "kernel_steps": 7}, {"window_s": 2}]
    for options in given:
        distprof.start(**options)
    expected = [
        {**read_choice("profile", str(options.get("level", "phases"))), **options} for options in given
    ]  # fmt: skip
    assert [profile for _, profile in seen] == [decode(ProfileConfig, keys) for keys in expected]
    assert {plan.hardware for plan, _ in seen} == {HardwareConfig(peak="none")}  # nothing is compared with one
    work = Work(
        parameters=1, model_flops_per_micro_step=1, hardware_flops_per_micro_step=1, analytic_flops_per_micro_step=None
    )
    distprof.start(work=work)
    assert seen[-1][0].hardware == HardwareConfig(**read_choice("hardware", "auto"))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"level": "fazes"}, "level='fazes': expected one of off, phases, kernels, modules"),
        ({"precision": "float32"}, "precision='float32': expected one of fp32, tf32, bf16, fp16, or None"),
        ({"shadow_evry": 3}, "shadow_evry: unknown key; did you mean 'shadow_every'?"),
        ({"warmup": 1}, "warmup: unknown key; did you mean 'warmup_steps'?"),
        ({"shadow_every": 1}, "shadow_every=1: must be 2 or more, or 0 for never"),
        ({"window_s": 0}, "window_s=0.0: must be above 0 and finite"),
        ({"warmup_steps": -1}, "warmup_steps=-1: must be a whole number, 0 or more"),
        ({"warmup_steps": "3"}, "warmup_steps='3': must be a whole number, 0 or more"),
        ({"runs_dir": 5}, "runs_dir=5: expected a path"),
        ({"run_dir": b"x"}, "run_dir=b'x': expected a path, or None"),
        ({"find": "no"}, "find='no': expected True or False"),
        ({"strategy": 3}, "strategy=3: expected a name, or None"),
        ({"work": "gpt2"}, "work='gpt2': expected a distprof.facts.run.Work, or None"),
        ({"peak": "best"}, "peak='best': expected a number or one of auto, measure, none"),
        ({"config": 7}, "config=int: expected a group of keys"),
        ({"name": " "}, "name: empty; give the run a name"),
    ],
)
def test_a_wrong_option_is_one_sentence_at_once(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(sentence)}$"):
        distprof.start(**options)


def test_without_a_process_group_each_process_is_reported_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    with distprof.start("mine", find=False) as profiler:
        assert list(profiler.steps([1, 2])) == [1, 2]
    assert capfd.readouterr().err == ""  # rank 0 says it
    told = find_run(tmp_path, "_mine-rank1").ranks[0]
    assert told.notes[0].startswith("torch.distributed is not initialised at the first step: each process is reported")


def test_a_job_of_warm_up_only_says_how_to_measure_it(capfd: pytest.CaptureFixture[str]) -> None:
    with distprof.start("mine", find=False) as profiler:
        assert list(profiler.steps([1, 2])) == [1, 2]
    said = "distprof: all 2 step(s) were warm-up: distprof.start(warmup_steps=0) measures them"
    assert capfd.readouterr().err.splitlines()[0] == said


def test_a_folder_that_cannot_be_made_costs_the_recording(capfd: pytest.CaptureFixture[str]) -> None:
    with distprof.start("mine", runs_dir="/proc/distprof") as profiler:
        assert list(profiler.steps([1, 2])) == [1, 2]
    assert re.fullmatch(r"distprof: nothing is recorded: .*cannot make the run folder.*\n", capfd.readouterr().err)


def test_a_script_that_fails_before_its_first_step_is_no_fault_of_the_search(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="no data"), distprof.start("mine", find=False):
        raise ValueError("no data")
    said = "distprof: no step was recorded: the script failed before its first one"
    assert capfd.readouterr().err.splitlines() == [said]


def test_a_second_start_ends_the_first(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    first = distprof.start("one", find=False)
    second = distprof.start("two", find=False)
    assert first.closed and not second.closed
    child = os.fork()
    if child == 0:  # it has no session that could be open
        os._exit(len(open_session._open))
    assert os.waitpid(child, 0)[1] == 0
    second.close()
    assert capfd.readouterr().err.splitlines() == [
        "distprof: distprof.start('two'): 'one' is still open, and ends here",
        *["distprof: no step was recorded: use profiler.steps(loader) or profiler.step() in the training loop"] * 2,
    ]


def test_wrappers_are_found_wherever_they_are() -> None:
    plain = nn.Linear(1, 1)
    ddp = object.__new__(DistributedDataParallel)  # needs a process group otherwise
    nn.Module.__init__(ddp)
    compiled = torch.compile(ddp, backend="eager")
    for model in (ddp, compiled, nn.ModuleDict({"a": ddp, "b": plain}), nn.Sequential(nn.Sequential(ddp))):
        assert list_wrapped(model) == [ddp]
        assert describe_strategy(name_strategies([plain, model]), num_ranks=2) == "ddp"
    assert not name_strategies([plain])
    assert (describe_strategy([], num_ranks=1), describe_strategy([], num_ranks=2)) == ("single", None)


def test_without_a_model_the_gpu_that_holds_its_tensors_is_the_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert infer_device([]).type == "cpu"
    for name, value in {"is_initialized": True, "current_device": 1, "device_count": 4}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    used = [0, 0, 0, 0]
    monkeypatch.setattr(torch.cuda, "memory_allocated", used.__getitem__)
    assert infer_device([]) == torch.device("cuda", 1)
    used[3] = 5
    assert infer_device([]) == torch.device("cuda", 3) and infer_device([nn.Linear(1, 1)]).type == "cpu"


def test_an_end_that_fails_is_said_and_reaches_nobody(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise LookupError("a fault inside distprof")

    session = distprof.start("mine", **LONG)
    assert isinstance(session, open_session.OwnSession)
    for _ in session.steps(range(3)):
        pass
    with monkeypatch.context() as patch:
        patch.setattr(Recording, "close", fail)
        session._exit_guard._leave()
        with pytest.raises(AssertionError):  # torch's own: there is no process group
            dist.destroy_process_group()
    said = capfd.readouterr().err.splitlines()
    assert said == ["distprof: the end was not recorded: LookupError: a fault inside distprof"]


def test_ranks_that_never_come_are_named(capfd: pytest.CaptureFixture[str]) -> None:
    session = distprof.start("mine", **LONG)
    assert isinstance(session, open_session.OwnSession)
    session.find_steps()
    session._hear_failure(NotAllHere([1, 3]))
    session.close()
    assert (
        "distprof: nothing is recorded: rank(s) 1, 3 had no first step; waited for them in vain; no launcher started "
        "this process, and ranks that it starts are not watched: use torchrun"
    ) in capfd.readouterr().err.splitlines()


@pytest.mark.parametrize("stays", [True, False])
def test_groups_are_left_at_once_if_the_store_stays(stays: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    session = distprof.start("mine", **LONG)
    assert isinstance(session, open_session.OwnSession)
    for _ in session.steps(range(3)):
        pass
    assert session.job is not None
    waited_s: list[float] = []
    monkeypatch.setattr(session._rendezvous, "outlives_groups", stays)
    monkeypatch.setattr(session.job, "wait", waited_s.append)
    session._leave_groups()
    assert waited_s == [0.0 if stays else open_session.JOIN_WAIT_S]
    session.close()


def train_compiled() -> list[float]:
    """The losses of the two ways to compile a model of DDP."""
    losses = []
    for wrap in (lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
                 lambda model: DistributedDataParallel(torch.compile(model, backend="eager"))):  # fmt: skip
        torch.manual_seed(0)
        model = wrap(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_fault_41_compiled_models_of_ddp_train_under_start_as_without(tmp_path: Path) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        plain = train_compiled()
        torch._dynamo.reset()
        profiler = distprof.start(run_dir=str(tmp_path / "run"), **LONG)
        profiler.find_steps()
        assert train_compiled() == plain
        profiler.close()
    finally:
        dist.destroy_process_group()
    run = read_run(tmp_path / "run")
    assert run.column("step").shape == (1, 6) and (run.column("all_reduce_count")[:, 1:] > 0).all()


def test_a_folder_is_meant_from_where_the_session_was_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profiler = distprof.start(runs_dir="here", **LONG)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for _ in profiler.steps(range(3)):
        pass
    profiler.close()
    assert len([*(tmp_path / "here").iterdir()]) == 1 and not [*(tmp_path / "elsewhere").iterdir()]
