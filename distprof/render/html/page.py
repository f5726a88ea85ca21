"""What every page of distprof has: its style, at most one script, and a policy by which it loads nothing."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from distprof.render.colours import PHASE_COLOURS

REPORT_SCRIPTS = ("report.js", "chosen_steps.js", "maps.js")
"""What a report's page runs: it draws, and switches between light and dark."""


def make_page(
    title: str, body: str, data: str = "", *, scripts: Sequence[str] = REPORT_SCRIPTS, connects: bool = False
) -> str:  # fmt: skip
    """A page that loads nothing, and runs at most the one script that it holds. Title and body are escaped already.

    Args:
        title: The title.
        body: All of it.
        data: The block that the script reads; empty: there is nothing for it to draw.
        scripts: The files of the script, whose functions see each other; empty: it has none.
        connects: Whether the script may ask where the page came from.
    """
    style, parts = read_style(), "".join(_read(name) for name in scripts)
    code = f'"use strict";\n(() => {{\n{parts}}})();\n' if parts else ""
    run = f"<script>{code}</script>" if code else ""
    connect = "; connect-src 'self'" if connects else ""
    policy = (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(code)}'; base-uri 'none'; "
        f"form-action 'none'{connect}"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title} - distprof</title><style>{style}</style></head>\n<body><main>{body}</main>{data}"
        f"{run}</body></html>\n"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _read(name: str) -> str:
    return (Path(__file__).with_name(name)).read_text(encoding="utf-8")


def read_style() -> str:
    """The page's style sheet, with the colours of phases."""
    return _read("report.css") + "".join(
        f".p-{name} {{ fill: {it}; background: {it}; }}\n" for name, it in PHASE_COLOURS.items()
    )
