"""Which phase does a range in a user's program represent? Decided by its name, or as the user says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from msgspec import Struct

from distprof.facts.range_names import OWN_DOMAIN, OWN_PREFIX
from distprof.facts.run import PHASE_CODE, Phase

_USUAL: Mapping[Phase, str] = {
    Phase.DATA: r"enumerate dataloader .* next|data ?load(ing|er)?|load ?(data|batch)|(get|next|fetch) ?batch|data",
    Phase.FORWARD: r"(.*(dataparallel|fsdp)\.)?forward( pass)?|fwd( pass)?",
    Phase.BACKWARD: r"(loss\.)?backward( pass)?|bwd( pass)?",
    Phase.ALL_GATHER: r"(param(eter)?s? )?all ?gather",
    Phase.ALL_REDUCE: r"((grad(ient)?s? )?(all ?reduce|reduce ?scatter))|grad(ient)?s? (sync|synchroni[sz]ation)",
    Phase.GRAD_NORM: r"(clip )?grad(ient)?s? norm( clip(ping)?)?|(grad(ient)?s? )?clip(ping)?",
    Phase.OPTIMIZER: r"optimi[sz]er( step| zero grad)?|optim( step)?|optimizer\.(step|zero grad) .*|opt( step)?",
}
_PATTERNS = {phase: re.compile(pattern) for phase, pattern in _USUAL.items()}
_STEP = re.compile(r"profilerstep (\d+)|((profiled|train(ing)?) )?(step|iter(ation)?)( (\d+))?")
_WARMUP = re.compile(r"warm ?up( .*)?|.* warm ?up")
NO_STEP = -2
LONGEST_NAME = 200
"""Longer names are code or data, not labels."""


class NameMap(Struct, frozen=True, kw_only=True):
    """What names represent. Patterns are globs; the user's take precedence over the usual names."""

    phases: Sequence[tuple[Phase, str]] = ()
    """Phase, and a glob of the range's whole name."""
    step: str | None = None
    """A glob of the ranges that are steps. None: use the usual names."""

    def match_phase(self, domain: str, name: str) -> int:
        """The code of the phase that a range represents; -1: none."""
        for phase, pattern in self.phases:
            if fnmatchcase(name, pattern):
                return PHASE_CODE[phase]
        if domain == OWN_DOMAIN or name.startswith(OWN_PREFIX):
            own = name.removeprefix(OWN_PREFIX)
            return PHASE_CODE[Phase(own)] if own in set(Phase) else -1
        plain = _simplify(name)
        return next((PHASE_CODE[phase] for phase, pattern in _PATTERNS.items() if pattern.fullmatch(plain)), -1)

    def match_step(self, domain: str, name: str) -> int:
        """The number in the name of a step's range, -1 if it has none; `NO_STEP`: the range is not a step."""
        if self.step is not None:
            digits = re.findall(r"\d+", name)
            return (int(digits[-1][:18]) if digits else -1) if fnmatchcase(name, self.step) else NO_STEP
        if domain == OWN_DOMAIN:
            return -1 if name == "step" else NO_STEP
        found = _STEP.fullmatch(_simplify(name))
        if found is None:
            return NO_STEP
        number = found[1] or found[8]
        return int(number[:18]) if number else -1


USUAL_NAMES = NameMap()


def is_warmup(name: str) -> bool:
    """Whether the range's name says that its contents are warm-up."""
    return bool(_WARMUP.fullmatch(_simplify(name)))


def _simplify(name: str) -> str:
    """Lower case, words separated by single blanks: ``## Backward_Pass ##`` becomes ``backward pass``."""
    return " ".join(re.sub(r"[^a-z0-9.]+", " ", name[:LONGEST_NAME].lower()).split())
