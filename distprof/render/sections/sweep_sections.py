"""The sections of a sweep's report, which the terminal and the page lay out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from distprof.render.sections.section_types import Fact, Section, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_count, format_milliseconds, format_ratio
from distprof.report.sweep_report import SweepEffect, SweepPair, SweepRatio, SweepReport, SweepRow

WARMUP, PRECISION, RANKS = "train.warmup_steps", "train.precision", "sweep.ranks"
REASON_LIMIT = 300
JOB_HEADS = ("steps", "mean", "median", "std", "min", "max", "total", "spread", "tokens/s")
EFFECT_HEADS = (
    "key", "from", "to", "pairs", "step time", "95 %", "least to most", "longer, shorter", "spread", "efficiency",
    "predicted",
)  # fmt: skip
PAIR_HEADS = (
    "key",
    "from",
    "to",
    "others",
    "jobs",
    "step time",
    "95 %",
    "spread",
    "throughput",
    "efficiency",
    "predicted",
)
JOBS_NOTE = "std with n - 1; spread: std over mean; warm-up steps are left out"
EFFECTS_NOTE = (
    "pairs differ in the key only; step time: how many times as long, the geometric mean over pairs; the interval of "
    "fewer than three pairs knows nothing of another start of the same jobs: sweep seed=1,2,3 to see those"
)


def list_sweep_sections(report: SweepReport, *, with_pairs: bool) -> list[Section]:
    """Every section; the table of pairs, which may be long, only if asked for."""
    effects = [_show_effect(effect) for effect in report.effects]
    pairs = [_show_pair(pair) for pair in report.pairs] if with_pairs else []
    return [
        Section(key="headline", title="what was swept", facts=tuple(_list_facts(report))),
        _show_jobs(report),
        _show_incomplete(report),
        Section(
            key="sweep_effects", title="what each key did", notes=(EFFECTS_NOTE,) if effects else (),
            columns=make_columns(EFFECT_HEADS, effects, ("key", "from", "to"), non_empty_only=True),
        ),
        Section(
            key="sweep_pairs", title="every pair of jobs that differ in one key",
            columns=make_columns(PAIR_HEADS, pairs, ("key", "from", "to", "others"), non_empty_only=True),
        ),
    ]  # fmt: skip


def _list_facts(report: SweepReport) -> Iterator[Fact]:
    counts = Counter(row.status for row in report.rows)
    ended = ", ".join(f"{count:,} {status}" for status, count in counts.items())
    yield Fact(label="jobs", number=f"{len(report.rows):,}", text=f": {ended}")
    for key, values in report.keys.items():
        yield Fact(label=clean_text(key), text=clean_text(", ".join(values), REASON_LIMIT))
    for effect in report.effects:
        if effect.key == WARMUP:
            yield Fact(label="warm-up", text=_format_warmup(effect))
        elif effect.key == PRECISION:
            yield Fact(label="precision", text=_format_effect_time(effect))
        elif effect.key == RANKS and effect.efficiency is not None:
            yield Fact(label="scaling", text=_format_scaling(effect))
    for note in report.notes:
        yield Fact(label="note", text=clean_text(note, REASON_LIMIT))


def _format_warmup(effect: SweepEffect) -> str:
    return (
        f"{clean_text(effect.value)} instead of {clean_text(effect.base)}: the spread is "
        f"{format_ratio(effect.spread_ratio)} instead of {format_ratio(effect.base_spread_ratio)} "
        f"({_count_pairs(effect, 'median over ')}); a step takes {show_times(effect.time)} times as long"
    )


def _format_effect_time(effect: SweepEffect) -> str:
    low, high = effect.time.low, effect.time.high
    unclear = "" if low is None or high is None or not low <= 1 <= high else "no clear difference: "
    return (
        f"{clean_text(effect.value)} instead of {clean_text(effect.base)}: {unclear}a step takes "
        f"{show_times(effect.time)} times as long ({_count_pairs(effect)}: longer in {effect.num_longer}, "
        f"shorter in {effect.num_shorter})"
    )


def _format_scaling(effect: SweepEffect) -> str:
    assert effect.efficiency is not None
    return (
        f"{clean_text(effect.value)} ranks instead of {clean_text(effect.base)}: "
        f"{show_times(effect.efficiency)} of the throughput that this many ranks would have at best"
    )


def _count_pairs(effect: SweepEffect, before: str = "") -> str:
    return f"{before}{effect.num_pairs} pairs" if effect.num_pairs != 1 else "one pair"


def _show_jobs(report: SweepReport) -> Section:
    keys = _shorten(report.keys)
    show_ranks = RANKS not in report.keys
    heads = ("job", *keys, *(["ranks"] if show_ranks else []), "status", *JOB_HEADS)
    rows = [
        (
            f"{row.number}", *(clean_text(value) for value in row.settings.values()),
            *([f"{row.ranks}"] if show_ranks else []), row.status, *_show_numbers(row),
        )
        for row in report.rows
    ]  # fmt: skip
    clocks = sorted({row.clock for row in report.rows if row.clock is not None})
    of = f", {' or '.join(clocks)} clock" if clocks else ""
    return Section(
        key="sweep_jobs", title=f"jobs: step time{of}, ms", notes=(JOBS_NOTE,),
        columns=make_columns(heads, rows, (*keys, "status")),
    )  # fmt: skip


def _show_numbers(row: SweepRow) -> tuple[str, ...]:
    times = (row.mean_ns, row.median_ns, row.std_ns, row.min_ns, row.max_ns, row.total_ns)
    return (
        f"{row.steps}", *map(format_milliseconds, times), format_ratio(row.spread_ratio),
        format_count(None if row.tokens_per_s is None else round(row.tokens_per_s)),
    )  # fmt: skip


def _show_incomplete(report: SweepReport) -> Section:
    facts = []
    for row in report.rows:
        if row.status != "completed":
            output = "" if row.folder is None else f"; its output: {clean_text(row.folder)}.log"
            why = "" if row.reason is None else f": {clean_text(row.reason, REASON_LIMIT)}"
            facts.append(Fact(label=f"job {row.number}", text=f"{row.status}{why}{output}"))
    return Section(key="sweep_incomplete", title="jobs that did not complete", facts=tuple(facts))


def _show_effect(effect: SweepEffect) -> tuple[str, ...]:
    return (
        clean_text(effect.key), clean_text(effect.base), clean_text(effect.value), f"{effect.num_pairs}",
        f"{effect.time.value:.2f}", show_interval(effect.time), f"{effect.least:.2f} to {effect.most:.2f}",
        f"{effect.num_longer}, {effect.num_shorter}",
        f"{format_ratio(effect.base_spread_ratio)} to {format_ratio(effect.spread_ratio)}",
        _show_optional(effect.efficiency), _show_optional(effect.predicted),
    )  # fmt: skip


def _show_pair(pair: SweepPair) -> tuple[str, ...]:
    others = " ".join(f"{key}={value}" for key, value in pair.others.items())
    return (
        clean_text(pair.key), clean_text(pair.base), clean_text(pair.value), clean_text(others, 200),
        f"{pair.base_job}, {pair.job}", f"{pair.time.value:.2f}", show_interval(pair.time),
        f"{format_ratio(pair.base_spread_ratio)} to {format_ratio(pair.spread_ratio)}",
        _show_optional(pair.throughput), _show_optional(pair.efficiency), _show_optional(pair.predicted),
    )  # fmt: skip


def show_times(ratio: SweepRatio) -> str:
    """A ratio with its interval: ``1.42 (1.31 to 1.54)``."""
    interval = show_interval(ratio)
    return f"{ratio.value:.2f}" + (f" ({interval})" if interval != NOT_MEASURED else "")


def show_interval(ratio: SweepRatio) -> str:
    """The interval alone: ``1.31 to 1.54``."""
    return NOT_MEASURED if ratio.low is None or ratio.high is None else f"{ratio.low:.2f} to {ratio.high:.2f}"


def _show_optional(ratio: SweepRatio | None) -> str:
    return NOT_MEASURED if ratio is None else show_times(ratio)


def _shorten(keys: Mapping[str, object]) -> tuple[str, ...]:
    """The last words of keys, where those differ."""
    last = [key.rpartition(".")[2] for key in keys]
    taken = {"job", "ranks", "status", *JOB_HEADS} if RANKS not in keys else {"job", "status", *JOB_HEADS}
    unclear = {word for word, count in Counter(last).items() if count > 1 or word in taken}
    return tuple(clean_text(key if word in unclear else word) for key, word in zip(keys, last, strict=True))
