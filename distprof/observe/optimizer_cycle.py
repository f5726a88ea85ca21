"""Which optimizer's step is the last of a training step, where several optimizers take turns.

- The last one is learnt in the first cycle, which ends when every optimizer that was made has taken a step. Not waited
  for: one that shares parameters with an optimizer of the cycle (it replaces it, or wraps it); one whose model is not
  even called, when the next batch is taken; and any of them once another has taken more than `AT_FIRST` steps.
- From then on that one ends the cycle, after as many steps in a row as it took in the last one.
- Another one becomes the last one if it replaces it, or steps on its own for long while the last one does not; or if
  the last one has stepped alone for long, and now that other one does (training in blocks). With a DataLoader, the next
  batch decides: whoever has taken a step right before it, in a cycle that waits in vain or did not begin with a batch,
  ends the cycle.
- One that is made inside a step is part of that step (the inner loop of meta-learning).
"""

from __future__ import annotations

import weakref
from typing import Any

AT_FIRST = 8
"""Steps in a row of one optimizer that may be one cycle's, such as those of a critic."""
PATIENCE = 64
"""The same, once it is known which optimizer ends the cycle."""

UNEVEN = (
    "a step is one cycle of the optimizers, and cycles are {} to {} optimizer steps long: some that were made are not "
    "used in turn with the others, or only later"
)


class OptimizerCycle:
    """Finds the ends of cycles from the steps of optimizers, in their order."""

    def __init__(self) -> None:
        self.learning = True
        """Whether it is not known which optimizer ends the cycle."""
        self.is_empty = True
        """Whether no optimizer has begun a step. Its closure may update parameters and compute gradients often."""
        self._stepped: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()  # whether it ever has
        self._inner: weakref.WeakSet[Any] = weakref.WeakSet()
        self._counts: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # steps in this cycle
        self._before: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # steps in the last one
        self._ender: weakref.ref[Any] | None = None
        self._turns = 1  # steps of the ender in a cycle
        self._last: weakref.ref[Any] | None = None  # the optimizer of the last step
        self._run = 0  # its steps in a row
        self._mixed = False  # before those of the ender, others have taken steps in the same cycle
        self._until_batch = False  # the cycle ends with the next batch, unless the ender takes a step before
        self._alone = False  # only the ender has taken steps for so long that nothing but their number changes
        self._called: weakref.WeakSet[Any] = weakref.WeakSet()  # models, while learning
        self._sizes = set[int]()  # how many steps of optimizers a cycle has had

    def add(self, optimizer: object, *, inner: bool) -> None:
        """An optimizer has been made; ``inner``: inside a step."""
        self._stepped.setdefault(optimizer, False)
        if inner:
            self._inner.add(optimizer)

    def discard(self, optimizer: object) -> None:
        """An optimizer takes its steps inside backward: it is not waited for."""
        self._stepped.pop(optimizer, None)

    def waits_for(self, optimizer: object) -> bool:
        """Whether it was made outside of steps."""
        return optimizer in self._stepped and optimizer not in self._inner

    def list_parameters(self) -> list[Any]:
        """The parameters of all optimizers."""
        groups = [group for optimizer in list(self._stepped) for group in getattr(optimizer, "param_groups", ())]
        return [parameter for group in groups for parameter in group["params"]]

    def see_call(self, model: object) -> None:
        """A model has been called in the first cycle."""
        self._called.add(model)

    def ends_with(self, optimizer: object, *, with_batch: bool) -> bool:
        """Whether the step that an optimizer has just taken ends the training step.

        Args:
            optimizer: It need not have been added.
            with_batch: Whether the training step began with a batch of a DataLoader.
        """
        last, run = None if self._last is None else self._last(), self._run
        if self._alone and last is optimizer:
            self._run += 1
            return True
        self._alone = False
        if last is optimizer:
            self._run += 1
        else:
            self._last, self._run = weakref.ref(optimizer), 1
        ender = None if self._ender is None else self._ender()
        if ender is optimizer and not self._counts:
            return self._end_alone()
        count = self._counts[optimizer] = self._counts.get(optimizer, 0) + 1
        is_new, inner = not self._stepped.get(optimizer), optimizer in self._inner
        self._stepped[optimizer] = True
        self.learning = ender is None
        if ender is None:
            ends = count > (PATIENCE if inner else AT_FIRST) or not self._list_missing()
        elif ender is optimizer:
            ends, self._mixed = count >= self._turns, True
        elif count > PATIENCE or (is_new and not _identify(optimizer).isdisjoint(_identify(ender))):
            ends = True
        elif last is ender and run > AT_FIRST and not inner:
            ends, self._until_batch = not with_batch, with_batch
        else:
            ends = False
            if ender in self._counts:  # it takes fewer steps in a cycle now
                self._turns = self._counts[ender]
                self._counts.clear()
                self._counts[optimizer] = 1
        return ends and self._end(optimizer)

    def ends_before_batch(self, *, with_batch: bool) -> bool:
        """Whether the training step ends because a batch is taken right after the step of an optimizer."""
        last, ender = None if self._last is None else self._last(), None if self._ender is None else self._ender()
        if last is None:
            return False
        if ender is None:
            called = {id(parameter) for model in self._called for parameter in model.parameters()}
            ends = last not in self._inner and all(called.isdisjoint(_identify(one)) for one in self._list_missing())
        else:
            ends = last is not ender and (self._until_batch or not with_batch)
        return ends and self._end(last)

    def describe(self) -> str | None:
        """What the report says of cycles that differ. None: they do not."""
        if len(self._sizes) < 2:
            return None
        return UNEVEN.format(min(self._sizes), max(self._sizes))

    def _end_alone(self) -> bool:
        """The ender begins a cycle. If it goes on alone after one with others, that one was longer than it seemed."""
        self._sizes.add(1)
        self._turns = self._run if self._mixed and self._run <= AT_FIRST else 1
        self._before.clear()
        self._until_batch = False
        self._alone = self._run > AT_FIRST
        return True

    def _end(self, ender: object) -> bool:
        if self.learning or self._ender is None or self._ender() is not ender:
            self._mixed = len(self._counts) > 1
            self._ender, self._turns, self.learning = weakref.ref(ender), 1, False
            self._called.clear()
        self._alone = False
        self._sizes.add(sum(self._counts.values()))
        self._before, self._counts = self._counts, self._before
        self._counts.clear()
        self._until_batch = False
        return True

    def _list_missing(self) -> list[Any]:
        """The optimizers that are waited for: never used, or only in the last cycle, and not replaced or wrapped."""
        used = set[int]().union(*(_identify(optimizer) for optimizer in self._counts))
        return [
            optimizer for optimizer, stepped in list(self._stepped.items())
            if optimizer not in self._counts and optimizer not in self._inner
            and (not stepped or optimizer in self._before) and used.isdisjoint(_identify(optimizer))
        ]  # fmt: skip


def _identify(optimizer: Any) -> set[int]:
    """The identities of an optimizer's parameters."""
    groups = getattr(optimizer, "param_groups", ())
    return {id(parameter) for group in groups for parameter in group["params"]}
