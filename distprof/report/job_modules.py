"""What the modules of a job's model hold, compute and take, with the ranks side by side.

Times are of a step: of all its micro-steps. They come from a few steps of their own, which count in nothing else.
"""

from __future__ import annotations

from msgspec import Struct

from distprof.report.module_report import ModuleFlops
from distprof.report.wait_report import Spread


class JobModule(Struct, frozen=True, kw_only=True):
    """One module, submodules included."""

    name: str
    """Dotted, as in the unwrapped model; "" is the model itself."""
    kind: str
    """The class of the module."""
    parent: int | None
    """Position of the module that holds it. None: the model itself."""
    calls: int
    """Of forward in a step, recomputation left out."""
    own_parameters: int
    """Elements of its own parameters, whole; one that several modules share counts in the first."""
    parameters: int
    """Its own and those of its submodules, each once, whole."""
    held_parameters: Spread
    """Of ``parameters``, the elements that each rank holds: fewer where they are sharded."""
    flops: ModuleFlops | None
    """In a step of the lowest rank. None: not counted."""
    forward_ns: Spread
    """Each rank's median over the timed steps."""
    backward_ns: Spread
    """Likewise, recomputation left out."""
    recomputed_ns: Spread
    """Likewise, of forward that backward repeats."""

    @property
    def likeness(self) -> tuple[object, ...]:
        """The same for modules that differ in their names and times only."""
        return self.kind, self.calls, self.own_parameters, self.parameters, self.held_parameters, self.flops


class MemoryKind(Struct, frozen=True, kw_only=True):
    """What the tensors of one kind take on each rank."""

    kind: str
    """"parameters", "gradients", "optimizer", "buffers", "activations" or "communication"; "peak": the most that the
    device's allocator gave out; "rest": what the peak has beyond all these."""
    predicted_bytes: Spread
    """As predicted from the configuration."""
    measured_bytes: Spread
    """In the counted step."""


class JobModules(Struct, frozen=True, kw_only=True):
    """The modules of the model, and what it cost to look at them."""

    model: str
    """The class of the model."""
    clock: str
    """Of the modules' times."""
    ranks: tuple[int, ...]
    """The ranks whose profiles are here."""
    timed_steps: int
    """Number of steps in which modules were timed."""
    rows: tuple[JobModule, ...]
    """Each module before its submodules. The first is the model."""
    outside_flops: ModuleFlops | None
    """Of operations outside of the model."""
    step_ns: float | None
    """Median of the timed steps, of the slowest rank; on the headline's clock, as the next two. None: not measured."""
    counted_step_ns: float | None
    """The step in which operations were counted."""
    usual_step_ns: float | None
    """Median of the measured steps."""
    memory: tuple[MemoryKind, ...]
    """Memory of a rank by kind. Empty: neither predicted nor measured."""
    notes: tuple[str, ...]
    """What is not counted, and why."""
