"""Takes what is imported out of the collector's sight.

It would look at all of it again with each full collection, and in a fork copy the pages on which it lies: a tenth of
what tests in one process take, and a quarter of a short job's time.
"""

from __future__ import annotations

import gc
import sys


def freeze_imported() -> None:
    """Not with torch 2.6, for which distprof looks for its own functions among all objects."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch._C._dynamo.eval_frame, "skip_code"):
        gc.collect()
        gc.freeze()
