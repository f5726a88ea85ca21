"""Whether a job still runs, from rank 0's stream alone and without reading all of it."""

from __future__ import annotations

import os
from pathlib import Path

from distprof.config.decode import load_json
from distprof.errors import DataError
from distprof.facts.presence import look_at_writer
from distprof.storage.opening import open_file
from distprof.storage.run_folder import rank_path

_MAX_HEADER_BYTES, _TAIL_BYTES = 1 << 20, 1 << 16


def is_running(folder: Path) -> bool:
    """Whether rank 0 writes its stream. Where locks cannot tell (another host, some file systems): has not ended it."""
    try:
        with open_file(rank_path(folder, 0)) as file:
            header = load_json(file.readline(_MAX_HEADER_BYTES))
            lives = look_at_writer(file.fileno(), header if isinstance(header, dict) else {}).writer_lives
            if lives is not None:
                return lives
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            last = file.read().splitlines()[-1:]
    except (OSError, DataError, ValueError, RecursionError):
        return False
    return not any(b'"type":"end"' in line.replace(b" ", b"") for line in last)
