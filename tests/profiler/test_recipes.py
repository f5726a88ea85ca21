"""The programs of the documents run as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.faults.forked import make_rank, run
from tests.ranks import find_ports

ROOT = Path(__file__).resolve().parents[2]


def read_programs(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(encoding="utf-8"), re.M | re.S)


@pytest.mark.parametrize("page", ["docs/api.md", "README.md"])
def test_the_programs_of_the_documents_run_as_written(page: str, tmp_path: Path) -> None:
    programs = [text for text in read_programs(page) if "distprof.start" in text]
    assert programs and len(programs[0].splitlines()) <= 10
    end = "\nimport atexit; atexit._run_exitfuncs()\nraise SystemExit(0)\n"
    loader = "loader = [1, 2, 3, 4, 5]\n"
    (port,) = find_ports(1)
    before = "\n".join([loader + programs[0], *programs[1:]]) + end
    ended = run(*(make_rank(rank, 2, port, [], before=before) for rank in range(2)), cwd=tmp_path)
    assert [done.code for done in ended] == [0, 0], ended
    assert "run folder: " in ended[0].err and [done.out for done in ended] == ["", ""]
