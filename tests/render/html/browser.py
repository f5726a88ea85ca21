"""A headless Chromium, spoken to over a pipe in its debugging protocol."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --remote-debugging-pipe --hide-scrollbars"
)
PATIENCE_S = 60.0
OVERLAPS = """(() => {
  const found = [];
  const walker = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    if (!node.data.trim()) continue;
    const owner = node.parentElement, style = getComputedStyle(owner);
    if (["TITLE", "OPTION"].includes(owner.tagName.toUpperCase()) || style.visibility === "hidden") continue;
    const clip = owner.closest(".wide, .chart, figure, pre, .tree");
    const outer = clip ? clip.getBoundingClientRect() : { left: 0, right: innerWidth };
    const own = style.overflow === "hidden" ? owner.getBoundingClientRect() : outer;
    const box = { left: Math.max(outer.left, own.left), right: Math.min(outer.right, own.right) };
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const each of range.getClientRects()) {
      const left = Math.max(each.left, box.left), right = Math.min(each.right, box.right);
      if (right - left > 1 && each.height > 1) found.push([left, right, each.top, each.bottom, node.data.trim(), node]);
    }
  }
  found.sort((one, other) => one[2] - other[2]);
  const over = [];
  for (let first = 0; first < found.length; first += 1) {
    for (let next = first + 1; next < found.length && found[next][2] < found[first][3] - 4; next += 1) {
      if (found[first][5] === found[next][5]) continue;
      const across = Math.min(found[first][1], found[next][1]) - Math.max(found[first][0], found[next][0]);
      const down = Math.min(found[first][3], found[next][3]) - found[next][2];
      if (across > 2 && down > 4) over.push([found[first][4], found[next][4]]);
    }
  }
  return over;
})()"""
"""Pairs of texts on the page that cover each other, by more than a line's own leading."""


def read_axe() -> str:
    """The script of axe-core; skips the test where the package that holds it is not installed."""
    spec = importlib.util.find_spec("axe_core_python")
    if spec is None or spec.origin is None:
        pytest.skip("axe-core-python is not installed")
    return (Path(spec.origin).parent / "axe.min.js").read_text(encoding="utf-8")


class Browser:
    """One page of it."""

    def __init__(self, profile: Path) -> None:
        program = next(found for name in BROWSERS if (found := shutil.which(name)))
        (to_child, self._to), (self._from, from_child) = os.pipe(), os.pipe()
        high = [os.dup(fd) for fd in (to_child, from_child)]  # above 3 and 4, which the protocol wants

        def connect() -> None:
            for wanted, own in zip((3, 4), high, strict=True):
                os.dup2(own, wanted)

        self._process = subprocess.Popen(
            [program, *FLAGS.split(), f"--user-data-dir={profile}"], preexec_fn=connect, pass_fds=(3, 4, *high),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (to_child, from_child, *high):
            os.close(fd)
        self._read, self._number, self._session = b"", 0, ""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer; events that come before it are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._read:
            more = os.read(self._from, 1 << 20)
            assert more, "the browser has ended"
            self._read += more
        text, _, self._read = self._read.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "id" not in message:
            self.events.append(message)
        return message

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Opens a file, at a size, and waits until it is loaded."""
        self.resize(width, height)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.as_uri())
        end = time.monotonic() + PATIENCE_S
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end, "the page does not load"
            self._receive()

    def resize(self, width: int, height: int = 900) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        number = {"text": "\r", "windowsVirtualKeyCode": 13} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, **number)

    def mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" else {"buttons": 1}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def list_complaints(self) -> list[str]:
        """What the page said in the console, errors, and requests for anything but the file."""
        wrong = []
        for event in self.events:
            if event["method"] in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
                wrong.append(json.dumps(event["params"])[:500])
            if event["method"] == "Network.requestWillBeSent":
                url = event["params"]["request"]["url"]
                wrong += [] if url.startswith("file:") and url.endswith(".html") else [url]
        return wrong

    def list_violations(self) -> list[str]:
        """What axe-core finds that keeps people from using the page: rule, how many places, and the first of them."""
        self.run(read_axe() + "; 0")
        # What watches sizes is told of the last change before the next frame is drawn.
        self.run("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(0))))")
        found = self.run(
            "axe.run(document).then((found) => found.violations.map("
            "(each) => `${each.id}, ${each.nodes.length}: ${each.nodes[0].html}`))"
        )
        assert isinstance(found, list)
        return found

    def close(self) -> None:
        self.call("Browser.close")
        self._process.wait(timeout=PATIENCE_S)
        os.close(self._to)
        os.close(self._from)
