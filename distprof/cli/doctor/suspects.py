"""``distprof doctor --suspects``: measures suspected ranks against two healthy ones, and says what it is."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from distprof import __version__
from distprof.analyze.judge_probes import judge_probes
from distprof.cli.options import put_json, require_folder
from distprof.errors import EXIT_FAILED, EXIT_OK, UsageError
from distprof.facts.plain import make_plain
from distprof.facts.probes import PROBES_SCHEMA
from distprof.render.sections.probes import describe_probes, show_probes
from distprof.render.terminal.terminal import render_sections
from distprof.storage.generations import find_newest
from distprof.storage.probes_file import write_probes
from distprof.storage.run_folder import read_meta

if TYPE_CHECKING:  # brings torch with it
    from distprof.world import Identity, World

JOIN_S = 120.0
"""How long ranks wait for each other at the start: importing torch from a slow disk takes that long."""
MOST_SECONDS, MOST_SUSPECTS = 60, 16
GRACE_S = 120.0
"""So long after the time asked for, a rank that still waits, such as in NCCL, ends itself."""


def read_ranks(text: str, option: str) -> tuple[int, ...]:
    """Global ranks, in ascending order.

    Raises:
        UsageError: They are no numbers, or one stands there twice.
    """
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and len(part) < 8 for part in parts):
        raise UsageError(f"{option} {text}: must be ranks, separated by commas, such as 1,3")
    ranks = sorted(map(int, parts))
    if len({*ranks}) < len(ranks):
        raise UsageError(f"{option} {text}: names a rank twice")
    return tuple(ranks)


def probe(options: argparse.Namespace) -> int:
    """Joins the other ranks, measures, and shows and writes what it is on rank 0; returns the exit code.

    Raises:
        DistprofError: A rank has gone or does not answer, or an option is wrong.
    """
    from distprof.record.hosts.suspect_probe import probe_suspects  # torch
    from distprof.world import read_identity

    identity = read_identity()
    suspects = read_ranks(options.suspects, "--suspects")
    references = () if options.references is None else read_ranks(options.references, "--references")
    _check(suspects, references, identity.world_size)
    if identity.rank == 0:  # the only one that writes; other hosts need not have the folders
        require_folder(options.json)
        _check_run(options.into, identity.world_size)
    limit_s, late = options.seconds + GRACE_S, "the probes did not end in time"
    with join_ranks(identity, device="auto", backend="auto", limit_s=limit_s, late=late) as world:
        measured = probe_suspects(world, suspects, references, seconds=options.seconds)
    if measured is None:
        return EXIT_OK
    report = judge_probes(measured)
    document = {
        "schema": PROBES_SCHEMA, "distprof_version": __version__, **make_plain(measured),
        "sentence": describe_probes(report), "report": make_plain(report),
    }  # fmt: skip
    if options.into is not None:
        write_probes(find_newest(options.into), document)
    if not put_json(options.json, document):
        render_sections("", [show_probes(report)], Console(width=options.width, highlight=False))
    return EXIT_OK


@contextlib.contextmanager
def join_ranks(identity: Identity, *, device: str, backend: str, limit_s: float, late: str) -> Iterator[World]:
    """The process group of all ranks, for as long as it takes; collective.

    Args:
        identity: This process, as the launcher says.
        device: As of `distprof.world.join`.
        backend: Likewise.
        limit_s: How long it may take; then this process ends itself, whatever it waits for.
        late: What is said then.

    Raises:
        DistprofError: A rank does not come.
    """
    from distprof.world import join, leave

    world = join(identity, device=device, backend=backend, timeout_s=JOIN_S)
    timer = threading.Timer(limit_s, _end_now, [world.rank, late])
    timer.daemon = True
    timer.start()
    try:
        yield world
    finally:
        leave()
        timer.cancel()


def _check(suspects: tuple[int, ...], references: tuple[int, ...], size: int) -> None:
    if size < 3:
        raise UsageError(f"--suspects needs a suspect and two other ranks, not {size} in all: start it with torchrun")
    if len(suspects) > MOST_SUSPECTS:
        raise UsageError(f"--suspects names {len(suspects)} ranks: {MOST_SUSPECTS} at most")
    if wrong := [rank for rank in (*suspects, *references) if rank >= size]:
        raise UsageError(f"rank {wrong[0]} does not exist: there are {size} ranks, counted from 0")
    if references and (len(references) != 2 or {*references} & {*suspects}):
        raise UsageError("--references must name two ranks that are no suspects")
    if size - len(suspects) < 2:
        raise UsageError(f"--suspects leaves {size - len(suspects)} of {size} ranks: two are needed to compare with")


def _check_run(folder: Path | None, size: int) -> None:
    """Refuses, before measuring, a folder that is none of a run of so many ranks."""
    if folder is not None and (ranks := read_meta(find_newest(folder)).world_size) != size:
        raise UsageError(f"--into {folder}: is a run of {ranks} ranks, and the probes have {size}: start as many")


def _end_now(rank: int, what: str) -> None:
    print(f"distprof: rank {rank}: {what}: a rank has gone, or a link is down", file=sys.stderr)
    os._exit(EXIT_FAILED)
