"""The process group of distprof's own, over gloo, beside those of the script.

A device of gloo has a thread that wakes a hundred times a second, which takes about 0.3 % of a core. If the script's
default group is gloo's as well, ours uses the same device.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.record.flight_recorder import OWN_GROUP

_C10D: Any = distributed_c10d


def make_own_group(timeout: timedelta | None = None) -> dist.ProcessGroup:
    """A gloo group of all ranks that nothing else uses. Collective.

    ``timeout``: Of its collectives. None: torch's default.
    """
    with _on_device_of_default_group():
        group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=timeout, group_desc=OWN_GROUP)
        return group


@contextlib.contextmanager
def _on_device_of_default_group() -> Iterator[None]:
    """Has `torch.distributed.new_group`, which takes no options for gloo, make its group on the existing device."""
    options, gloo = _find_options(), getattr(_C10D, "ProcessGroupGloo", None)
    if options is None:
        yield
        return

    class OnDevice(gloo):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **given: Any) -> None:
            timeout = _read_timeout(*args, **given)
            if timeout is None:
                super().__init__(*args, **given)
            else:
                options._timeout = timeout
                super().__init__(*args, options)

    _C10D.ProcessGroupGloo = OnDevice
    try:
        yield
    finally:
        _C10D.ProcessGroupGloo = gloo


def _read_timeout(*args: Any, **given: Any) -> timedelta | None:
    """The time-out among what torch gives to the constructor, beside store, rank and number of ranks. None: it gives
    something else that matters, for which options have no room."""
    more = [value for name, value in given.items() if name != "timeout"]
    return given.get("timeout") if len(args) == 3 and not any(more) else None


def _find_options() -> Any:
    """What makes a group on the devices of the default one. None: that is not gloo's, or torch does not tell."""
    with contextlib.suppress(Exception):
        devices = _C10D._get_default_group()._get_backend(torch.device("cpu")).options._devices
        options = _C10D.ProcessGroupGloo._Options()
        options._devices = devices
        return options
    return None
