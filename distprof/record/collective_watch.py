"""What the wrappers around torch's functions share: codes of process groups, and the collectives in flight."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.record.recorder import Recorder

_SHOWN_RANKS = 4


class CollectiveWatch:
    """One per recorder. Used by one thread at a time: the training thread, or autograd's while that one waits."""

    def __init__(self, recorder: Recorder) -> None:
        """Attaches it to a recorder."""
        self.recorder = recorder
        self.inside = 0
        """Above 0: what is issued now is part of a collective that is already recorded."""
        self.synchronising = False
        """Whether gradients are being synchronised; blocking collectives then count as phase `all_reduce`."""
        self.bucket = -1
        """Ticket of the bucket whose hook runs; whatever a user's hook issues or waits for is part of it."""
        self.newest = -1
        """Ticket of the newest collective that synchronises gradients."""
        self.works: weakref.WeakKeyDictionary[Any, tuple[int, int, bool]] = weakref.WeakKeyDictionary()
        """By handle of an asynchronous collective: its ticket, the phase of the wait for it (-1: the running one),
        and whether it runs on a device."""
        self._codes: dict[str, int] = {}
        self._sizes: dict[int, int] = {}

    def find_code(self, group: Any) -> int:
        """The code of a process group, given as torch's object or name; assigned when first seen.

        Raises:
            AttributeError: Not a process group, or one without this rank.
        """
        if group is None:
            return 0
        key = group if isinstance(group, str) else group.group_name
        code = self._codes.get(key)
        return self._add(key, group) if code is None else code

    def find_size(self, code: int) -> int:
        """Number of ranks of a group, by its code."""
        size = self._sizes.get(code)
        if size is None:
            ranks = self.recorder.groups[code][1]
            size = self._sizes[code] = dist.get_world_size() if ranks is None else len(ranks)
        return size

    def _add(self, key: str, group: Any) -> int:
        if isinstance(group, str):
            group = distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type, attr-defined]
        if group is dist.group.WORLD:
            code = 0
        else:
            ranks = tuple(dist.get_process_group_ranks(group))
            name = getattr(group, "group_desc", "")
            kind = name if name and name != "undefined" else "group"
            code = self.recorder.add_group(f"{kind} {key} ({_name_ranks(ranks)})", ranks)
        self._codes[key] = code
        return code


def _name_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    return f"ranks {shown}" if len(ranks) <= _SHOWN_RANKS else f"{len(ranks)} ranks: {shown}, ..."
