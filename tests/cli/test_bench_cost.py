"""``distprof bench cost``: what is counted, what is concluded, and its exit code; nothing here depends on a time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from distprof.cli.bench import cost_command, wrapper_cost
from distprof.cli.bench.recording_cost import (
    BUCKETS,
    PHASES,
    SHARDS,
    RecordingCost,
    StepCost,
    find_mean_ns,
    find_stride,
    measure_recording_cost,
)
from distprof.cli.bench.wrapper_cost import WrapperCost
from distprof.cli.parser import run_verb
from distprof.record.recorder import Recorder
from distprof.world import World
from tests.ranks import call_on_ranks

US = 1_000


def make_wrapped(**microseconds: float) -> dict[str, WrapperCost]:
    return {
        name: WrapperCost(step_ns=1000 * US, training_ns=value * US, background_ns=30 * US)
        for name, value in microseconds.items()
    }


def make_cost(**microseconds: float) -> RecordingCost:
    usual = {
        "step": 10,
        "phases": 20,
        "ddp": 30,
        "ddp_timed": 59,
        "fsdp": 120,
        "fsdp_timed": 220,
        "fsdp_wrapped": 298,
    } | microseconds
    steps = {
        name: StepCost(name=name, fastest_ns=value * US, median_ns=2 * value * US, events=7)
        for name, value in usual.items()
    }
    return RecordingCost(**steps, background_ns=50 * US)


def test_the_steps_have_the_events_that_a_training_step_has() -> None:
    cost = measure_recording_cost(rounds=2)
    step, phases = 2, 2 * len(PHASES)
    assert (cost.step.events, cost.phases.events) == (step, step + phases)
    assert cost.ddp.events == step + phases + BUCKETS  # where the wait for a bucket begins, which may be the last
    assert cost.ddp_timed.events == cost.ddp.events + 2 * BUCKETS == 51
    assert cost.fsdp.events == step + phases + 2 * SHARDS  # a wait has two borders
    assert cost.fsdp_timed.events == cost.fsdp.events + 78 == cost.fsdp_wrapped.events
    assert cost.background_ns > 0 and min(cost.step.fastest_ns, cost.fsdp_timed.median_ns) > 0


def test_what_one_costs_is_the_difference_and_what_a_step_costs_the_mean_at_the_recorders_stride() -> None:
    cost = make_cost()
    assert cost.phase_ns == 10 * US / len(PHASES) and cost.bucket_ns == 39 * US / BUCKETS
    assert cost.shard_ns == pytest.approx(200 * US / SHARDS) and cost.wrapper_ns == 2 * US
    dear = make_cost(ddp_timed=30 + 1200)  # 1.2 % of 100 ms, of which a quarter is allowed
    every = find_stride(dear.ddp, dear.ddp_timed, BUCKETS)
    assert every == 4 and find_mean_ns(dear.ddp, dear.ddp_timed, every) == 330 * US


@pytest.mark.parametrize(("fsdp", "code", "verdict"), [(128, 0, "within"), (290, 1, "above")])
def test_the_command_says_what_it_costs_and_whether_that_is_too_much(
    fsdp: float, code: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    cost = make_cost(fsdp=fsdp, fsdp_timed=fsdp + 100)
    monkeypatch.setattr(cost_command, "measure_recording_cost", lambda rounds: cost)
    monkeypatch.setattr(cost_command, "measure_wrappers", lambda turns: make_wrapped(ddp=99, fsdp=249))
    assert run_verb(["bench", "cost", "--json", str(tmp_path / "a.json")]) == code
    shown = capsys.readouterr().out
    every = find_stride(cost.fsdp, cost.fsdp_timed, SHARDS)
    assert (
        f"FSDP2, {SHARDS} gathers and scatters, timed in every {every} steps: 0.{'15' if code == 0 else '32'} %"
        in shown
    )
    assert f"of 100 ms, {verdict} the limit of 0.30 %" in shown.splitlines()[-2]
    assert all(len(line) <= 80 for line in shown.splitlines()[:12])
    assert json.loads((tmp_path / "a.json").read_text())["fsdp"]["fastest_ns"] == fsdp * US


@pytest.mark.parametrize(("ddp", "fsdp", "code"), [(99, 249, 0), (101, 249, 1), (99, 251, 1)])
def test_real_steps_are_held_to_their_own_limits(
    ddp: float, fsdp: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost_command, "measure_recording_cost", lambda rounds: make_cost())
    monkeypatch.setattr(cost_command, "measure_wrappers", lambda turns: make_wrapped(ddp=ddp, fsdp=fsdp))
    assert run_verb(["bench", "cost"]) == code
    shown = capsys.readouterr().out
    assert f"DDP, 13 buckets, with everything around torch: {ddp:.1f} us of process time a step, " in shown
    assert f"FSDP2, 14 units, with everything around torch: {fsdp:.1f} us of process time a step, " in shown
    assert shown.count("above the limit") == code


def measure_a_little(world: World, folder: str) -> None:
    for make, issued in ((wrapper_cost._make_ddp, 13), (wrapper_cost._make_fsdp, 41)):
        model, recorder = make(), Recorder()
        step_ns, _, packed_ns = wrapper_cost._measure_model(model, turns=1)
        undo = wrapper_cost._watch(model, recorder)
        wrapper_cost._record_step(recorder, model, torch.ones(4, wrapper_cost.WIDTH), 0)
        undo()
        (record,) = recorder.drain()
        assert record.collectives is not None and len(record.collectives) == issued
        assert step_ns > packed_ns > 0


@pytest.mark.slow
@pytest.mark.sharding
def test_the_steps_have_a_bucket_for_each_weight_and_three_collectives_for_each_unit(tmp_path: Path) -> None:
    """The last unit stays gathered for its backward."""
    call_on_ranks(2, measure_a_little, str(tmp_path), tmp_path=tmp_path)


@pytest.mark.parametrize("name", ["rounds", "turns"])
def test_slips_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb(["bench", "cost", f"--{name}", "0"]) == 2
    assert f"--{name} 0: must be 1 or more" in capsys.readouterr().err
