"""``python -m benchmarks cost``: what is counted, what is concluded, and its exit code; nothing here depends on a
time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.recording import cost_command, wrapper_cost
from benchmarks.recording.paired import AddedTime, compare_pairs
from benchmarks.recording.recording_cost import (
    BUCKETS,
    PHASES,
    SHARDS,
    RecordingCost,
    StepCost,
    find_mean_ns,
    find_stride,
    measure_recording_cost,
)
from benchmarks.recording.wrapper_cost import WrapperCost
from distprof.record.step.collective_log import FIRST_STEPS, sees_ends
from distprof.record.step.recorder import Recorder

US = 1_000


def make_added(microseconds: float) -> AddedTime:
    return AddedTime(middle_ns=microseconds * US, low_ns=(microseconds - 2) * US, high_ns=(microseconds + 2) * US)


def make_wrapped(**microseconds: float) -> dict[str, WrapperCost]:
    return {
        name: WrapperCost(
            step_ns=1000 * US,
            added=make_added(value + 60),
            training=make_added(value / 2),
            skipped=make_added(value - 20),
            stride=4,
            background_ns=30 * US,
        )
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
    monkeypatch.setattr(cost_command, "measure_wrappers", lambda turns: make_wrapped(ddp=98, fsdp=248))
    assert main(["cost", "--json", str(tmp_path / "a.json")]) == code
    shown = capsys.readouterr().out
    every = find_stride(cost.fsdp, cost.fsdp_timed, SHARDS)
    assert (
        f"FSDP2, {SHARDS} gathers and scatters, timed in every {every} steps: 0.{'15' if code == 0 else '32'} %"
        in shown
    )
    assert f"of 100 ms, {verdict} the limit of 0.30 %" in shown.splitlines()[-2]
    assert all(len(line) <= 80 for line in shown.splitlines()[:12])
    assert json.loads((tmp_path / "a.json").read_text())["fsdp"]["fastest_ns"] == fsdp * US


@pytest.mark.parametrize(
    ("ddp", "fsdp", "verdicts"),
    [
        (98, 248, ["within", "within"]),
        (102.1, 248, ["above", "within"]),
        (98, 252.1, ["within", "above"]),
        (99, 251, ["undecided by", "undecided by"]),
    ],
)
def test_real_steps_are_held_to_their_own_limits_by_the_whole_interval(
    ddp: float, fsdp: float, verdicts: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost_command, "measure_recording_cost", lambda rounds: make_cost())
    monkeypatch.setattr(cost_command, "measure_wrappers", lambda turns: make_wrapped(ddp=ddp, fsdp=fsdp))
    assert main(["cost"]) == int("above" in verdicts)
    lines = [line for line in capsys.readouterr().out.splitlines() if "with everything around torch" in line]
    for line, name, value, limit, verdict in zip(
        lines, ("DDP, 13 buckets", "FSDP2, 14 units"), (ddp, fsdp), (100, 250), verdicts, strict=True
    ):
        shown = f"{value:.1f} ({value - 2:.1f} to {value + 2:.1f}) on average, {verdict} the limit of {limit:.1f}. "
        assert line.startswith(f"{name}, with everything around torch, us of processor time a step: recorded ")
        assert "of such steps one burst of steps in 4 is recorded" in line and shown in line


def test_a_pair_that_something_else_disturbs_does_not_count() -> None:
    without_ns = [float(value) for value in range(100, 140)]
    with_ns = [value + 50 + (1 if value % 2 else -1) for value in without_ns]
    quiet = compare_pairs(without_ns, with_ns)
    disturbed = compare_pairs(without_ns, [*with_ns[:-4], *(value + 1e6 for value in with_ns[-4:])])
    assert quiet.low_ns < quiet.middle_ns == 50 < quiet.high_ns < 51
    assert disturbed.middle_ns == pytest.approx(50, abs=0.5) and disturbed.high_ns < 51.5
    assert compare_pairs([1.0] * 9, [2.0] * 9).judge(1e9) == "undecided"


def test_in_one_step_of_a_block_the_buckets_are_seen_to_end() -> None:
    begins = range(FIRST_STEPS, FIRST_STEPS + 100)
    blocks = [range(begin, begin + wrapper_cost.TIMED["ddp"]) for begin in begins]
    assert {sum(sees_ends(step, wrapper_cost.BUCKETS) for step in block) for block in blocks} == {1}


@pytest.mark.sharding
@pytest.mark.parametrize(("kind", "issued"), [("ddp", 13), ("fsdp", 41)])
def test_the_steps_have_a_bucket_for_each_weight_and_three_collectives_for_each_unit(kind: str, issued: int) -> None:
    """The last unit stays gathered for its backward."""
    model, recorder = getattr(wrapper_cost, f"make_{kind}")(), Recorder()
    try:
        cost = wrapper_cost.measure_model(model, turns=1, timed=2)
        undo = wrapper_cost.watch(model, recorder)
        wrapper_cost.make_recorded(recorder, model)(0)
        undo()
    finally:
        torch.distributed.destroy_process_group()
    (record,) = recorder.drain()
    assert record.collectives is not None and len(record.collectives) == issued
    assert cost.step_ns > cost.background_ns > 0 and cost.added.judge(1e9) == "undecided"


@pytest.mark.parametrize("name", ["rounds", "turns"])
def test_slips_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cost", f"--{name}", "0"]) == 2
    assert f"--{name} 0: must be 1 or more" in capsys.readouterr().err
