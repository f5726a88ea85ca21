"""What every page of distprof has: its style, at most one script, and a policy by which it loads nothing."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from distprof.render.colours import PHASE_COLOURS


def make_page(
    title: str, body: str, data: str = "", *, script: str = "report.js", connects: bool = False
) -> str:  # fmt: skip
    """A page that loads nothing, and runs at most the one script that it holds. Title and body are escaped already.

    Args:
        title: The title.
        body: All of it.
        data: The block that the script reads; empty: there is nothing for it to draw.
        script: The file of the script; empty: it has none. That of a report draws, and switches between light and dark.
        connects: Whether the script may ask where the page came from.
    """
    style, code = read_style(), _read(script) if script else ""
    run = f"<script>{code}</script>" if script else ""
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
