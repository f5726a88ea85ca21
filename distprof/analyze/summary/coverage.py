"""What are the numbers based on, where does each kind come from, and what is missing?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.analyze.stats.measured_steps import MeasuredSteps, Timing, compute_exposed
from distprof.analyze.summary.ranks import describe_other_work
from distprof.facts.run import KINDS, Clock, Collectives, Run, name_ranks
from distprof.report.report import Coverage
from distprof.report.wait_report import is_sample

MAX_GROUPS = 4
"""Groups that a note or a source names."""
MOST_SHARED = 8
"""GPUs that a note names, of those that ranks share."""


def report_coverage(
    measured_steps: MeasuredSteps,
    timings: Sequence[Timing],
    headline: Timing | None,
    cycles: SyncCycles | None,
    *,
    notes: Iterable[str] = (),
) -> Coverage:
    """Ranks and steps present, what was lost, and every note.

    Args:
        measured_steps: The ranks and steps that count.
        timings: The clocks measured.
        headline: The one the headline uses.
        cycles: What the verdict is based on.
        notes: Those of other parts of the report.
    """
    run = measured_steps.run
    traced = {item.rank for item in run.activity}
    present = [
        info.rank for info, there in zip(run.ranks, measured_steps.present, strict=True) if there or info.rank in traced
    ]
    apart = {info.rank for info, aside in zip(run.ranks, measured_steps.apart, strict=True) if aside}
    at_work = {info.rank for info in run.ranks if info.last_write is not None and info.last_write.writer_lives}
    whole = (
        {info.rank for info in run.ranks if info.source == "trace" or info.ended is not None} & {*present, *apart}
    ) | at_work
    planned = _read_planned_steps(run.meta.config)
    warmup = (run.column("warmup")[~measured_steps.apart] == 1).any(axis=0)
    return Coverage(
        complete=_is_complete(measured_steps, planned),
        world_size=run.meta.world_size,
        ranks_present=tuple(present),
        ranks_missing=tuple(rank for rank in sorted(_expect_ranks(run)) if rank not in whole),
        steps_measured=int(measured_steps.counted.sum()),
        steps_timed_alone=int((measured_steps.timed & ~measured_steps.counted).sum()),
        steps_warmup=int(warmup.sum()),
        steps_planned=planned,
        rows_lost=sum(info.rows_lost for info in run.ranks),
        segments_lost=int(np.nansum(run.column("segments_lost"))),
        clocks=tuple(timing.clock.value for timing in timings),
        sources=tuple(list_sources(measured_steps, timings, cycles)),
        notes=tuple(
            dict.fromkeys(
                [
                    *_note_apart(measured_steps),
                    *_note_steps(measured_steps, timings, headline),
                    *notes,
                    *_collect_notes(measured_steps),
                ]
            )
        ),
    )


def _expect_ranks(run: Run) -> Iterable[int]:
    """The ranks that the job had, as far as known; where only file names tell the rank numbers, those and no others."""
    there = {info.rank for info in run.ranks}
    return there if there and max(there) >= run.meta.world_size else range(run.meta.world_size)


def _is_complete(measured_steps: MeasuredSteps, planned: int | None) -> bool:
    run = measured_steps.run
    if run.unread:
        return False
    everyone = {info.rank for info in run.ranks} == set(_expect_ranks(run))
    ended_well = all(
        info.rows_lost == 0 and (info.source == "trace" or info.ended == "completed") for info in run.ranks
    )
    if run.activity and not measured_steps.recorded.size:
        return everyone  # traces without steps
    dropped = np.array([info.rows_dropped for info in run.ranks], dtype=np.int64)
    trains = ~measured_steps.apart
    recorded = measured_steps.recorded[trains]
    wanted = max(planned or 0, int(recorded.any(axis=0).sum()) + int(dropped.max(initial=0)))
    return everyone and ended_well and bool((recorded.sum(axis=1) + dropped[trains] == wanted).all()) and wanted > 0


def _read_planned_steps(config: Mapping[str, object]) -> int | None:
    """Warm-up and measured steps that the configuration asks for; None: it does not say."""
    train = config.get("train")
    if not isinstance(train, Mapping):
        return None
    match train.get("steps"), train.get("warmup_steps"):
        case int(steps), int(warmup_steps):
            return steps + warmup_steps
    return None


def _collect_notes(measured_steps: MeasuredSteps) -> list[str]:
    """Notes made while recording and reading; a note that several ranks share appears once and names them."""
    run = measured_steps.run
    ranks_by_note: dict[str, list[int]] = {}
    for info in run.ranks:
        for note in info.notes:
            ranks_by_note.setdefault(note, []).append(info.rank)
    noted = [
        note if len(ranks) == run.meta.world_size else f"{name_ranks(ranks)}: {note}"
        for note, ranks in ranks_by_note.items()
    ]
    return [*run.meta.notes, *_note_shared(run), *run.warnings, *noted]


def _note_shared(run: Run) -> list[str]:
    """Which ranks share a GPU, unless the job has noted that itself."""
    by_device: dict[str, list[int]] = {}
    for info in run.ranks:
        if info.device_uuid is not None:
            by_device.setdefault(info.device_uuid, []).append(info.rank)
    shared = [ranks for ranks in by_device.values() if len(ranks) > 1]
    if not shared or any("GPU(s): device times include" in note for note in run.meta.notes):
        return []
    who = "; ".join(map(name_ranks, shared[:MOST_SHARED])) + ("; ..." if len(shared) > MOST_SHARED else "")
    return [f"ranks share a GPU ({who}): device times include the other ranks' turns"]


def _note_apart(measured_steps: MeasuredSteps) -> list[str]:
    """What the ranks did that do not train as the others do."""
    by_words: dict[str, list[int]] = {}
    for position in np.flatnonzero(measured_steps.apart).tolist():
        words = describe_other_work(measured_steps, position)
        by_words.setdefault(words, []).append(measured_steps.numbers[position])
    return [
        f"{name_ranks(ranks)}: {words}; nothing here compares that with the other ranks' steps"
        for words, ranks in by_words.items()
    ]


def _describe_early(measured_steps: MeasuredSteps) -> str:
    """Which ranks had completed when others still took steps, as with uneven inputs; empty if none had."""
    run = measured_steps.run
    last = np.where(measured_steps.apart, -1, np.nanmax(run.column("step"), axis=1, initial=-1))
    early = [info.ended == "completed" and 0 <= at < last.max() for info, at in zip(run.ranks, last, strict=True)]
    if not any(early):
        return ""
    ranks = [info.rank for info, is_early in zip(run.ranks, early, strict=True) if is_early]
    return f", of which {name_ranks(ranks)} completed and took none after step {int(last[early].max())},"


def _note_steps(measured_steps: MeasuredSteps, timings: Sequence[Timing], headline: Timing | None) -> list[str]:
    run = measured_steps.run
    notes = [f"not readable and left out: {reason}" for reason in run.unread]
    if not measured_steps.counted.any():
        notes.append("no measured step was reported by every rank present: every statistic is n/a")
    if failed := int((run.column("failed") == 1).any(axis=0).sum()):
        notes.append(f"{failed} step(s) failed on some rank and are left out")
    shadow = run.column("shadow") == 1
    if shadow[:, measured_steps.counted].any():
        notes.append("recording was off in all kept steps; only step times are known")
    elif shadows := int(shadow.any(axis=0).sum()):
        why = "shadow steps, or it was off, or left out to save time"
        notes.append(f"{shadows} step(s) ran without recording ({why}): only the step time includes them")
    window = run.column("window") == 1
    if windows := int(window.any(axis=0).sum()):
        notes.append(f"{windows} step(s) ran in the profiler's window, which slows them down, and are left out")
    left_out = measured_steps.recorded & (run.column("warmup") == 0) & (run.column("failed") == 0)
    left_out &= ~(shadow | window).any(axis=0) & ~measured_steps.counted & ~measured_steps.apart[:, np.newaxis]
    if partial := int(left_out.any(axis=0).sum()):
        why = f"not reported whole by every rank present{_describe_early(measured_steps)}"
        notes.append(f"{partial} measured step(s) were {why} and are left out")
    notes.extend(
        f"{lacking} step(s) have no time on the {timing.clock} clock and are left out of it"
        for timing in timings
        if (lacking := int(measured_steps.counted.sum() - timing.used.sum()))
    )
    notes.extend(_note_missing(measured_steps))
    if headline is not None and headline.clock is Clock.HOST and len(timings) > 1:
        notes.append("not every rank has device times: the headline is on the host clock")
    if headline is not None and not np.isfinite(headline.mean_phase_ns).any():
        notes.append("phases were not recorded: step time only")
    elif headline and run.meta.world_size > 1 and not np.isfinite(compute_exposed(measured_steps, headline)).any():
        notes.append(
            f"exposed communication is not measured: on the {headline.clock} clock no range marks it, so it is part of "
            "the other phases"
        )
    elif _lacks_collectives(measured_steps):
        notes.append(
            "no collective was seen, in steps or between them: if the ranks synchronised at all, their waiting is "
            "part of the other phases; a script that marks its own steps separates it by profiler.watch(model)"
        )
    return notes


def _note_missing(measured_steps: MeasuredSteps) -> list[str]:
    """What cannot be known while ranks of the job, or members of a group, are missing."""
    notes, run = [], measured_steps.run
    short = {
        f"{table.group} ({table.size - len(table.ranks)} of {table.size})": None
        for table in (*run.device_collectives, *run.collectives) if 1 < len(table.ranks) < table.size
    }  # fmt: skip
    if short:
        names = ", ".join(list(short)[:MAX_GROUPS]) + (", ..." if len(short) > MAX_GROUPS else "")
        notes.append(
            f"members of {names} are missing: waits are at least what is shown, and neither who arrived last "
            "nor the transfer is known"
        )
    if measured_steps.num_missing and measured_steps.counted.any():
        notes.append("ranks are missing, and may hold up those that are present: what a change would save is not known")
    return notes


def _lacks_collectives(measured_steps: MeasuredSteps) -> bool:
    """Whether several ranks recorded collectives and none was seen, not even between steps, nor an exchange of two."""
    counts = np.array([measured_steps.mean(f"{kind}_count")[measured_steps.present] for kind in KINDS])
    counts = counts[np.isfinite(counts).any(axis=1)]  # kinds that the recorder did not know say nothing
    return (
        measured_steps.run.meta.world_size > 1
        and bool(measured_steps.counted.any())
        and counts.size > 0
        and bool((counts == 0).all())
        and not (np.nan_to_num(measured_steps.run.column("between_count")) > 0).any()
        and not any(info.point_to_point for info in measured_steps.run.ranks)
    )


STAMPS = {
    Clock.HOST: "timestamps at phase boundaries",
    Clock.DEVICE: "CUDA events at phase boundaries on the compute stream, read later",
}
TRACES = {
    Clock.HOST: "named ranges in the traces",
    Clock.DEVICE: "completion of the work that each range launched, collectives excluded (from traces)",
}


def list_sources(measured_steps: MeasuredSteps, timings: Sequence[Timing], cycles: SyncCycles | None) -> Iterator[str]:
    """One line per kind of number that the report has.

    Args:
        measured_steps: The ranks and steps that count.
        timings: The clocks measured.
        cycles: What the verdict is based on.
    """
    foreign = all(info.source == "trace" for info in measured_steps.run.ranks)
    for timing in timings:
        if np.isfinite(timing.mean_phase_ns).any():
            yield f"phases ({timing.clock} clock): {(TRACES if foreign else STAMPS)[timing.clock]}"
    timed = [table for table in measured_steps.run.device_collectives if table.ends_seen]
    tables = [table for table in timed or measured_steps.run.collectives if len(table.ranks) > 1]
    groups = sorted({table.group for table in tables})
    if groups:
        steps = np.unique(np.concatenate([table.steps for table in tables]))
        kept = int(measured_steps.counted[steps].sum())
        stamps = "device events" if timed else "host stamps"
        seen = "begin and end of every rank's kernel" if foreign else f"every rank's {stamps}"
        yield (
            f"waits and transfers: {seen} of each collective, {len(groups)} group(s), "
            f"{kept:,} of {int(measured_steps.counted.sum()):,} measured steps"
            f"{_describe_matching(tables) if foreign else ''}"
        )
    if cycles is not None:
        of_what = "each collective" if cycles.source == "collectives" else "the step as a whole"
        used, measured = len(cycles.steps), int(measured_steps.counted.sum())
        count = f"{used:,} of {measured:,} measured steps" if is_sample(used, measured) else f"{used:,} steps"
        if cycles.span > 1:
            of_what = f"rounds of {cycles.span} steps, from one meeting of the ranks to the next"
            count = f"{used:,} rounds"
        yield f"verdict and what-if: own times and waits of {of_what}, {cycles.clock} clock, {count}"
    if measured_steps.run.meta.clock_readings:
        rounds = len({reading.at_ns for reading in measured_steps.run.meta.clock_readings})
        apart = any(reading.offset_ns or reading.bound_ns for reading in measured_steps.run.meta.clock_readings)
        if foreign:
            yield f"clocks: {'compared by when ranks left common collectives' if apart else 'the ranks share one'}"
        else:
            yield f"host clocks: compared with rank 0's, {rounds} reading(s)"


def _describe_matching(tables: Sequence[Collectives]) -> str:
    """How the collectives of traces were matched between ranks."""
    numbered = {table.group for table in tables if table.by_number}
    ordered = sorted({table.group for table in tables} - numbered)
    by_number = "by their number within the group (Seq)"
    by_order = "by their order in the step, as the traces do not number them"
    if not ordered:
        return f", matched between ranks {by_number}"
    if not numbered:
        return f", matched between ranks {by_order}"
    names = ", ".join(ordered[:MAX_GROUPS]) + (", ..." if len(ordered) > MAX_GROUPS else "")
    return f", matched between ranks {by_number}; those of {names} by their order in the step"
