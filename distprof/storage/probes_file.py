"""``probes.json`` of a run folder: what ``distprof doctor --suspects`` measured afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distprof.config.decode import decode
from distprof.errors import DataError
from distprof.facts.probes import FIGURES, PAIR_FIGURES, PROBES_SCHEMA, SuspectProbes
from distprof.storage.whole_file import read_object, write_json

PROBES_FILE = "probes.json"
MAX_PROBES_BYTES = 4 << 20
MAX_SUSPECTS = 64
LEAST, MOST = 1e-6, 1e24
"""Beyond these no rate and no latency is."""


def write_probes(folder: Path, document: Mapping[str, Any]) -> None:
    """Writes the file, whole or not at all; the document has the fields of `SuspectProbes`, and its schema.

    Raises:
        OSError: It cannot be written.
    """
    write_json(folder / PROBES_FILE, document)


def read_probes(folder: Path, root: int, world_size: int) -> tuple[SuspectProbes | None, list[str]]:
    """The probes, None if there are none that can be used; and why those that are there cannot.

    Args:
        folder: The run folder.
        root: Its descriptor.
        world_size: Ranks of the run.
    """
    path, missing = folder / PROBES_FILE, "no probes"
    try:
        values = read_object(
            path, schema=PROBES_SCHEMA, what="file", missing=missing, max_bytes=MAX_PROBES_BYTES, inside=root
        )
        known = {key: item for key, item in values.items() if key in SuspectProbes.__struct_fields__}
        probes = decode(SuspectProbes, known, str(path), DataError)
        _check(probes, world_size)
    except DataError as error:
        text = str(error).removeprefix(f"{path}: ")
        return None, [] if text == missing else [f"{PROBES_FILE}: {text}, left out"]
    return probes, []


def _check(probes: SuspectProbes, world_size: int) -> None:
    """Refuses what the judge cannot compare.

    Raises:
        DataError: Ranks, pairs or rounds do not fit together.
    """
    ranks, references = [item.rank for item in probes.ranks], probes.references
    named = {*probes.suspects, *references}
    pairs = {(min(one, other), max(one, other)) for one in probes.suspects for other in references} | {references}
    series = [getattr(item, name) for item in probes.ranks for name in FIGURES]
    series += [getattr(item, name) for item in probes.pairs for name in PAIR_FIGURES]
    needed = [item.product_flops_per_s for item in probes.ranks] + [item.latency_ns for item in probes.pairs]
    fits = (
        len(named) == len(probes.suspects) + 2 == len(ranks)
        and 0 < len(probes.suspects) <= MAX_SUSPECTS
        and ranks == sorted(named)
        and sorted(references) == [*references]
        and 0 <= ranks[0] <= ranks[-1] < world_size
        and sorted((item.rank, item.peer) for item in probes.pairs) == sorted(pairs)
        and len({len(values) for values in series if values}) == 1
        and all(needed)
        and all(LEAST <= value <= MOST for values in series for value in values)
    )
    if not fits:
        raise DataError("ranks or measurements do not fit together")
