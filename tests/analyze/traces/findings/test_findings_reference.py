"""The rules on captures that nobody made for them: one with the numbers of a real one, and real ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from distprof.analyze import analyze
from distprof.facts.run import Clock
from distprof.render.finding_texts import describe_finding as word
from distprof.render.sections.trace_rows import describe_ranges
from distprof.report.finding_report import Finding
from distprof.report.report import Report
from distprof.traces.read_paths import read_paths
from distprof.traces.reduce.phase_names import NameMap
from tests.reference_export import make_reference_export

KINETO = Path(__file__).resolve().parents[4].parent / "shared" / "data" / "kineto"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = Path(tmp_path_factory.mktemp("reference"))
    return _report(make_reference_export().write(folder / "train.sqlite"))


def _report(*paths: Path) -> Report:
    return analyze(read_paths(list(paths), NameMap(), lambda done, total: None))


def _find(report: Report, rule: str) -> Finding:
    assert report.activity is not None
    return next(finding for finding in report.activity.findings if finding.rule == rule)


def test_the_document_has_its_phases_without_its_warmup(report: Report) -> None:
    host = {phase.phase: phase.mean_ns[0] for phase in report.phases if phase.clock == Clock.HOST}
    assert [round((host[name] or 0) / 1e6) for name in ("forward", "backward", "optimizer")] == [844, 1732, 179]
    assert report.headline.step_mean_ns == pytest.approx(2758e6, rel=1e-3)


def test_host_shares_are_said_not_to_be_gpu_shares(report: Report) -> None:
    finding = _find(report, "host_is_not_gpu")
    assert word(finding).title.startswith("Host times and GPU times rank ranges differently: attention_sublayer is")
    shares = {line.what: line.value for line in word(finding).evidence}
    assert shares["attention_sublayer"] == "host 18.6 % of the step, GPU 9.1 % of its work"


def test_attention_is_not_69_percent_of_the_step(report: Report) -> None:
    """1,896.6 ms in all 128 instances is what the document divides by one step; 96 of them are warm-up's."""
    assert report.activity is not None
    attention = next(item for item in report.activity.ranges if item.name == "attention_sublayer")
    assert attention.host_share_ratio == pytest.approx(0.186, abs=5e-4)
    assert attention.host_share_with_warmup_ratio == pytest.approx(0.688, abs=5e-4)
    assert (
        "With warm-up counted, as in nvtx_sum, attention_sublayer would come out at 68.8 % of the step instead of "
        "18.6 %." in describe_ranges(report)
    )


def test_what_is_worth_changing_comes_first(report: Report) -> None:
    assert report.activity is not None
    first = report.activity.findings[0]
    assert first.rule == "fp32_matmul"
    assert first.share_ratio == pytest.approx(2311 / 2758, abs=0.01)


@pytest.mark.skipif(not KINETO.is_dir(), reason="no real traces beside the checkout")
@pytest.mark.parametrize(
    ("names", "rules"),
    [
        (["h100_qwen_single"], {"matmul_share", "sync_in_step"}),
        (["h100_bert_small_single"], {"host_bound", "older_kernels"}),
        (["a100_2ranks_rank0"], {"host_bound", "matmul_share"}),
        (
            ["v100_resnet50_torch19.pt.trace"],
            {"host_bound", "fp32_matmul", "copies_in_step"},
        ),
        (
            ["a100_128ranks_rank0", "a100_128ranks_rank1"],
            {
                "launch_gaps",
                "host_bound",
                "exposed_communication",
                "matmul_share",
                "host_is_not_gpu",
            },
        ),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_real_traces(names: list[str], rules: set[str]) -> None:
    found = _report(*(KINETO / f"{name}.json.gz" for name in names)).activity
    assert found is not None
    assert {finding.rule for finding in found.findings} == rules
