"""The loss and the gradient norm of a step: whatever a user passes, read without waiting for a device.

A value on a device is copied to the host by the device itself, behind the step's work, and read once an event says that
it is there. A value that cannot be read like that is None, and the report says why, once.
"""

from __future__ import annotations

from typing import Any

import torch

from distprof.errors import describe_error, read_first_line
from distprof.record.step.protocols import Accelerator
from distprof.unseen import unseen

NUM_SLOTS = 1024
"""Most steps whose values are on their way to the host; about as many launches as a GPU queues at all."""
NAMES = ("loss", "grad_norm")
Values = tuple[float | None, float | None]


class ScalarReader:
    """Reads scalars of steps on one rank. Used by the training thread, and by another one when training is over."""

    def __init__(self, device: Accelerator | None) -> None:
        """Allocates a ring of slots if there is a device. Synchronises then."""
        self._device = device
        self.refused: dict[str, str] = {}
        """Why a value is not recorded, by its name. At most one reason for each."""
        self._events = [] if device is None else device.make_events(NUM_SLOTS, timing=False)
        self._buffers = [] if device is None else [device.make_buffer(NUM_SLOTS) for _ in NAMES]
        self._sources: list[list[Any]] = [[None] * NUM_SLOTS for _ in self._buffers]
        self._next, self._used = 0, 0

    @unseen
    def keep(self, values: tuple[Any, Any], *, copy: bool = True) -> tuple[Values, int]:
        """Reads what the host has, and has the device copy what it has.

        Args:
            values: Loss and gradient norm. None: not given.
            copy: Whether the device is still asked to copy.

        Returns:
            The values known now, and the slot of those that are still to come; -1: there are none.
        """
        slot, known = -1, list[float | None]((None, None))
        for column, value in enumerate(values):
            if value is None or type(value) is float:
                known[column] = value
                continue
            try:
                if self._device is None or not self._device.holds(value):
                    known[column] = _read(value)
                elif copy and self._used < NUM_SLOTS:
                    scalar = _unwrap_scalar(value)
                    self._device.copy_scalar(scalar, self._buffers[column], self._next)
                    self._sources[column][self._next] = scalar  # its memory must stay its own until the copy is done
                    slot = self._next
            except Exception as error:  # flat: in every step
                why = read_first_line(error) if isinstance(error, ValueError) else describe_error(error)
                self.refused.setdefault(NAMES[column], why)
        if slot >= 0 and self._device is not None:
            self._events[slot].record(self._device.current_stream())
            self._next, self._used = (slot + 1) % NUM_SLOTS, self._used + 1
        return (known[0], known[1]), slot

    def is_there(self, slot: int) -> bool:
        """Whether the values of a slot have reached the host."""
        return slot < 0 or bool(self._events[slot].query())

    def wait(self, slot: int) -> None:
        """Waits until they have. Synchronises."""
        if slot >= 0:
            self._events[slot].synchronize()

    def take(self, slot: int, known: Values) -> Values:
        """All values of a step, which have reached the host; frees the slot. Slots are taken in the order of `keep`."""
        if slot < 0:
            return known
        found = list(known)
        for column, sources in enumerate(self._sources):
            if sources[slot] is not None:
                found[column], sources[slot] = float(self._buffers[column][slot]), None
        self._used -= 1
        return found[0], found[1]


def _read(value: Any) -> float:
    """A value that the host has.

    Raises:
        Exception: It is not to be read.
    """
    if type(value) is torch.Tensor and value.is_cpu and value.numel() == 1:
        return float(value.item())
    scalar = _unwrap_scalar(value)
    if isinstance(scalar, torch.Tensor) and scalar.device.type != "cpu":
        raise ValueError(f"it is on {scalar.device}, where the profiler does not read")
    return float(scalar)


def _unwrap_scalar(value: Any) -> Any:
    """What there is to read of a value, without a collective.

    Raises:
        ValueError: It is no scalar, or the ranks would have to communicate.
    """
    if type(value) is torch.Tensor and value.numel() == 1:
        return value.detach() if value.requires_grad else value
    placements = getattr(value, "placements", None)
    if placements is not None:  # a DTensor, such as what clip_grad_norm_ returns under FSDP2
        if not all(placement.is_replicate() for placement in placements):
            raise ValueError("it is a DTensor with a part of the value on each rank: pass value.full_tensor()")
        value = value.to_local()
    if not isinstance(value, torch.Tensor):
        return value
    if value.numel() != 1:
        raise ValueError(f"it is a tensor of shape {tuple(value.shape)}, not a scalar")
    return value.detach()
