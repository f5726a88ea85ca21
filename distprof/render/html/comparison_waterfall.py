"""From the step of the base to the new one: a bar for each part, where the one before it ended."""

from __future__ import annotations

from distprof.render.html.svg import GAP, WIDTH, frame
from distprof.render.markup import show
from distprof.render.units import format_excess, format_time
from distprof.report.comparison_report import ComparisonReport

TEXT, BAR = 18, 12
"""Heights of a label, and of the bar below it."""
SPACE_RATIO = 0.25
"""Room on either side of the bars, of how far they reach: the zero of a step may be far away."""
LONGER, SHORTER, STEP = "#d55e00", "#0072b2", "#999999"


def draw_comparison(report: ComparisonReport) -> str:
    """The drawing; empty where the parts are not known. Escaped."""
    base_ns, new_ns = round(report.step.mean.base_ns), round(report.step.mean.new_ns)
    if not report.waterfall:
        return ""
    bars: list[tuple[str, int, int, str]] = []
    at_ns = base_ns
    for part in sorted(report.waterfall, key=lambda each: -abs(each.difference_ns)):
        end_ns = at_ns + part.difference_ns
        colour = LONGER if part.difference_ns > 0 else SHORTER
        bars.append((f"{part.name} {format_excess(part.difference_ns)}", at_ns, end_ns, colour))
        at_ns = end_ns
    ends = [end for _, first, last, _ in bars for end in (first, last)]
    room = SPACE_RATIO * (max(ends) - min(ends)) or 1.0
    low, high = max(min(ends) - room, 0.0), max(ends) + room
    steps = ((f"base: a step takes {format_time(base_ns)}", base_ns), (f"new: {format_time(new_ns)}", new_ns))
    whole = [(label, round(low), time_ns, STEP) for label, time_ns in steps]
    shapes = [
        _draw_bar(label, first, last, colour, place, WIDTH / (high - low), low)
        for place, (label, first, last, colour) in enumerate((whole[0], *bars, whole[1]))
    ]
    begin = "0" if low == 0 else format_time(low)
    height = len(shapes) * (TEXT + BAR + GAP)
    return f"{frame(shapes, height, 'Where the difference went')}<p>The left edge is {begin}.</p>"


def _draw_bar(label: str, first: float, last: float, colour: str, place: int, scale: float, low: float) -> str:
    top = place * (TEXT + BAR + GAP)
    left, width = (min(first, last) - low) * scale, abs(last - first) * scale
    return (
        f'<text x="0" y="{top + 14}">{show(label)}</text>'
        f'<rect x="{left:.1f}" y="{top + TEXT}" width="{max(width, 1.0):.1f}" height="{BAR}" fill="{colour}"/>'
    )
