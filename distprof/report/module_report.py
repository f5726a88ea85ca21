"""What a model's modules hold, compute and take: the content of ``distprof model --json``, plain numbers only.

``None`` means *not measured*. *Self* is what a module does outside of its submodules; *total* includes them. A module
that is called from several others, or under several names, has one row; its totals count wherever it is called from.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from distprof.facts.plain import make_plain

SCHEMA = "distprof.modules/1"


class ModuleFlops(Struct, frozen=True, kw_only=True):
    """FLOPs; a multiply and an add are two. Counted from what torch dispatches, never as a multiple of forward."""

    forward: int = 0
    """Of forward, once."""
    backward: int = 0
    """Of backward, without what it repeats of forward."""
    recomputed: int = 0
    """Forward again, under activation checkpointing."""

    @property
    def total(self) -> int:
        """Of all three."""
        return self.forward + self.backward + self.recomputed

    def __add__(self, other: ModuleFlops) -> ModuleFlops:
        return ModuleFlops(
            forward=self.forward + other.forward, backward=self.backward + other.backward,
            recomputed=self.recomputed + other.recomputed,
        )  # fmt: skip


class Taken(Struct, frozen=True, kw_only=True):
    """Time by one clock, ns per pass, median over the timed passes."""

    forward_ns: float | None = None
    backward_ns: float | None = None
    recomputed_ns: float | None = None


class ModuleRow(Struct, frozen=True, kw_only=True):
    """One module."""

    name: str
    """Dotted, as in the unwrapped model; "" is the model itself."""
    kind: str
    """The class of the module."""
    parent: int | None
    """Position of the row of the module that holds it. None: the model itself."""
    depth: int
    aliases: tuple[str, ...]
    """Further names of the same module."""
    calls: int
    """Of forward, in one pass, recomputation left out."""
    input_bytes: int | None
    """Of the tensors that its first call was given by position. None: it was not called."""
    output_shapes: tuple[tuple[int, ...], ...] | None
    """Of the tensors that its first call returned. None: it was not called."""
    own_parameters: int
    """Elements of its own parameters, whole; one that several modules share counts in the first."""
    parameters: int
    """Its own and those of its submodules, each once."""
    held_parameters: int
    """Of ``parameters``, the elements that this process holds: fewer where they are sharded."""
    parameter_bytes: int
    """Of ``parameters``, whole."""
    buffer_bytes: int
    """Of its own buffers and those of its submodules."""
    self_flops: ModuleFlops
    total_flops: ModuleFlops
    self_activation_bytes: int | None
    """What its operations made and is still alive after forward, for backward. None: backward was not asked for."""
    activation_bytes: int | None
    """Including its submodules."""
    self_time: Taken
    total_time: Taken

    @property
    def likeness(self) -> tuple[object, ...]:
        """The same for modules that differ in their names only."""
        return (
            self.kind, self.calls, self.output_shapes, self.own_parameters, self.parameters, self.held_parameters,
            self.self_flops, self.total_flops,
        )  # fmt: skip


class ModuleReport(Struct, frozen=True, kw_only=True):
    """One model, one pass."""

    model: str
    """Its class, or what it was asked for by."""
    device: str
    inputs: str
    """What it was given, in words."""
    mode: str
    """"forward" or "forward_backward"."""
    timed_passes: int
    """0: no time was taken."""
    rows: tuple[ModuleRow, ...]
    """In the order of ``named_modules``: each module before its submodules. The first is the model."""
    outside_flops: ModuleFlops
    """Of operations outside of the model: the loss, for example."""
    flops_by_operation: tuple[tuple[str, int], ...]
    """All FLOPs of the pass, the largest first."""
    returned_bytes: int | None = None
    """What forward made and returned and backward does not need: held as long as the caller does. None: not counted."""
    working_bytes: int | None = None
    """What backward holds at most beyond activations and gradients of parameters: gradients of activations, and what it
    recomputes. None: not counted."""
    notes: tuple[str, ...]
    """What a reader should know: what is not counted, and why."""

    def to_json(self) -> dict[str, Any]:
        """The object for a JSON file."""
        return {"schema": SCHEMA, **make_plain(self)}
