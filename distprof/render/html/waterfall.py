"""From the ideal step to the measured one: a bar for each cause, in a table whose numbers add up."""

from __future__ import annotations

from collections.abc import Sequence

from distprof.render.markup import show
from distprof.render.sections.cause_words import name_beside
from distprof.render.units import format_ratio, format_time
from distprof.report.report import Report

WIDTH = 1000
LARGEST_NEGATIVE_RATIO = 1e-6
ABOUT = (
    "Each bar is what the cause adds to the step when all causes are removed together: the mean over removing the "
    "largest first and the largest last, because causes overlap (a slow link always goes before other communication). "
    "So the bars add up, from the ideal step, in which every rank works like the median rank and transfers take no "
    "time, to the measured one. What fixing one cause alone would save is another number: see Causes."
)


def draw_waterfall(report: Report) -> str:
    """A table with a bar in every row; empty if the causes are not known."""
    causes = report.causes
    if causes is None or causes.step_ns <= 0:
        return ""
    rows = [("ideal step", causes.ideal_ns, "w-step")]
    rows += [(name_beside(report, cause), cause.joint_ns, "w-cause") for cause in causes.causes]
    if abs(causes.remainder_ns) > LARGEST_NEGATIVE_RATIO * causes.step_ns:
        rows.append(("remainder", causes.remainder_ns, "w-rest"))
    body, from_ns = [], 0.0
    longest_ns = max(causes.step_ns, causes.ideal_ns, *_add_up([time_ns for _, time_ns, _ in rows]))
    for name, time_ns, kind in rows:
        body.append(_draw_row(name, time_ns, kind, from_ns, (longest_ns, causes.step_ns)))
        from_ns += time_ns
    body.append(_draw_row("measured step", causes.step_ns, "w-step", 0.0, (longest_ns, causes.step_ns)))
    head = "".join(f'<th scope="col">{name}</th>' for name in ("part", "time", "of the step", "from 0 to the step"))
    return (
        f'<table class="waterfall"><caption>{ABOUT}</caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table>"
    )


def _add_up(times_ns: Sequence[float]) -> list[float]:
    sums, total_ns = [], 0.0
    for time_ns in times_ns:
        total_ns += time_ns
        sums.append(total_ns)
    return sums


def _draw_row(name: str, time_ns: float, kind: str, from_ns: float, of_ns: tuple[float, float]) -> str:
    """``of_ns``: what the whole width is, and the step."""
    longest_ns, step_ns = of_ns
    left, right = (
        min(max(at_ns, 0.0), longest_ns) / longest_ns * WIDTH for at_ns in sorted((from_ns, from_ns + time_ns))
    )
    sign = "+" if kind in ("w-cause", "w-rest") and time_ns > 0 else ""
    return (
        f'<tr class="{kind}"><th scope="row">{show(name)}</th><td>{sign}{format_time(time_ns)}</td>'
        f"<td>{format_ratio(time_ns / step_ns)}</td>"
        f'<td class="bar"><svg viewBox="0 0 {WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect x="{left:.1f}" y="0" width="{max(right - left, 1.0):.1f}" height="10"/></svg></td></tr>'
    )
