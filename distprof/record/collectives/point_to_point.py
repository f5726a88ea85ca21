"""Whether ranks send to each other point to point inside steps, as the stages of a pipeline do.

What a rank then waits for is not recorded, so that whoever waits seems to work. One exchange is enough to say so: after
it torch is as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from distprof.record.collectives.flight_recorder import OWN_GROUP
from distprof.record.step.recorder import Recorder

METHODS = ("send", "recv", "recv_anysource")
"""Of a process group: all functions of torch for single exchanges end there. Those functions themselves are left alone,
since torch compares them with each other."""
NOTE = "ranks send to each other point to point, which is not recorded: to wait there looks like work"


def watch_exchanges(recorder: Recorder, seen: Callable[[], None]) -> Callable[[], None]:
    """Calls ``seen`` at the first exchange inside a step.

    Returns:
        A function that undoes it.
    """
    kind: Any = dist.ProcessGroup
    originals = {name: vars(kind)[name] for name in METHODS}  # what getattr gives would not bind to a group again
    watched: dict[str, Any] = {}

    def restore() -> None:
        for name, original in originals.items():
            if vars(kind)[name] is watched[name]:
                setattr(kind, name, original)

    def watch(name: str) -> Any:
        original = getattr(kind, name)

        @functools.wraps(original)
        def exchange(group: Any, *args: Any, **options: Any) -> Any:
            if recorder.open and getattr(group, "group_desc", "") != OWN_GROUP:
                restore()
                seen()
            return original(group, *args, **options)

        return exchange

    watched.update({name: watch(name) for name in METHODS})
    for name, method in watched.items():
        setattr(kind, name, method)
    return restore
