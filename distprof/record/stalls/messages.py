"""What a rank waits for in ``send`` or ``recv``: gloo's are in no ring of torch, so the blocked call is looked at."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType
from typing import Any, Literal

import torch.distributed as dist

from distprof.facts.stand import Message

_IN_RING = re.compile(r"nccl:(send|recv) \d+(?:->|<-)(\d+)")


def read_message(thread: int) -> Message | None:
    """The blocking ``send`` or ``recv`` that a thread is in. None: it is in none.

    Args:
        thread: Its identifier, of another thread than the caller's.
    """
    frame = sys._current_frames().get(thread)
    while frame is not None:
        if (kind := _CALLS.get(frame.f_code)) is not None:
            return Message(kind=kind, peer=_read_peer(frame, "dst" if kind == "send" else "src"))
        frame = frame.f_back
    return None


def find_message(entry: Mapping[str, Any], ranks: tuple[int, ...] | None) -> Message | None:
    """A message of NCCL, from its entry in the Flight Recorder.

    Args:
        entry: Of the ring.
        ranks: Global ranks of its process group. None: all.
    """
    found = _IN_RING.match(str(entry.get("profiling_name")))
    if found is None:
        return None
    peer = int(found[2])
    if ranks is not None:
        peer = ranks[peer] if peer < len(ranks) else -1
    return Message(kind="send" if found[1] == "send" else "recv", peer=peer if peer >= 0 else None)


def _read_peer(frame: FrameType, name: str) -> int | None:
    """One argument, and no other: the peer's global rank."""
    told = frame.f_locals.get(name)
    if type(told) is int:
        return told
    told, group = frame.f_locals.get(f"group_{name}"), frame.f_locals.get("group")
    if type(told) is not int:
        return None
    try:
        return told if group is None else int(dist.get_global_rank(group, told))
    except (RuntimeError, ValueError):  # the group is gone
        return None


def _find_code(function: Callable[..., Any]) -> CodeType:
    """Of a function of torch, without what logs its calls."""
    while (inner := getattr(function, "__wrapped__", None)) is not None:
        function = inner
    return function.__code__


_CALLS: dict[CodeType, Literal["send", "recv"]] = {_find_code(dist.send): "send", _find_code(dist.recv): "recv"}
