"""The sections of a comparison, which the terminal, the page and Markdown lay out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from distprof.render.sections.section_types import Fact, Section, make_columns
from distprof.render.units import NOT_MEASURED, clean_text, format_excess, format_milliseconds, format_time
from distprof.report.comparison_report import ComparedAverage, ComparedTime, ComparisonReport, Side

NAME_LETTERS, VALUE_LETTERS, NOTE_LETTERS = 60, 60, 300
MAX_PERCENT = 100_000
"""Longer times say nothing more."""
SCOPES = ("step", "job", "phase", "collective", "module", "kernel", "rank")
"""In the order in which they are shown."""
DIFFERENT = ("better", "worse")
LIMIT_WORDS = {
    "within": "within it", "over": "longer by more than that",
    "inconclusive": "inconclusive: the interval reaches to both sides of it",
}  # fmt: skip
ONE_RUN = (
    "one run per side: how much runs of the same thing vary is not known, and intervals hold only what varies within "
    "these runs"
)
ROW_HEADS = ("what", "base, ms", "new, ms", "change", "interval", "verdict")
BOTH_HEADS = (*ROW_HEADS[:5], "usual", "its interval", ROW_HEADS[5])
WATERFALL_ABOUT = "of the mean step; waits and transfers are apart where they were measured"
WATERFALL_HEADS = ("base, ms", "new, ms")
CHANGE_HEADS = ("what changed", "base", "new")


def describe_comparison(report: ComparisonReport) -> str:
    """The verdict in a sentence."""
    step = report.step
    verdict, mean = step.verdict, step.mean
    became = f"{format_time(mean.base_ns)} became {format_time(mean.new_ns)} ({step.clock} clock)"
    if mean.verdict in DIFFERENT or verdict not in DIFFERENT:
        return f"{verdict}: {_describe_change(mean, 'a step takes')}; {became}"
    assert step.usual is not None
    usual = _describe_change(step.usual, "the usual step takes")
    return f"{verdict}: {usual}; with rare long steps, the mean changed by {_show_change(mean)} ({show_interval(mean)})"


def _describe_change(average: ComparedAverage, subject: str) -> str:
    if average.verdict in DIFFERENT:
        ratio = average.ratio or 1.0
        word = "longer" if ratio > 1 else "less"
        return f"{subject} {format_percent(abs(ratio - 1))} {word} ({show_interval(average)})"
    if average.low_ratio is None or average.high_ratio is None:
        return f"the mean step changed by {_show_change(average)}, and too few steps or runs say how sure that is"
    return f"the mean step changed by {_show_change(average)} ({show_interval(average)})"


def list_comparison_facts(report: ComparisonReport) -> Iterator[Fact]:
    """The sides, the limit, and how much runs vary."""
    yield Fact(label="base", text=_describe_side(report.base))
    yield Fact(label="new", text=_describe_side(report.new))
    limit = format_percent(report.limit_ratio)
    yield Fact(label="limit", text=f"{limit} longer: {_describe_limit(report)}")
    if report.runs_vary_ratio is None:
        yield Fact(label="runs", text=ONE_RUN)
    else:
        text = f"the mean step varies by {format_percent(report.runs_vary_ratio)} from run to run (standard deviation)"
        if report.runs_assumed_ratio is None:
            text += ", and the intervals hold that, too"
        else:
            assumed = format_percent(report.runs_assumed_ratio)
            text += f"; so few runs may be alike by chance, so that intervals assume {assumed}, too"
        yield Fact(label="runs", text=text)


def _describe_side(side: Side) -> str:
    names = ", ".join(dict.fromkeys(clean_text(name) for name in side.names))
    runs = f"{len(side.names)} runs of " if len(side.names) > 1 else ""
    steps = f"{min(side.steps):,}" + ("" if min(side.steps) == max(side.steps) else f" to {max(side.steps):,}")
    word = "step" if steps == "1" else "steps"
    return f"{clean_text(names, NOTE_LETTERS)}: {runs}{steps} measured {word}, {_list_means(side)}"


def _describe_limit(report: ComparisonReport) -> str:
    """Where the step's interval lies, and its level: more is asked of rows, because there are many."""
    if report.step.mean.low_ratio is None and report.limit == "inconclusive":
        return "inconclusive: too few steps or runs say how sure the difference is"
    return f"{LIMIT_WORDS[report.limit]}; the step's interval is at {format_percent(report.step.level)}"


def _list_means(side: Side) -> str:
    """Mean steps of a side's runs."""
    means = ", ".join(format_time(value_ns) for value_ns in side.step_mean_ns[:6])
    return means + (", ..." if len(side.step_mean_ns) > 6 else "")


def show_waterfall(report: ComparisonReport, *, in_ns: bool = False) -> Section:
    """The parts, the largest difference first, and their sum."""
    parts = sorted(report.waterfall, key=lambda part: -abs(part.difference_ns))
    rows = [
        (clean_text(part.name, NAME_LETTERS), *map(format_milliseconds, (part.base_ns, part.new_ns)),
         _show_difference(part.difference_ns, in_ns=in_ns))
        for part in parts
    ]  # fmt: skip
    if rows:
        total_ns = sum(part.difference_ns for part in parts)
        step = report.step.mean
        rows.append(
            ("step", *map(format_milliseconds, (step.base_ns, step.new_ns)), _show_difference(total_ns, in_ns=in_ns))
        )
    first, last = ("part", "difference, ns") if in_ns else ("where the difference went", "difference, ms")
    heads = (first, *WATERFALL_HEADS, last)
    return Section(
        key="comparison_waterfall", title="where the difference went", about=WATERFALL_ABOUT,
        clock=report.step.clock, columns=make_columns(heads, rows), ruled=(len(rows) - 1,) if rows else (),
    )  # fmt: skip


def _show_difference(value_ns: int, *, in_ns: bool) -> str:
    if in_ns:
        return f"{value_ns:+,}"
    text = format_milliseconds(value_ns)
    return f"+{text}" if value_ns > 0 and not text.startswith("<") else text


def show_rows(report: ComparisonReport, most: int | None) -> Section:
    """The times that differ, or all of them: the step, the phases, and so on, the largest difference first."""
    order = {scope: place for place, scope in enumerate(SCOPES)}
    rows = sorted((report.step, *report.rows), key=lambda row: (order[row.scope], -abs(row.mean.difference_ns)))
    judged = sum(row.verdict != "too small" for row in rows)
    different = [row for row in rows if row.verdict in DIFFERENT]
    chosen = rows if most is None else different[:most]
    more = len(different) - len(chosen)
    notes = [f"{len(different):,} of {judged:,} times differ" + (f", {more:,} more with --details" if more > 0 else "")]
    if most is None:
        notes.append(
            "usual: mean of the middle half of the steps; the more rows, the wider their intervals, so that of two "
            "hundred comparisons of the same thing at most one shows any row that differs; too small: less than "
            "0.5 % of the step, not judged"
        )
    return Section(
        key="comparison_rows", title="what differs" if most is not None else "every time",
        columns=make_columns(
            ROW_HEADS if most is not None else BOTH_HEADS,
            [_show_row(row) if most is not None else _show_both(row) for row in chosen], ("what", "verdict"),
        ),
        notes=tuple(notes),
    )  # fmt: skip


def _show_row(row: ComparedTime) -> tuple[str, ...]:
    """By the average that the verdict is of."""
    usual = row.usual
    if usual is not None and row.mean.verdict not in DIFFERENT and usual.verdict in DIFFERENT:
        return (f"{name_row(row)}, usual", *_show_average(usual), row.verdict)
    return (name_row(row), *_show_average(row.mean), row.verdict)


def _show_both(row: ComparedTime) -> tuple[str, ...]:
    usual = (NOT_MEASURED,) * 2 if row.usual is None else _show_average(row.usual)[2:]
    return (name_row(row), *_show_average(row.mean), *usual, row.verdict)


def _show_average(average: ComparedAverage) -> tuple[str, ...]:
    times = (format_milliseconds(average.base_ns), format_milliseconds(average.new_ns))
    return (*times, _show_change(average), show_interval(average))


def name_row(row: ComparedTime) -> str:
    """What the row is, in a few words."""
    name = clean_text(row.name, NAME_LETTERS)
    if row.scope == "rank":
        place = f" ({clean_text(row.place, NAME_LETTERS)})" if row.place is not None else ""
        return f"rank {row.rank}{place}: {name}"
    return name if row.scope in ("step", "phase") else f"{row.scope} {name}"


def show_changes(report: ComparisonReport, most: int | None) -> Section:
    """What is not the same on both sides."""
    changes = report.changes[:most]
    rows = [(_name_change(change.group, change.key), _show_value(change.old), _show_value(change.new))
            for change in changes]  # fmt: skip
    more = len(report.changes) - len(changes)
    return Section(
        key="comparison_changes", title="what changed", columns=make_columns(CHANGE_HEADS, rows, ("base", "new")),
        notes=(f"{more:,} more with --details",) if more > 0 else (),
    )  # fmt: skip


def _name_change(group: str, key: str) -> str:
    return clean_text(key if group == "configuration" else f"{group}: {key}", NAME_LETTERS)


def _show_value(value: str | None) -> str:
    return "(none)" if value is None else clean_text(value, VALUE_LETTERS)


def list_comparison_notes(report: ComparisonReport) -> tuple[str, ...]:
    """What should be known besides."""
    notes = [clean_text(note, NOTE_LETTERS) for note in report.notes]
    if not report.complete:
        notes.append("not all ranks, or jobs, of all runs are there and completed")
    if not report.waterfall:
        notes.append("where the difference went is not known: some run has no phases")
    return tuple(notes)


def list_comparison_sections(report: ComparisonReport) -> list[Section]:
    """Everything, for displays with room."""
    return [
        Section(key="headline", title="sides", facts=tuple(list_comparison_facts(report))),
        show_waterfall(report, in_ns=True), show_rows(report, None), show_changes(report, None),
        Section(key="notes", title="notes", details=list_comparison_notes(report)),
    ]  # fmt: skip


def format_percent(value_ratio: float) -> str:
    """A ratio as percent with as many digits as a comparison needs: ``3 %``, ``0.4 %``, ``0.02 %``."""
    percent = value_ratio * 100
    if percent > MAX_PERCENT:
        return f"over {MAX_PERCENT:,} %"
    digits = 0 if abs(percent) >= 100 else 1 if abs(percent) >= 0.95 else 2
    text = f"{percent:.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def _show_change(average: ComparedAverage) -> str:
    return format_excess(average.difference_ns) if average.ratio is None else _sign(average.ratio)


def _sign(ratio: float) -> str:
    text = format_percent(ratio - 1)
    return text if text.startswith(("-", "over")) or text == "0 %" else f"+{text}"


def show_interval(average: ComparedAverage) -> str:
    """The interval of the change: ``-0.4 % to +3 %``."""
    if average.low_ratio is None or average.high_ratio is None:
        return NOT_MEASURED
    return f"{_sign(average.low_ratio).removesuffix(' %')} to {_sign(average.high_ratio)}"


def name_sides(report: ComparisonReport) -> Sequence[str]:
    """For a title."""
    return [clean_text(side.names[0]) for side in (report.base, report.new)]
