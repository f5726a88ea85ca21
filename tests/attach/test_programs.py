"""Programs that know nothing of distprof, on two ranks: their output is the same, their steps and phases are found."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch.distributed._functional_collectives as functional
from msgspec import Struct, field

from distprof.analyze import analyze
from distprof.facts.plain import make_plain
from distprof.facts.run import PHASES, Run
from distprof.record.step.recorder import Recorder
from distprof.traces.load_run import load_run
from tests.conftest import find_missing_sharding
from tests.faults.forked import make_rank, run
from tests.forked_ranks import fork_alone
from tests.ranks import find_ports


class Watched(Struct, frozen=True, kw_only=True):
    """One program, and what is to be found in it."""

    program: str
    steps: int | None
    """None: nothing is recorded."""
    phases: str
    """Those that take time in measured steps, without the remainder."""
    stretches: str = ""
    arguments: tuple[str, ...] = ()
    environment: dict[str, dict[str, str]] = field(default_factory=dict)
    broken: tuple[str, ...] = ()
    """What of distprof raises at every call; see `tests.attach.broken`."""
    alone: bool = False
    other_torch: bool = False
    """With a torch that differs from this one; see `tests.attach.other_torch`."""


STRETCHES = ("evaluation", "checkpoint", "logging")
DDP = "data forward backward all_reduce optimizer"
ALONE = "data forward backward optimizer"
SEARCH, RECORDER, WATCH, OPTIMIZERS = (
    "observe.step_search:StepSearch", "record.step.recorder:Recorder",
    "record.collectives.collective_watch:CollectiveWatch", "observe.optimizers:Optimizers",
)  # fmt: skip
EVERYWHERE = (
    *(f"{RECORDER}.{name}" for name in vars(Recorder) if not name.startswith("__")),
    *(f"{WATCH}.{name}" for name in ("issue", "follow", "issue_bucket", "look_up_code", "ends_on_device")),
    *(f"record.gather.step_writer:StepWriter.{name}" for name in ("take", "take_rest", "note", "end", "save_state")),
    *(f"{SEARCH}.{name}" for name in ("begin_forward", "end_optimizer", "change_mode", "begin_save", "finish")),
    "profiler.rank.recorded_steps:ShadowPlan.is_shadow", "analyze.make_report:analyze",
)  # fmt: skip
RUNS = {
    "plain_ddp": Watched(program="plain_ddp", steps=16, phases=DDP),
    "slow_disk": Watched(program="plain_ddp", steps=32, phases=DDP, arguments=("--epochs", "4"),
                         environment={"1": {"DISK_MS": "10"}}),
    "fsdp2": Watched(program="fsdp2", steps=12, phases="forward backward all_gather all_reduce grad_norm optimizer"),
    "fsdp1": Watched(program="fsdp1", steps=12, phases=f"{ALONE} grad_norm"),
    "zero": Watched(program="zero", steps=12, phases=DDP),
    "by_hand": Watched(program="by_hand", steps=11, phases="data forward backward all_reduce"),
    "accumulation": Watched(program="accumulation", steps=10, phases=f"{DDP} grad_norm"),
    "gan": Watched(program="gan", steps=28, phases=DDP),
    **{
        f"local_sgd_{how}": Watched(program="local_sgd", steps=52, phases="forward backward optimizer",
                                    arguments=("--how", how))
        for how in ("loop", "averager", "accelerate")
    },
    "functions_seen": Watched(program="functions_seen", steps=10, phases=f"{DDP} grad_norm"),
    "scripted": Watched(program="scripted", steps=12, phases="forward backward all_reduce optimizer"),
    "lbfgs": Watched(program="lbfgs", steps=10, phases="forward backward optimizer"),
    "inference": Watched(program="inference", steps=10 - 2, phases="data forward"),
    "nanogpt": Watched(program="nanogpt", steps=12, phases="forward backward all_reduce grad_norm optimizer",
                       stretches="evaluation checkpoint"),
    "evaluates": Watched(program="evaluates", steps=16, phases=DDP, stretches="evaluation checkpoint"),
    "no_loader": Watched(program="no_loader", steps=15, phases="forward backward grad_norm optimizer"),
    "broken": Watched(program="plain_ddp", steps=16, phases="data optimizer",
                      broken=(f"{SEARCH}.begin_forward", f"{SEARCH}.begin_backward")),
    "broken_hooks": Watched(program="plain_ddp", steps=15, phases="data forward backward all_reduce",
                            broken=(f"{OPTIMIZERS}._before", f"{OPTIMIZERS}._after")),
    "broken_border": Watched(program="no_loader", steps=None, phases="",
                             broken=("observe.instrumentation:ReentrancyGuard.admits",)),
    "broken_bucket": Watched(program="plain_ddp", steps=16, phases=ALONE, broken=(f"{WATCH}.look_up_code",)),
    "broken_collective": Watched(program="no_loader", steps=15, phases="forward backward grad_norm optimizer",
                                 broken=(f"{RECORDER}.resume", f"{WATCH}.issue")),
    "broken_unit": Watched(program="fsdp2", steps=12, phases="forward backward grad_norm optimizer",
                           broken=(f"{RECORDER}.begin_collective",)),
    "broken_start": Watched(program="no_loader", steps=None, phases="",
                            broken=("profiler.rank.build_profiler:Job._open_rank_zero",)),
    "broken_everywhere": Watched(program="nanogpt", steps=None, phases="", broken=EVERYWHERE),
    "other_torch": Watched(program="plain_ddp", steps=16, phases=DDP, other_torch=True),
    "other_group": Watched(program="plain_ddp", steps=16, phases=ALONE,
                           broken=("record.collectives.ddp:_WatchedGroup.__init__",)),
    "alone": Watched(program="alone", steps=12, phases=ALONE, alone=True),
    "fails": Watched(program="alone", steps=12, phases=ALONE, alone=True, arguments=("fail",)),
    "exits": Watched(program="alone", steps=12, phases=ALONE, alone=True, arguments=("7",)),
}  # fmt: skip


NOT_ON_2_6 = ("fsdp2", "evaluates")
"""Programs that torch 2.6 cannot run here: it has no FSDP2 on a CPU, and hangs after distributed checkpoints, without
distprof too, when the group is destroyed."""


class Ended(NamedTuple):
    """What the ranks have written, and where."""

    folder: Path
    ranks: list[dict[str, Any]]

    def read(self, name: str) -> Run:
        """The run folder of a program."""
        return load_run(self.folder / name)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("programs")
    ports = iter(find_ports(2 * len(RUNS) + 1))
    plan = {
        name: make_plain(run) | {
            "ports": [next(ports), next(ports)],
            "overrides": [f"run_dir={folder / name}", "profile.shadow_every=0", "warmup_steps=1"],
        }
        for name, run in RUNS.items()
        if run.program not in NOT_ON_2_6 or find_missing_sharding() is None
    }  # fmt: skip
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    before = "from tests.attach.driver import main; raise SystemExit(main())"
    port = next(ports)
    done = run(*(make_rank(rank, 2, port, ["plan.json"], before=before) for rank in (0, 1)), cwd=folder)
    assert [each.code for each in done] == [0, 0], [each.err for each in done]
    return Ended(folder, [json.loads((folder / f"{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)])


pytestmark = [pytest.mark.slow, pytest.mark.first]
NAMES = [pytest.param(name, marks=[pytest.mark.sharding] * (run.program in NOT_ON_2_6)) for name, run in RUNS.items()]


@pytest.mark.parametrize("name", NAMES)
def test_the_script_does_not_notice(ended: Ended, name: str) -> None:
    for rank in ended.ranks:
        assert rank[name]["plain"]["out"], "nothing to compare"
        assert rank[name]["watched"] == rank[name]["plain"]
        assert rank[name]["put_back"]


@pytest.mark.parametrize("name", NAMES)
def test_steps_and_phases_are_found(ended: Ended, name: str) -> None:
    expected = RUNS[name]
    if expected.steps is None:
        assert not (ended.folder / name / "report.json").exists()
        return
    run = ended.read(name)
    assert run.column("step").shape == (1 if expected.alone else 2, expected.steps)
    assert not np.nansum(run.column("failed"))
    measured = run.column("warmup") == 0
    stretches = {name for name in STRETCHES if np.nansum(run.column(f"{name}_host_ns")[measured]) > 0}
    assert stretches == set(expected.stretches.split())
    found = {str(phase) for phase in PHASES if np.nansum(run.column(f"{phase}_host_ns")[measured]) > 0}
    assert found - {"other"} == set(expected.phases.split())


def test_a_slow_dataset_is_named(ended: Ended) -> None:
    verdict = analyze(ended.read("slow_disk")).verdict
    assert verdict is not None
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.cause) == ("slow_rank", 1, "data", "input")


@pytest.mark.sharding
def test_what_failed_is_missing_and_the_report_says_so(ended: Ended) -> None:
    notes = analyze(ended.read("broken")).coverage.notes
    for part in ("forward", "backward"):
        assert f"{part} is not recognised from some step on: LookupError: a fault inside distprof" in notes
    notes = analyze(ended.read("broken_hooks")).coverage.notes
    assert "optimizer steps are not recognised from some step on: LookupError: a fault inside distprof" in notes
    for name in ("broken_bucket", "broken_collective", "broken_unit"):
        notes = analyze(ended.read(name)).coverage.notes
        assert "collectives are not recorded from step 0 on: LookupError: a fault inside distprof" in notes
    assert not [note for note in analyze(ended.read("plain_ddp")).coverage.notes if "recognised" in note]


def test_fault_42_what_differs_in_torch_is_not_recorded_and_said_once(ended: Ended) -> None:
    """The script does not notice, and the rest is recorded: the tests above."""
    notes = analyze(ended.read("other_torch")).coverage.notes
    assert sorted(note for note in notes if "this torch" in note) == [
        "all_reduce is not recorded: torch.distributed.all_reduce of this torch takes no `group` as its argument 3",
        "backward is not recognised everywhere: torch.autograd.grad of this torch takes no `inputs` as its argument 2",
        "communication hooks are not recorded: this torch has no DistributedDataParallel._check_comm_hook",
        f"functional collectives are not recorded: this torch has no {functional.__name__}.wait_tensor",
        "gradient clipping is not recognised everywhere: this torch has no FullyShardedDataParallel.clip_grad_norm_",
    ]
    (note,) = [note for note in analyze(ended.read("other_group")).coverage.notes if "DDP" in note]
    assert note == "DDP's reductions, which count as backward, are not recorded: LookupError: a fault inside distprof"
    shown = re.sub(
        r"\s+", " ", fork_alone(["report", "--details", str(ended.folder / "other_torch")], ended.folder).stdout
    )
    assert all(shown.count(note) == 1 for note in notes[:3])


def test_waits_for_an_optimizer_that_shards_its_state_are_seen_in_its_step(ended: Ended) -> None:
    run = ended.read("zero")
    measured = run.column("warmup") == 0
    assert (run.column("other_count")[measured] == 4).all(), "each parameter is sent by the rank that updates it"
    assert (run.column("other_exposed_host_ns")[measured] > 0).all()


@pytest.mark.parametrize("how", ["loop", "averager", "accelerate"])
def test_ranks_that_average_parameters_after_every_fourth_step_are_compared_in_rounds(ended: Ended, how: str) -> None:
    """Their collectives lie between steps, and are where the ranks meet."""
    report = analyze(ended.read(f"local_sgd_{how}"))
    assert any("rounds of 4 steps, from one meeting of" in line for line in report.coverage.sources)
    assert report.causes is not None and not any("no collective" in note for note in report.coverage.notes)


def test_only_gradients_count_as_their_synchronisation(ended: Ended) -> None:
    """The reduction of the loss after them is no part of it."""
    run = ended.read("by_hand")
    measured = run.column("warmup") == 0
    assert (run.column("all_reduce_count")[measured] == 5).all()
    assert [note for note in analyze(run).coverage.notes if note.startswith("an optimizer was made")]


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        ("plain_ddp", "ddp"), pytest.param("fsdp2", "fsdp", marks=pytest.mark.sharding), ("fsdp1", "fsdp1"),
        ("alone", "single"),
    ],
)  # fmt: skip
def test_the_strategy_is_told_by_the_models(ended: Ended, name: str, strategy: str) -> None:
    assert ended.read(name).meta.strategy == strategy


def test_autocast_is_seen_without_a_hook_in_the_model(ended: Ended) -> None:
    found = {name: ended.read(name).meta.precision for name in ("plain_ddp", "accumulation")}
    assert found == {"plain_ddp": "fp32", "accumulation": "bf16"}
