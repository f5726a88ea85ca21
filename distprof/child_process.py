"""The environment in which a child process finds this same distprof."""

from __future__ import annotations

import os
from pathlib import Path


def make_child_environment(**more: str) -> dict[str, str]:
    """This process' environment, for ``python -m distprof...`` wherever it starts.

    Args:
        more: Further variables.
    """
    own = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, (own, os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, **more}
