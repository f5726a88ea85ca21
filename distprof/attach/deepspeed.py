"""A session for DeepSpeed's engine, whose loop stays as it is.

from distprof.attach.deepspeed import watch_engine
profiler = watch_engine(engine, "my-run")
"""

from __future__ import annotations

from typing import Any

from distprof.observe.optimizers import unwrap_optimizer
from distprof.profiler.open_session import start
from distprof.profiler.session.session import Session


def watch_engine(engine: Any, name: str = "training", **options: Any) -> Session:
    """Records the training that an engine does from now on: a step ends where it updates the parameters.

    Args:
        engine: What ``deepspeed.initialize`` returns first.
        name: Names the run folder.
        **options: Those of `distprof.start`.

    Returns:
        The session, which may be closed before the process ends.

    Raises:
        UsageError: An option is unknown, or cannot have this value.
    """
    session = start(name, **options)
    session.watch(engine)
    session.find_steps(optimizer=unwrap_optimizer(engine))
    return session
