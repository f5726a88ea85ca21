"""One step as a picture: a row per rank, time from left to right, waits hatched, micro-batches numbered.

Plain SVG, coloured by the page's style sheet as everything else is; what a report says is escaped here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from distprof.facts.run import CollectiveKind, Phase
from distprof.facts.trace_summary import DeviceState
from distprof.render.markup import show
from distprof.render.sections.step_words import DEVICE_WORDS, describe_lane, describe_picture, name_lane, title_picture
from distprof.render.units import format_time
from distprof.report.report import Report
from distprof.report.step_timeline import STEP, WAIT, StepTimeline, TimelineCollective, TimelineLane

WIDTH, LEFT, TOP, LINE = 1000, 150, 26, 18
BAR, DEVICE, BAND, GAP = 20, 10, 7, 5
"""Heights of what a rank does, of its device and its collectives below that, and of the space between two ranks."""
FLAT_LANES, FLAT = 24, 0.5
"""More lanes than these are drawn at a part of the height, without numbers."""
NARROWEST = 0.3
"""Nothing is drawn narrower: what was there should be seen."""
MAX_JOINED = 12
"""Collectives whose arrivals are joined by a line, those in which they are farthest apart."""
DIGIT = 7.0
_COLOURS = {CollectiveKind.ALL_REDUCE: Phase.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER: Phase.ALL_REDUCE,
            CollectiveKind.ALL_GATHER: Phase.ALL_GATHER}  # fmt: skip
_LIGHT = (Phase.BACKWARD, Phase.ALL_REDUCE, Phase.OPTIMIZER)
"""Phases on whose colours numbers are white."""


def show_pictures(timelines: Sequence[StepTimeline], report: Report | None = None) -> str:
    """The pictures with their words. Empty: there are none.

    Args:
        timelines: Of one job.
        report: Of the job, for the coordinates of ranks. None: the lanes say where they are.
    """
    return "".join(
        f'<figure tabindex="0">'
        f"{draw_picture(timeline, report)}<figcaption>{show(title_picture(timeline))} "
        f"{show(describe_picture(timeline, report), 2_000)}</figcaption></figure>"
        for timeline in timelines
    )


def draw_picture(timeline: StepTimeline, report: Report | None = None) -> str:
    """The step as one SVG element."""
    scale = _Scale(timeline)
    shapes = [
        *_draw_legend(timeline), *_draw_axis(scale),
        *(shape for at, lane in enumerate(timeline.lanes) for shape in _draw_lane(scale, at, lane, report)),
        *_draw_collectives(scale), *_draw_transfers(scale),
    ]  # fmt: skip
    key = f"step-{timeline.choice}"
    return (
        f'<svg class="step" viewBox="0 0 {WIDTH} {scale.height}" role="img" aria-labelledby="{key}-t {key}-d" '
        f'preserveAspectRatio="xMinYMin meet"><title id="{key}-t">{show(title_picture(timeline))}</title>'
        f'<desc id="{key}-d">{show(describe_picture(timeline, report), 2_000)}</desc>'
        f'<defs><pattern id="{key}-h" width="5" height="5" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><path class="hatch" d="M0 0V5"/></pattern></defs>{"".join(shapes)}</svg>'
    )


class _Scale:
    """Where things lie in the picture."""

    def __init__(self, timeline: StepTimeline) -> None:
        self.timeline = timeline
        self.flat = len(timeline.lanes) > FLAT_LANES
        part = FLAT if self.flat else 1.0
        self.bar, self.gap = BAR * part, GAP * part
        self.band = BAND * part if timeline.collectives else 0.0
        self.device = DEVICE * part if any(lane.device is not None for lane in timeline.lanes) else 0.0
        self.pitch = self.bar + self.device + self.band + self.gap
        self.top = TOP + (LINE if self.device else 0)
        self.height = math.ceil(self.top + len(timeline.lanes) * self.pitch + 22)
        self.hatch = f"url(#step-{timeline.choice}-h)"

    def x(self, time_ns: float) -> float:
        """Across."""
        return LEFT + min(max(time_ns / self.timeline.span_ns, 0.0), 1.0) * (WIDTH - LEFT)

    def y(self, lane: int) -> float:
        """The upper edge of a lane."""
        return self.top + lane * self.pitch

    def box(self, begin_ns: float, end_ns: float, top: float, height: float, paint: str, title: str) -> str:
        """A rectangle; ``paint``: its class or its fill, ``title``: escaped."""
        left = self.x(begin_ns)
        width = max(self.x(end_ns) - left, NARROWEST)
        told = f"><title>{title}</title></rect>" if title else "/>"
        return f'<rect {paint} x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}"{told}'


def _draw_legend(timeline: StepTimeline) -> Iterator[str]:
    there = {kind for lane in timeline.lanes for kind in lane.blocks.kinds}
    entries = [(f'class="p-{kind}"', str(kind)) for kind in (*Phase, STEP) if kind in there]
    if WAIT in there or timeline.collectives:
        entries.append((f'class="waits" fill="url(#step-{timeline.choice}-h)"', "waiting for another rank"))
    devices = {kind for lane in timeline.lanes if lane.device is not None for kind in lane.device.kinds}
    rows = [entries, [(f'class="d-{kind}"', words) for kind, words in DEVICE_WORDS.items() if kind in devices]]
    for y, row in enumerate(rows):
        x = float(LEFT)
        for paint, name in row:
            yield f'<rect {paint} x="{x:.0f}" y="{3 + LINE * y}" width="11" height="11"/>'
            yield f'<text x="{x + 15:.0f}" y="{13 + LINE * y}">{name}</text>'
            x += 30 + DIGIT * len(name)


def _draw_axis(scale: _Scale) -> Iterator[str]:
    """Lines at round times."""
    span_ns = scale.timeline.span_ns
    rough_ns = span_ns / 5
    unit_ns = 10.0 ** math.floor(math.log10(rough_ns))
    every_ns = next(unit_ns * factor for factor in (1, 2, 5, 10) if unit_ns * factor >= rough_ns)
    bottom = scale.y(len(scale.timeline.lanes))
    for number in range(int(span_ns / every_ns) + 1):
        x = scale.x(number * every_ns)
        yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{scale.top - 4}" y2="{bottom:.1f}"/>'
        kind = ' class="end"' if x > WIDTH - 40 else ' class="mid"'
        label = format_time(number * every_ns) if number else "0"
        yield f'<text{kind} x="{x:.1f}" y="{bottom + 15:.0f}">{label}</text>'


def _draw_lane(scale: _Scale, at: int, lane: TimelineLane, report: Report | None) -> Iterator[str]:
    top, size = scale.y(at), ' class="end small"' if scale.flat else ' class="end"'
    yield f"<g><title>{show(describe_lane(lane, report))}</title>"
    yield f'<text{size} x="{LEFT - 8}" y="{top + scale.bar * 0.75:.1f}">{show(name_lane(lane, report))}</text>'
    blocks = lane.blocks
    columns = (blocks.kinds, blocks.begin_ns, blocks.end_ns, blocks.micro_batches, blocks.counts)
    for kind, begin_ns, end_ns, batch, count in zip(*columns, strict=True):
        waits = kind == WAIT
        paint = f'class="waits" fill="{scale.hatch}"' if waits else f'class="p-{kind}"'
        told = f"{kind} {batch}" if batch is not None else kind
        more = f", with {count - 1:,} shorter" if count > 1 else ""
        yield scale.box(begin_ns, end_ns, top, scale.bar, paint, f"{told}: {format_time(end_ns - begin_ns)}{more}")
        width = scale.x(end_ns) - scale.x(begin_ns)
        if batch is not None and not scale.flat and width > DIGIT * len(str(batch)) + 2:
            light = " light" if kind in _LIGHT else ""
            middle = scale.x((begin_ns + end_ns) / 2)
            yield f'<text class="num{light}" x="{middle:.1f}" y="{top + scale.bar * 0.72:.1f}">{batch}</text>'
    if lane.device is not None:
        device = zip(lane.device.kinds, lane.device.begin_ns, lane.device.end_ns, strict=True)
        for kind, begin_ns, end_ns in device:
            told = f"{DEVICE_WORDS[DeviceState(kind)]}, {format_time(end_ns - begin_ns)}"
            yield scale.box(begin_ns, end_ns, top + scale.bar, scale.device, f'class="d-{kind}"', told)
    yield "</g>"


def _draw_collectives(scale: _Scale) -> Iterator[str]:
    """From each arrival to the end, hatched until the last arrival; arrivals that are far apart joined by a line."""
    collectives = scale.timeline.collectives
    for each in collectives:
        colour = _COLOURS.get(CollectiveKind(each.kind), Phase.OTHER)
        name = f"{each.kind} of {show(each.group, 80)}"
        for lane, arrival_ns, end_ns in zip(each.lanes, each.arrival_ns, each.end_ns, strict=True):
            top = scale.y(lane) + scale.bar + scale.device
            last_ns = arrival_ns if each.last_arrival_ns is None else max(each.last_arrival_ns, arrival_ns)
            over_ns = last_ns if end_ns is None else end_ns
            waited_ns = min(last_ns, over_ns) - arrival_ns
            told = f"{name}: {format_time(over_ns - arrival_ns)}"
            if each.last_arrival_ns is not None:
                told += f", of which {format_time(max(waited_ns, 0))} until the last rank arrived"
            yield scale.box(arrival_ns, over_ns, top, scale.band, f'class="p-{colour}"', told)
            if waited_ns > 0:
                yield scale.box(
                    arrival_ns, arrival_ns + waited_ns, top, scale.band, f'class="over" fill="{scale.hatch}"', told
                )
    for each in sorted(collectives, key=_measure_spread)[-MAX_JOINED:]:
        points = [
            f"{scale.x(arrival_ns):.1f},{scale.y(lane) + scale.bar + scale.device + scale.band / 2:.1f}"
            for lane, arrival_ns in sorted(zip(each.lanes, each.arrival_ns, strict=True))
        ]
        yield f'<polyline class="arrivals" points="{" ".join(points)}"/>'


def _measure_spread(each: TimelineCollective) -> int:
    return max(each.arrival_ns) - min(each.arrival_ns)


def _draw_transfers(scale: _Scale) -> Iterator[str]:
    transfers = scale.timeline.transfers
    columns = (transfers.sources, transfers.targets, transfers.begin_ns, transfers.end_ns, transfers.backward)
    for source, target, begin_ns, end_ns, backward in zip(*columns, strict=True):
        down = target > source
        begin_y = scale.y(source) + (scale.bar if down else 0)
        end_y = scale.y(target) + (0 if down else scale.bar)
        kind = "send back" if backward else "send"
        yield f'<path class="{kind}" d="M{scale.x(begin_ns):.1f} {begin_y:.1f}L{scale.x(end_ns):.1f} {end_y:.1f}"/>'
