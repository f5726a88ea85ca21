"""profiler.step() called twice in an iteration is said; alternating optimizers and accumulation in one step are not."""

from __future__ import annotations

import pytest

from tests.profiler.session.session_case import Case


def run(*steps: tuple[str, ...], times: int = 8, bare: bool = True) -> list[str]:
    """So many iterations of steps with these phases; what the user is told."""
    case = Case()
    for _ in range(times):
        for phases in steps:
            if bare:
                case.session.step()
                mark(case, phases)
            else:
                with case.session.step():
                    mark(case, phases)
    case.session.close()
    return [text for text in case.said if "twice in an iteration" in text]


def mark(case: Case, phases: tuple[str, ...]) -> None:
    for phase in phases:
        with case.session.phase(phase):
            case.clock.advance(10)


WHOLE = ("forward", "backward", "optimizer")


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize(
    ("halves", "missing"),
    [((("forward", "backward"), ("optimizer",)), "no forward"), ((WHOLE, ()), "no forward"),
     ((("forward", "backward"), WHOLE), "no optimizer")],
)  # fmt: skip
def test_two_steps_of_an_iteration_are_said_once(halves: tuple[tuple[str, ...], ...], missing: str, bare: bool) -> None:
    (said,) = run(*halves, bare=bare)
    assert missing in said


@pytest.mark.parametrize("steps", [(WHOLE,), (WHOLE, ("forward", "data", "backward", "optimizer")), ((), ())])
def test_whole_steps_and_steps_without_phases_are_not(steps: tuple[tuple[str, ...], ...]) -> None:
    assert run(*steps) == [] == run(*steps, bare=False)


def test_a_few_steps_are_not_enough() -> None:
    assert run(WHOLE, (), times=4) == []
    assert run(WHOLE, WHOLE, WHOLE, (), times=4) == []
