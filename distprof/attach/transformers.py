"""A callback for the Trainer of Transformers.

from distprof.attach.transformers import TransformersCallback
trainer = Trainer(..., callbacks=[TransformersCallback("my-run")])
"""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback

from distprof.attach.framework_loop import FrameworkCallback, FrameworkLoop
from distprof.compiling import is_compiling
from distprof.errors import UsageError
from distprof.profiler.open_session import start
from distprof.profiler.session.guarded_calls import answer_nothing, answers, guard_methods


@guard_methods
class TransformersCallback(FrameworkCallback, TrainerCallback):  # type: ignore[misc]  # Transformers is optional: to mypy it is Any
    """Records each training: a step is one of the Trainer's; logging, evaluation and saving are apart.

    The Trainer does not say when those three begin, but before them whether they will, in which order, and when each
    has ended.
    """

    def __init__(self, name: str = "training", **options: Any) -> None:
        """Records each training with these options.

        Args:
            name: Names the run folder.
            **options: Those of `distprof.start`, which refuses a wrong one when training begins.
        """
        self._name, self._options = name, options
        self._pending: list[str] = []
        self._last = True  # no step follows for now
        self._hook: Any = None

    @answers(answer_nothing, passes=(UsageError,))
    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **more: Any) -> None:
        """Opens the session."""
        self._loop, self._pending, self._last = FrameworkLoop(start(self._name, **self._options)), [], True
        self._unhook()
        if isinstance(model, nn.Module) and not args.torch_compile:
            self._hook = model.register_forward_pre_hook(self._count, with_kwargs=True)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The first step of the epoch begins."""
        self._pending, self._last = [], False
        self._follow()

    def on_step_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """It has begun with its batches, unless what was announced did not come."""
        self._pending = []
        self._follow()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """The step ends, and the next one begins, or logging, evaluation or saving."""
        if self._loop is not None:
            self._loop.end_step()
            self._plan(control, last=control.should_training_stop or control.should_epoch_stop)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """No step follows in this epoch."""
        if self._loop is not None:
            self._loop.leave()
            self._plan(control, last=True)

    def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Logging has ended, if this is the Trainer's own: an evaluation logs, too, and so may a loss."""
        if self._pending[:1] == ["logging"]:
            self._end("logging")

    def on_evaluate(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """An evaluation has ended."""
        self._end("evaluation")

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """A checkpoint has been saved."""
        self._end("checkpoint")

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Closes the session, which writes the report."""
        self._unhook()
        if self._loop is not None:
            loop, self._loop = self._loop, None
            loop.leave()
            loop.session.close()

    def _plan(self, control: Any, *, last: bool) -> None:
        """Begins the first of what the Trainer does next, in its order."""
        announced = {
            "logging": control.should_log,
            "evaluation": control.should_evaluate,
            "checkpoint": control.should_save,
        }
        self._pending = [stretch for stretch, comes in announced.items() if comes]
        self._last = last
        self._follow()

    def _end(self, stretch: str) -> None:
        if self._loop is not None:
            if stretch in self._pending:
                del self._pending[: self._pending.index(stretch) + 1]
            else:
                self._loop.leave()  # nobody had announced it, so a step had begun
            self._follow()

    def _follow(self) -> None:
        if self._loop is None:
            return
        if self._pending:
            self._loop.begin_stretch(self._pending[0])
        elif self._last:
            self._loop.end_stretch()
        else:
            self._loop.begin_step()

    def _count(self, model: nn.Module, args: Any, options: Any) -> None:
        if self._loop is not None and not is_compiling():
            self._loop.add_tokens(options)

    def _unhook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
