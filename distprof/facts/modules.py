"""What the modules of one rank's model hold, compute and take, in the steps of a job that were given to it."""

from __future__ import annotations

from msgspec import Struct

from distprof.facts.arrays import FloatArray


class RankMemory(Struct, frozen=True, kw_only=True):
    """Bytes on one rank, by kind. None: not known."""

    parameters: int | None
    gradients: int | None
    """At the end of backward."""
    optimizer: int | None
    """The optimizer's state, without counts of steps."""
    buffers: int | None
    """Of modules."""
    activations: int | None
    """Of one micro-batch, at the end of forward."""
    communication: int | None = None
    """DDP's buckets where gradients are no views of them; what FSDP2 has gathered at the end of forward."""

    @property
    def total(self) -> int | None:
        """None: a kind is not known."""
        known = [each for kind in MEMORY_KINDS if (each := getattr(self, kind)) is not None]
        return sum(known) if len(known) == len(MEMORY_KINDS) else None


MEMORY_KINDS = RankMemory.__struct_fields__


class ModuleTable(Struct, frozen=True, kw_only=True):
    """The modules of one rank by column, each module before its submodules; the first is the model itself."""

    rank: int
    model: str
    """The model's class."""
    clock: str
    """"host" or "device": of every time here."""
    counted_step: int | None
    """The step whose work was counted. None: it failed."""
    timed_steps: tuple[int, ...]
    """The steps whose time was taken, in order."""
    names: tuple[str, ...]
    """Dotted, as in the unwrapped model; "" is the model itself."""
    kinds: tuple[str, ...]
    """Classes."""
    parents: tuple[int | None, ...]
    """Position of the module that holds it. None: the model itself."""
    calls: tuple[int, ...]
    """Of forward in the counted step, recomputation left out."""
    own_parameters: tuple[int, ...]
    """Elements of its own parameters, whole; one that several modules share counts in the first."""
    parameters: tuple[int, ...]
    """Its own and those of its submodules, each once, whole."""
    held_parameters: tuple[int, ...]
    """Of ``parameters``, the elements that this rank holds."""
    flops: tuple[tuple[int, ...], ...]
    """Forward, backward and recomputed in the counted step, submodules included: three by module."""
    outside_flops: tuple[int, ...]
    """The same of operations in no module."""
    forward_ns: FloatArray
    """Time of a step, submodules included, ``[num_modules, num_timed_steps]``; NaN: it did not run."""
    backward_ns: FloatArray
    """As ``forward_ns``."""
    recomputed_ns: FloatArray
    """As ``forward_ns``, of forward that backward repeats."""
    memory: RankMemory | None
    """What this rank's tensors took in the counted step. None: not measured."""
    predicted_memory: RankMemory | None
    """What they should take according to the configuration. None: there is none."""
    peak_bytes: int | None
    """The most that the device's allocator had given out until the end of the counted step. None: there is none."""
    notes: tuple[str, ...]
    """What is not counted, and why."""

    @property
    def structure(self) -> tuple[object, ...]:
        """The same for ranks with the same model."""
        return self.names, self.kinds, self.parents, self.parameters
