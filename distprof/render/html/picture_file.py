"""The picture of a step as a file of its own: an SVG that any page or document can show."""

from __future__ import annotations

import html

from distprof.render.html.page import read_style
from distprof.render.html.step_picture import draw_picture
from distprof.report.report import Report
from distprof.report.step_timeline import StepTimeline

_FONT = "svg { font: 13px system-ui, sans-serif; background: var(--paper); color: var(--ink); }"


def render_picture(timeline: StepTimeline, report: Report | None = None) -> str:
    """The picture with the page's style sheet inside."""
    style = f"<style>{html.escape(read_style() + _FONT, quote=False)}</style>"
    whole = draw_picture(timeline, report).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return whole.replace("<defs>", f"{style}<defs>", 1) + "\n"
