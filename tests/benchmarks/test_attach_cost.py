"""What attach takes of a step, as its benchmarks judge it."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import attach_cost, attach_cost_steps
from distprof.cli.bench.comparison import compare_runs
from distprof.errors import EXIT_FAILED, EXIT_OK, DistprofError

US, MS = 1e3, 1e6


def make_taken(step_us: float) -> dict[str, list[dict[str, float]]]:
    """Three rounds: the second is disturbed; a module costs 0.5 us, a change of phase 2 us."""
    cost_us = {"a step": step_us, "with 101 modules": step_us + 50, "with 9 micro-steps": step_us + 96}
    plain = dict.fromkeys(cost_us, 1000 * US)
    attached = {case: (1000 + more_us) * US for case, more_us in cost_us.items()}
    slow = dict.fromkeys(cost_us, 9000 * US)
    return {
        attach_cost.PLAIN: [plain, slow, plain], attach_cost.ATTACHED: [attached, slow, attached],
        attach_cost.AGAIN: [slow, plain, plain],
    }  # fmt: skip


@pytest.mark.parametrize(("step_us", "code", "verdict"), [(60, EXIT_OK, "within"), (130, EXIT_FAILED, "above")])
def test_the_fastest_blocks_are_compared(
    capsys: pytest.CaptureFixture[str], step_us: float, code: int, verdict: str
) -> None:
    assert attach_cost._show(make_taken(step_us)) == code
    said = capsys.readouterr().out
    assert "a further module: 0.50 us; a change of phase: 2.0 us" in said
    assert f"a step: {step_us} us, 0.{step_us:03} % of 100 ms: {verdict} the limit of 100 us".replace(" %", "%") in said


@pytest.mark.parametrize(
    ("attached_ms", "verdict"),
    [((20.2, 20.4, 20.3), "within"), ((23, 23.2, 23.1), "above"), ((19, 24, 21), "too noisy to tell from")],
)
def test_steps_are_judged_by_the_upper_end_of_the_interval(
    capsys: pytest.CaptureFixture[str], attached_ms: tuple[float, ...], verdict: str
) -> None:
    times = {"plain": (20, 20, 20), "attached": attached_ms, "plain again (A/A)": (20, 20.1, 20)}
    found = compare_runs({name: [value * MS for value in values] for name, values in times.items()}, bare="plain")
    others_ns = dict(zip(times, (300e3, 512e3, 310e3), strict=True))
    assert attach_cost_steps._show("ddp", found, others_ns) == (verdict == "within")
    said = capsys.readouterr().out
    assert f": {verdict} the limit of 1%; and +212 us of processor time in other threads" in said
    if verdict == "within":
        assert "ddp: attach adds +300 us to a step (" in said and "), 0.30% of 100 ms (" in said


def test_steps_are_compared_with_their_neighbours() -> None:
    """The machine is twice as slow in every third turn, and once stands still; attach adds a tenth."""
    turn = attach_cost_steps.TURN_STEPS
    slow = range(attach_cost_steps.LEFT_OUT)
    plain = [7e9 if at % turn in slow else 100.0 if at // turn % 3 else 200.0 for at in range(5 * turn)]
    plain[turn + attach_cost_steps.LEFT_OUT + 1] = 9e9
    attached = [1.1 * value for value in plain]
    found = attach_cost_steps.summarise({"plain": plain, "attached": attached, "plain again (A/A)": plain})
    assert found["attached"] == pytest.approx(1.1 * found["plain"])
    assert found["plain again (A/A)"] == found["plain"] == pytest.approx(100.0)


@pytest.mark.parametrize("failing", ["", "b"])
def test_runs_take_turns_and_end_together_and_one_that_fails_ends_it(tmp_path: Path, failing: str) -> None:
    steps = attach_cost_steps.TURN_STEPS + 1
    log: list[str] = []
    pipes = {name: attach_cost_steps.make_pipes(tmp_path / name, 1) for name in "ab"}

    def run(name: str) -> None:
        go, done = (os.open(tmp_path / f"{name}.0.{end}", os.O_RDWR) for end in ("go", "done"))
        for _ in range(steps):
            os.read(go, 1)
            log.append(name)
            if len(log) > 2 * steps - 2 and name == failing:
                raise DistprofError("a step failed")
            os.write(done, b"x")
        os.read(go, 1)
        log.append("end")

    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as raises:
        if failing:
            raises.enter_context(pytest.raises(DistprofError, match="a step failed"))
        attach_cost_steps.take_turns(pipes, steps, [pool.submit(run, name) for name in "ab"])
    turns = "".join(log[: 2 * steps - 2])
    assert turns in ("a" * (steps - 1) + "b" * (steps - 1), "b" * (steps - 1) + "a" * (steps - 1))
    assert sorted(log[2 * steps - 2 :]) == ["a", "b", *["end"] * (1 if failing else 2)]
