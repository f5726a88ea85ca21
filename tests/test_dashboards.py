"""The dashboards in launch/: every metric, label and value that they ask for is one that the metrics server renders."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from distprof.facts.gpu import GpuReading
from distprof.facts.run import COLUMN, Peak
from distprof.profiler.metrics.metrics import Metrics
from tests.factories import MS, USUAL_NS, make_run

FOLDER = Path(__file__).resolve().parent.parent / "launch" / "dashboards"
SCRAPED = {"instance", "job"}
"""Labels that Prometheus adds."""
WORDS = {
    "time", "rate", "max", "min", "sum", "avg", "by", "on", "without", "and", "or", "unless", "offset",
    "avg_over_time", "label_values", "name",
}  # fmt: skip
_SELECTOR = re.compile(r"\{([^{}]*)\}")
_MATCHER = re.compile(r'\s*([a-z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*')
_GROUPING = re.compile(r"\b(?:by|on|without|ignoring)\s*\(([^()]*)\)")
_SAMPLE = re.compile(r"([a-z_]+)(?:\{(.*)\})? \S+")


class Asked(NamedTuple):
    """What an expression asks for."""

    metrics: set[str]
    labels: set[str]
    values: set[tuple[str, str]]
    words: set[str]


def read_expression(text: str) -> Asked:
    matchers = [match for inside in _SELECTOR.findall(text) for match in _split_matchers(inside)]
    grouped = {label.strip() for labels in _GROUPING.findall(text) for label in labels.split(",")}
    bare = _GROUPING.sub(lambda match: match[0].split("(")[0], _SELECTOR.sub("", text))
    names = set(re.findall(r"[a-zA-Z_][a-zA-Z0-9_]*", re.sub(r"\[[^\]]*\]|\boffset \S+|\d+[smhd]\b", "", bare)))
    metrics = {name for name in names if name.startswith("distprof_")}
    return Asked(
        metrics=metrics, labels={label for label, _, _ in matchers} | grouped, words=names - metrics,
        values={(label, value) for label, operator, value in matchers if operator == "=" and "$" not in value},
    )  # fmt: skip


def _split_matchers(inside: str) -> list[tuple[str, str, str]]:
    found = [_MATCHER.fullmatch(part) for part in inside.split(",")]
    assert all(found), inside
    return [(match[1], match[2], match[3]) for match in found if match]


@pytest.fixture(scope="module")
def rendered() -> dict[str, dict[str, set[str]]]:
    """By metric, the values of each label; of a job for which everything is measured."""
    run = make_run(
        num_ranks=4, num_steps=60, device_ns=USUAL_NS,
        columns={"begin_device_ns": 0},
        infos={
            rank: {"peak": Peak(flops_per_s=1e12, source="s"), "device_uuid": f"{rank}"} for rank in range(4)
        },
    )  # fmt: skip
    run.rows[2, :, COLUMN["data_host_ns"]] += 40 * MS
    run.rows[2, :, COLUMN["all_reduce_host_ns"]] -= 14 * MS
    gpu = GpuReading(power_mw=700_000, energy_mj=1, sm_clock_mhz=1410, temperature_c=62, limits=4)
    metrics = Metrics(run.meta, run.ranks, read_gpus=lambda: [gpu] * 4)
    metrics.add(run.rows)
    found: dict[str, dict[str, set[str]]] = {}
    for line in metrics.render().splitlines():
        if not line.startswith("#"):
            sample = _SAMPLE.fullmatch(line)
            assert sample is not None, line
            labels = found.setdefault(sample[1], {})
            for label, value in re.findall(r'([a-z_]+)="([^"]*)"', sample[2] or ""):
                labels.setdefault(label, set()).add(value)
    found.setdefault("distprof_straggler_rank", {})  # there only while a rank is named: see test_lately.py
    return found


def list_board() -> dict[str, Any]:
    board: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
    return board


def list_rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def list_expressions() -> Iterator[str]:
    board = list_board()
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])
    queries = (variable for variable in board["templating"]["list"] if variable["type"] == "query")
    yield from (variable["query"] for variable in queries)
    yield from (rule["expr"] for rule in list_rules())


@pytest.mark.parametrize("text", [*list_expressions()])
def test_an_expression_asks_for_what_there_is(text: str, rendered: dict[str, dict[str, set[str]]]) -> None:
    asked = read_expression(text)
    assert asked.metrics and asked.metrics <= set(rendered)
    there = set().union(*(rendered[name] for name in asked.metrics))
    assert asked.labels <= there | SCRAPED
    for label, value in asked.values:
        assert any(value in rendered[name].get(label, ()) for name in asked.metrics), f"{label}={value}"
    assert asked.words <= WORDS | SCRAPED, "a metric of another name, or a function that this test does not know"
    assert text.count("(") == text.count(")") and text.count("{") == text.count("}")


def test_every_metric_is_on_the_dashboard(rendered: dict[str, dict[str, set[str]]]) -> None:
    asked = set().union(*(read_expression(text).metrics for text in list_expressions()))
    missing = set(rendered) - asked
    assert missing <= {"distprof_ranks", "distprof_steps_seconds_total", "distprof_last_step"}


def test_the_dashboard_is_whole() -> None:
    board, rules = list_board(), list_rules()
    names = {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        text = json.dumps(panel)
        assert set(re.findall(r"\$\{?([a-z]+)", text)) <= names
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24 and panel["title"]
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in board["panels"]})
    assert {rule["labels"]["severity"] for rule in rules} <= {"critical", "warning", "info"}
    assert all(re.fullmatch(r"\d+m", rule["for"]) and rule["annotations"]["summary"] for rule in rules)
    assert len({rule["alert"] for rule in rules}) == len(rules)


@pytest.mark.parametrize(
    "wrong",
    ["distprof_step_second", 'distprof_phase_seconds{phases="data"}', 'distprof_phase_seconds{phase="dat"}',
     "sum by (rank) (distprof_step_seconds)", "steps_total"],
)  # fmt: skip
def test_what_is_misspelled_is_found(wrong: str, rendered: dict[str, dict[str, set[str]]]) -> None:
    with pytest.raises(AssertionError):
        test_an_expression_asks_for_what_there_is(wrong, rendered)
