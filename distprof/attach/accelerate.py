"""A tracker for Accelerate, and steps that follow its gradient accumulation.

from distprof.attach.accelerate import AccelerateTracker
accelerator = Accelerator(log_with=AccelerateTracker("my-run"))
accelerator.init_trackers("my-project")
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeVar, cast

from accelerate.tracking import GeneralTracker

from distprof.profiler.open_session import start
from distprof.profiler.session.session import Session

T = TypeVar("T")
_END = object()


class AccelerateTracker(GeneralTracker):  # type: ignore[misc]  # Accelerate ships no types
    """Records a training whose only call to a tracker is ``accelerator.end_training()``: steps are found.

    It keeps none of what is logged: that is for the other trackers.
    """

    name = "distprof"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run_name: str = "training", **options: Any) -> None:
        """Opens the session.

        Args:
            run_name: Names the run folder.
            **options: Those of `distprof.start`.

        Raises:
            UsageError: An option is unknown, or cannot have this value.
        """
        super().__init__()
        self._session = start(run_name, **options)
        self._session.find_steps()

    @property
    def tracker(self) -> Session:
        """The session: ``accelerator.get_tracker("distprof", unwrap=True)``."""
        return self._session

    def finish(self) -> None:
        """Closes the session, which writes the report."""
        self._session.close()


def steps(session: Session, accelerator: Any, batches: Iterable[T]) -> Iterator[T]:
    """The same batches; a step ends with the one after which gradients were synchronised.

    Args:
        session: From `distprof.start`.
        accelerator: Whose ``accumulate`` the body of the loop uses.
        batches: What ``accelerator.prepare`` has made of a loader.
    """
    taken = session.time(partial(iter, batches))
    try:
        while True:
            if not session.open:
                session.begin_step(by="steps")
            batch = session.time(partial(next, taken, _END))
            if batch is _END:
                break
            yield cast(T, batch)
            if getattr(accelerator, "sync_gradients", True):
                session.end_step()
        session.drop_step()
    finally:
        session.leave_loop()
