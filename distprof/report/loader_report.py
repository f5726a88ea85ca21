"""DataLoaders that do not have batches in time, as a part of a verdict."""

from __future__ import annotations

import enum

from msgspec import Struct


class LoaderLimit(enum.StrEnum):
    """Why a batch is not ready when a rank asks for it."""

    WORKERS = "workers"
    """There are too few workers, or none: all of them together take longer for a step's batches than the step does."""
    CORES = "cores"
    """The same, and the cores that the ranks may run on have no room for as many as would keep up."""
    ORDER = "order"
    """The workers keep up, and others are ready meanwhile: single batches take far longer than most."""
    PINNING = "pinning"
    """Batches are ready, and have yet to be copied into pinned memory."""


class SlowLoader(Struct, frozen=True, kw_only=True):
    """The loader of the rank that is named, or of the median rank, in the steps in which the cause acts."""

    workers: int
    """``num_workers``."""
    prefetch: int | None
    """``prefetch_factor``. None: there are no workers."""
    wait_ns: float
    """How long the rank waits for it per step in which the cause acts, or of all ranks the one that waits longest in
    each step; without workers, how long it takes itself to make its batches."""
    batches_per_step: float
    """How many it takes."""
    batch_ns: float | None
    """What a worker takes to make a batch, or without workers the training thread. None: not known."""
    collate_ns: float | None
    """The part of it in which samples are put together. None: not known."""
    others_batch_ns: float | None
    """``batch_ns`` of the other ranks' median, of a rank that is named. None: of another kind, or not known."""
    ready: float | None
    """How many batches are ready when one is asked for. None: there are no workers."""
    step_ns: float
    """The step without the cause."""
    limit: LoaderLimit | None
    """None: it is none of these, or not known."""
    workers_needed: int | None
    """So many would keep up with ``step_ns``. None: more are not what is missing, or it is not known whether they
    would."""
