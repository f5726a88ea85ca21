"""Whether every other step is only half of one, because `profiler.step` is called twice in an iteration."""

from __future__ import annotations

from collections.abc import Iterable

from distprof.facts.run import PHASE_CODE, Phase

LOOKED_AT = 32
"""Steps, the first ones."""
ENOUGH = 5
"""Steps of either half."""
_NEEDED = {PHASE_CODE[phase]: phase for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)}


class HalfSteps:
    """Looks at the phases of a job's first steps."""

    def __init__(self) -> None:
        """Has seen no step."""
        self._seen: tuple[list[frozenset[int]], list[frozenset[int]]] = ([], [])

    def look(self, number: int, codes: Iterable[int]) -> str | None:
        """The sentence for the user, as soon as it is certain. None: not so far.

        Args:
            number: Of the step.
            codes: Of the phases in it.
        """
        self._seen[number % 2].append(frozenset(codes))
        if min(map(len, self._seen)) < ENOUGH:
            return None
        for code, phase in _NEEDED.items():
            held = [{code in phases for phases in half} for half in self._seen]
            if held in ([{True}, {False}], [{False}, {True}]):
                return (
                    f"every other step has no {phase}: profiler.step() seems to be called twice in an iteration; call "
                    "it once for each step of the optimizer"
                )
        return None
