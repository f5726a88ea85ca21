"""DeepSpeed's engine: a model that updates its parameters by itself.

Its forward, backward, collectives and batches are torch's own, and found like those of any other loop. What it does at
the end of a step, with optimizers that need not be torch's or are stepped once per group of parameters, is one
optimizer step.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from distprof.facts.run import PHASE_CODE, Phase
from distprof.observe.on_import import after_import
from distprof.observe.parts import Arguments, Gate, Options, Patches, Recognition, surround
from distprof.observe.reporting import Reporting
from distprof.observe.step_search import StepSearch

_MODULE = "deepspeed.runtime.engine"
_UPDATE = "_take_model_step"  # called by `step` when gradients are complete, and by the engine of a pipeline
_OPTIMIZER = PHASE_CODE[Phase.OPTIMIZER]


def find_optimizer(engine: Any) -> Any:
    """The optimizer inside an engine, whether the script or the engine has made it, without what ZeRO wraps it in."""
    return getattr(engine, "basic_optimizer", None) or getattr(engine, "optimizer", None)


class Engines:
    """Recognises the updates that an engine makes, as soon as the script imports DeepSpeed."""

    def __init__(self, session: Reporting, search: StepSearch, gate: Gate) -> None:
        """Looks at nothing yet."""
        self._session, self._search, self._gate = session, search, gate
        self._part = Recognition("DeepSpeed's steps are", session)

    def install(self, patches: Patches) -> None:
        """Looks at all engines from now on."""
        patches.add(after_import(_MODULE, lambda: self._install(patches)))

    def _install(self, patches: Patches) -> None:
        module = sys.modules[_MODULE]
        engine = getattr(module, "DeepSpeedEngine", module)
        self._part.replace(patches, [engine], _UPDATE, self._watch_update)

    def _watch_update(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def before(args: Arguments, options: Options) -> bool:
            return self._search.begin_optimizer() and self._session.enter(_OPTIMIZER)

        def after(args: Arguments, result: Any) -> None:
            self._search.end_optimizer(find_optimizer(args[0]))

        return surround(
            original, self._gate, self._part, before=before, after=after, leave=self._session.exit, trains=True
        )
