"""What distprof counts in small models, beside counts by hand."""

from __future__ import annotations

import pytest

from benchmarks.module_cases import ModuleCase, list_cases
from benchmarks.module_profiles import list_rows

SMALL = [case for case in list_cases() if "GPT-2" not in case.name]


@pytest.mark.parametrize("case", SMALL, ids=[case.name for case in SMALL])
def test_counts_are_those_by_hand(case: ModuleCase) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in list_rows(case, ["distprof"])]
    assert {row[3] for row in rows} == {"right"}
