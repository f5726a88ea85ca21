"""The segments of a run's steps in arrays: a large job has millions of steps, and as objects they take a gigabyte."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping

import numpy as np
from msgspec import Struct

from distprof.facts.arrays import BoolArray, IntArray


class Segments(Struct, frozen=True, kw_only=True):
    """The segments of one step of one rank on the host clock, in order."""

    begin_ns: int
    """Monotonic time at which the first segment starts."""
    codes: tuple[int, ...]
    """Index into `distprof.facts.run.PHASES` of each segment."""
    durations_ns: tuple[int, ...]
    """Length of each segment; they sum to the step unless ``truncated``."""
    truncated: bool = False
    """Whether the step had more segments than are kept."""


class PackedSegments(Struct, frozen=True):
    """The same of one step, packed."""

    begin_ns: int
    codes: bytes
    durations_ns: bytes
    """Each as eight bytes."""
    truncated: bool


def pack(kept: Segments) -> PackedSegments:
    """Packs what one step's segments say."""
    durations_ns = array("q", kept.durations_ns).tobytes()
    return PackedSegments(kept.begin_ns, bytes(kept.codes), durations_ns, kept.truncated)


def unpack(packed: PackedSegments) -> Segments:
    """The opposite."""
    return Segments(
        begin_ns=packed.begin_ns, codes=tuple(packed.codes), durations_ns=tuple(array("q", packed.durations_ns)),
        truncated=packed.truncated,
    )  # fmt: skip


class SegmentTable(Mapping[int, Segments]):
    """The segments of one rank's steps, by step."""

    def __init__(self, kept: Mapping[int, PackedSegments]) -> None:
        """Args:
        kept: By step.
        """
        steps = sorted(kept)
        each = [kept[step] for step in steps]
        self.steps: IntArray = np.array(steps, dtype=np.int64)
        """Ascending."""
        self.counts: IntArray = np.array([len(packed.codes) for packed in each], dtype=np.int64)
        """How many segments each of these steps has."""
        self._ends = np.cumsum(self.counts)
        self._begins_ns: IntArray = np.array([packed.begin_ns for packed in each], dtype=np.int64)
        self._truncated: BoolArray = np.array([packed.truncated for packed in each], dtype=np.bool_)
        self._codes = b"".join(packed.codes for packed in each)
        self._durations_ns = b"".join(packed.durations_ns for packed in each)

    def _find(self, step: object) -> int | None:
        """Where a step is. None: nowhere."""
        place = int(np.searchsorted(self.steps, step)) if isinstance(step, int) else len(self.steps)
        return place if place < len(self.steps) and self.steps[place] == step else None

    def __contains__(self, step: object) -> bool:
        return self._find(step) is not None

    def __getitem__(self, step: int) -> Segments:
        place = self._find(step)
        if place is None:
            raise KeyError(step)
        return unpack(self._read(place))

    def _read(self, place: int) -> PackedSegments:
        end = int(self._ends[place])
        first = end - int(self.counts[place])
        durations_ns = self._durations_ns[8 * first : 8 * end]
        return PackedSegments(
            int(self._begins_ns[place]), self._codes[first:end], durations_ns, bool(self._truncated[place])
        )

    def read_packed(self) -> dict[int, PackedSegments]:
        """By step: to make other tables of."""
        return {step: self._read(place) for place, step in enumerate(self)}

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps.tolist())

    def __len__(self) -> int:
        return len(self.steps)


def tabulate(kept: Mapping[int, Segments]) -> SegmentTable:
    """A table of one rank's segments by step."""
    return SegmentTable({step: pack(each) for step, each in kept.items()})


class RunSegments(Mapping[tuple[int, int], Segments]):
    """The segments of all ranks, by (rank, step)."""

    def __init__(self, by_rank: Mapping[int, SegmentTable]) -> None:
        """Args:
        by_rank: Those of each rank.
        """
        self.by_rank = by_rank
        """By rank; a rank that kept none may be missing."""

    def __contains__(self, key: object) -> bool:
        return isinstance(key, tuple) and len(key) == 2 and key[1] in self.by_rank.get(key[0], ())

    def __getitem__(self, key: tuple[int, int]) -> Segments:
        return self.by_rank[key[0]][key[1]]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((rank, step) for rank, table in self.by_rank.items() for step in table)

    def __len__(self) -> int:
        return sum(map(len, self.by_rank.values()))
