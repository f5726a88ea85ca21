"""The page of a running job in a headless Chromium, asking a server that holds made-up answers."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from distprof.profiler.metrics.metrics_server import MetricsServer
from distprof.render.html.live_page import make_live_page
from tests.render.html.browser import OVERLAPS, Browser

HOSTILE = "</script><img src=x onerror=alert(1)>\"' &lt;b&gt;"
VIEW: dict[str, Any] = {
    "title": HOSTILE, "facts": [["done", HOSTILE], ["ranks", "last rows 0 s old"]], "urgent": [HOSTILE],
    "verdict": HOSTILE, "critical": True, "next": HOSTILE, "judged": HOSTILE, "times": [5, 1, 20], "span": HOSTILE,
    "ranks": {
        "heads": ["ms", "step", HOSTILE], "rows": [["rank 0", "1.0", HOSTILE], ["rank 1", "2.0", "x"]],
        "phases": ["data", "forward"], "bars": [[1, 2], [3, 3]],
    },
}  # fmt: skip
SEEN = "document.getElementById('state').textContent"


WIDTHS = "[...document.querySelectorAll('#ranks rect')].map((each) => +each.getAttribute('width'))"


class Address:
    """Of a page that is no file."""

    def __init__(self, url: str) -> None:
        self.url = url

    def as_uri(self) -> str:
        return self.url


def wait(browser: Browser, condition: str) -> None:
    end_s = time.monotonic() + 60
    while not browser.run(condition):
        assert time.monotonic() < end_s, condition
        browser.run("new Promise((done) => setTimeout(done, 50))")


@pytest.mark.slow
@pytest.mark.browser
def test_what_the_job_says_is_text_and_the_end_is_said(tmp_path: Path) -> None:
    server = MetricsServer(
        lambda: "", address="127.0.0.1", port=0,
        pages={
            "/": ("text/html; charset=utf-8", lambda: make_live_page().encode()),
            "/live.json": (
                "application/json", lambda: json.dumps({"view": VIEW, "age_s": 99, "problem": ""}).encode()
            ),
        },
    )  # fmt: skip
    base = server.url.removesuffix("/metrics")
    browser = Browser(tmp_path)
    try:
        for width, dark in ((1280, False), (390, True)):
            browser.open(Address(f"{base}/"), width=width, dark=dark)  # type: ignore[arg-type]
            wait(browser, f"{SEEN} === 'as of 99 s ago'")
            assert {url for url in browser.list_complaints() if url.startswith("http")} == {
                f"{base}/", f"{base}/live.json"
            }  # fmt: skip
            assert not [said for said in browser.list_complaints() if not said.startswith(base)]
            assert browser.run(OVERLAPS) == [] and browser.run("document.querySelectorAll('img').length") == 0
            assert browser.run("document.documentElement.scrollWidth") == width
            assert browser.run("document.getElementById('verdict').textContent") == HOSTILE
            assert browser.run(WIDTHS) == [pytest.approx(1000 * part / 6) for part in (1, 2, 3, 3)]
            assert browser.run("document.querySelectorAll('#times rect').length") == 3
        server.close()
        wait(browser, f"{SEEN}.includes('does not answer')")
        assert browser.run("document.getElementById('verdict').textContent") == HOSTILE
        assert browser.list_violations() == []
    finally:
        server.close()
        browser.close()
