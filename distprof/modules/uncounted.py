"""Operations that multiply matrices, or may do so, and have no formula: what a count of FLOPs lacks."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from distprof.modules.names import NamedModule

MOST_NOTES, MOST_MODULES = 8, 3

OWN_LIBRARIES = frozenset(
    (
        "aten", "prim", "prims", "quantized", "_quantized", "quantized_decomposed", "quantization", "mkldnn",
        "mkldnn_prepacked", "onednn", "mkl", "sparse", "inductor", "inductor_prims", "symm_mem", "c10d",
        "_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "_dtensor", "fsdp", "profiler", "streams",
        "rngprims", "debugprims", "debug_mode_ops", "export", "static_runtime", "_native",
    )
)  # fmt: skip
"""torch's own, whose operations say by their names what they do. Of any other nothing is known."""

PRODUCT = re.compile(
    r"[a-z0-9]*(mm|gemm|matmul)|matmul\w*|(add)?mv|v?dot|q?linear|q?conv(olution)?(\d?d)?|rnn|lstm|gru|attention|attn|mha"
    r"|transformer|trilinear|euclidean|[cp]dist|fft|linalg|cholesky|solve|spsolve|inverse|lu|qr|geqrf|ormqr|svd|eigh?"
)
"""A word of the name of an operation that multiplies matrices, convolves, compares all pairs, or decomposes."""

NOT_PRODUCT = re.compile(r"thnn|(pre|un)?pack|reorder|convert|flatten|check|cross|norm|powsum|slice")
"""A word of the name of one that only prepares, looks, or does the rest: ``thnn`` comes after the products."""


class Uncounted:
    """How often such operations ran, and where."""

    def __init__(self, counted: Mapping[Any, Any]) -> None:
        """``counted``: operations with a formula."""
        self._counted = counted
        self._ran: dict[str, Counter[int]] = {}
        """By operation: runs by path."""

    def clear(self) -> None:
        """Forgets what ran."""
        self._ran.clear()

    def see(self, operation: Any, path: int) -> None:
        """An operation has run on a path."""
        name = _name_uncounted(operation)
        if name and getattr(operation, "_overloadpacket", operation) not in self._counted:
            self._ran.setdefault(name, Counter())[path] += 1

    def describe(self, modules: Sequence[NamedModule], paths: Sequence[tuple[int, ...]]) -> list[str]:
        """A note for each operation, the most frequent first."""
        ordered = sorted(self._ran.items(), key=lambda item: (-item[1].total(), item[0]))
        notes = []
        for name, ran in ordered[:MOST_NOTES]:
            times = "once" if ran.total() == 1 else f"{ran.total():,} times"
            places: Counter[str] = Counter()
            for path, number in ran.items():
                places[_name_place(modules, paths[path])] += number
            first = [place for place, _ in places.most_common(MOST_MODULES)]
            more = f" and {len(places) - len(first)} more" if len(places) > len(first) else ""
            notes.append(f"not counted, because there is no formula: {name}, {times}, in {', '.join(first)}{more}")
        if len(ordered) > MOST_NOTES:
            notes.append(f"not counted either: {len(ordered) - MOST_NOTES} more operations")
        return notes


@functools.cache
def _name_uncounted(operation: Any) -> str:
    """The name of an operation that multiplies or may do so; "" of any other."""
    packet = getattr(operation, "_overloadpacket", operation)
    library, _, name = getattr(packet, "_qualified_op_name", f"higher_order::{packet}").partition("::")
    if library in OWN_LIBRARIES:
        words = name.strip("_").split("_")
        if not any(map(PRODUCT.fullmatch, words)) or any(map(NOT_PRODUCT.fullmatch, words)):
            return ""
    return f"{library}.{name}"


def _name_place(modules: Sequence[NamedModule], rows: tuple[int, ...]) -> str:
    if not rows:
        return "no module"
    return modules[rows[-1]].name or "the model itself"
