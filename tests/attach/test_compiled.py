"""Programs that compile their training, on two ranks: they train as without distprof, and what graphs hide is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from distprof.storage.run_folder import read_run
from tests.conftest import find_missing_sharding
from tests.faults.forked import make_rank, run
from tests.ranks import find_ports


@pytest.mark.slow
def test_fault_41_what_is_compiled_trains_as_without_and_what_graphs_hide_is_said(tmp_path: Path) -> None:
    port, *ports = find_ports(3)
    plan = {
        "program": "compiled", "arguments": [], "broken": [], "environment": {}, "alone": False, "ports": ports,
        "overrides": [f"run_dir={tmp_path / 'run'}", "profile.shadow_every=0", "warmup_steps=1"],
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps({"compiled": plan}), encoding="utf-8")
    before = "from tests.attach.driver import main; raise SystemExit(main())"
    done = run(*(make_rank(rank, 2, port, ["plan.json"], before=before) for rank in (0, 1)), cwd=tmp_path)
    assert [each.code for each in done] == [0, 0], [each.err for each in done]
    lines = 21 if find_missing_sharding() is None else 17
    for rank in (0, 1):
        ended = json.loads((tmp_path / f"{rank}.json").read_text(encoding="utf-8"))["compiled"]
        assert ended["plain"]["out"].count("\n") == lines and ended["plain"]["error"] is None
        assert ended["watched"] == ended["plain"] and ended["put_back"]
    found = read_run(tmp_path / "run")
    assert all(any(note.endswith("not recorded: all_reduce") for note in info.notes) for info in found.ranks)
    buckets = found.column("all_reduce_count")
    assert (buckets[:, 1:4] == 2).all() and (buckets[:, 5:8] == 2).all(), "of the compiled model, and of what is in one"
