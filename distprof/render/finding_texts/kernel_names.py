"""Kernels' names as tables and sentences show them."""

from __future__ import annotations

import re

from distprof.render.units import clean_text

_NOISE = re.compile(r"\(anonymous namespace\)::|<unnamed>::|at::native::|\(int\)|(?<![\w:])void ")


def name_kernel(name: str, limit: int) -> str:
    """A kernel's name without the words that nearly all of them have, cut to a length."""
    return clean_text(_NOISE.sub("", name[:4_000]).strip(), limit) or "(no name)"
