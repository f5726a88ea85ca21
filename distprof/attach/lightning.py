"""A callback for the Trainer of Lightning.

from distprof.attach.lightning import LightningCallback
trainer = Trainer(..., callbacks=[LightningCallback("my-run")])
"""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:  # the older package, which has the same one
    from pytorch_lightning import Callback

from distprof.attach.framework_loop import FrameworkCallback, FrameworkLoop
from distprof.errors import UsageError
from distprof.profiler.open_session import start
from distprof.profiler.session.guarded_calls import answer_nothing, answers, guard_methods


@guard_methods
class LightningCallback(FrameworkCallback, Callback):  # type: ignore[misc]  # Lightning is optional: to mypy it is Any
    """Records each ``fit``: a step ends with the batch whose gradients were used; validation and saving are apart."""

    def __init__(self, name: str = "training", **options: Any) -> None:
        """Records each training with these options.

        Args:
            name: Names the run folder.
            **options: Those of `distprof.start`, which refuses a wrong one when training begins.
        """
        self._name, self._options = name, options
        self._updates = 0  # of parameters, since training began
        self._in_epoch = False

    @answers(answer_nothing, passes=(UsageError,))
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Opens the session."""
        self._loop, self._in_epoch = FrameworkLoop(start(self._name, **self._options)), False
        self._watch_saving(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The first step of the epoch begins."""
        self._updates, self._in_epoch = trainer.global_step, True
        self._begin_step()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A micro-step's batch is there."""
        if self._loop is not None:
            self._begin_step()
            self._loop.add_tokens(batch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """The step ends if an optimizer has taken one, and the next begins."""
        if self._loop is not None and (trainer.global_step != self._updates or not trainer.optimizers):
            self._updates = trainer.global_step
            self._loop.end_step()
            self._begin_step()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """No step follows in this epoch."""
        self._in_epoch = False
        if self._loop is not None:
            self._loop.leave()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins, between two steps."""
        if self._loop is not None:
            self._loop.begin_stretch("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """It is over."""
        if self._loop is not None:
            self._loop.end_stretch()
            self._begin_step()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training has failed."""
        self._close(trainer, exception)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Closes the session, which writes the report."""
        self._close(trainer)

    def _begin_step(self) -> None:
        if self._loop is not None and self._in_epoch:
            self._loop.begin_step()

    def _watch_saving(self, trainer: Any) -> None:
        """Lightning does not say when a checkpoint has been saved."""
        save = trainer.save_checkpoint

        def watched(*args: Any, **options: Any) -> Any:
            if self._loop is None:
                return save(*args, **options)
            self._loop.begin_stretch("checkpoint")
            try:
                return save(*args, **options)
            finally:
                self._loop.end_stretch()
                self._begin_step()

        trainer.save_checkpoint = watched

    def _close(self, trainer: Any, error: BaseException | None = None) -> None:
        loop, self._loop, self._in_epoch = self._loop, None, False
        if loop is not None:
            vars(trainer).pop("save_checkpoint", None)
            if error is None:
                loop.leave()
            loop.session.close(error)
