"""The rules of the findings as the documentation lists them; ``python -m`` with this file prints the table."""

from __future__ import annotations

from distprof.analyze.traces.findings.rules import RULES
from distprof.render.units import format_time


def write_table() -> str:
    """The rules as the Markdown table of ``docs/findings.md``."""
    rows = [("rule", "looks at", "reports from, and why", "needs"), ("---",) * 4]
    for rule in RULES:
        shown = {name: _show_threshold(name, value) for name, value in rule.thresholds.items()}
        rows.append((f"`{rule.name}`", rule.looks_at.format(**shown), rule.threshold.format(**shown), rule.needs))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _show_threshold(name: str, value: float) -> str:
    if name.endswith("_ratio"):
        return f"{value * 100:g} %"
    return format_time(value) if name.endswith("_ns") else f"{value:g}"


if __name__ == "__main__":
    print(write_table(), end="")
