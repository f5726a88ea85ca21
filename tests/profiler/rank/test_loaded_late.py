"""What a watched script waits for before its first line, and what is loaded later: reports, Hydra, parts of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distprof.config.choice import locate_conf, read_choice

LATE = {
    "distprof.analyze.make_report", "distprof.render.files.files", "distprof.report.report", "distprof.traces.load_run",
    "distprof.profiler.end_report", "distprof.profiler.rank.rank_zero", "distprof.profiler.windows.module_window",
    "torch.distributed.checkpoint", "hydra", "omegaconf",
}  # fmt: skip


HEAVY = (
    "torch.distributed.fsdp", "torch.distributed.tensor", "torch.distributed._functional_collectives",
    "torch._dynamo", "torch._inductor", "torch.testing", "torch.fx.experimental", "sympy",
)  # fmt: skip
"""Parts of torch, and what they need, that take a tenth of a second or more to import."""


def run(*program: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, *program], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_session_begins_without_what_only_its_end_needs_and_reports_when_python_ends(tmp_path: Path) -> None:
    """Its report is loaded then, when no thread pool can be made any more; and a distributed checkpoint is found where
    the script imports it."""
    program = """
import sys
import torch
before = {name for name in sys.modules if name.startswith("torch.distributed.checkpoint")}
import distprof
session = distprof.start("mine", run_dir="run", warmup_steps=0)
session.find_steps()
print(*(set(sys.modules) - before))
from torch.distributed.checkpoint import save
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(4):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    if number == 1:
        save({"weight": model.weight}, checkpoint_id="saved", no_dist=True)
"""
    assert not LATE & set(run("-c", program, folder=tmp_path).split())
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["coverage"]["steps_measured"] > 0 and (tmp_path / "run" / "report.html").exists()
    assert "checkpoint" in json.dumps(report["between"])


@pytest.mark.slow
def test_a_watched_script_loads_no_part_of_torch_that_it_does_not_use_and_others_are_watched_once_it_does(
    tmp_path: Path,
) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import sys
import torch
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    model(torch.ones(2, 4)).sum().backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
print(*sys.modules)
from torch.distributed import _functional_collectives, fsdp
print(_functional_collectives.all_reduce.__code__.co_filename)
print(fsdp.FullyShardedDataParallel.clip_grad_norm_.__code__.co_filename)
dist.destroy_process_group()
""")
    plain = set(run(str(script), folder=tmp_path).split())
    watched = set(run("-m", "distprof.attach", str(script), folder=tmp_path).split())
    assert not {name for name in watched - plain if name.startswith(HEAVY)}
    wrapped = {Path(word).name for word in watched - plain if "/distprof/" in word}
    assert wrapped == {"collective_watch.py", "instrumentation.py"}
    assert not {name for name in watched if name.startswith(("distprof.analyze.causes", "distprof.render.sections"))}


@pytest.mark.parametrize(
    "path",
    [path for group in ("profile", "hardware", "logger") for path in sorted((locate_conf() / group).glob("*.yaml"))],
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_a_choice_is_read_as_hydra_reads_it(path: Path) -> None:
    read = read_choice(path.parent.name, path.stem)
    whole = OmegaConf.to_container(OmegaConf.load(path))
    assert isinstance(whole, dict)
    bases = [base for base in whole.pop("defaults", ()) if base != "_self_"]
    expected = OmegaConf.merge(*(OmegaConf.load(path.with_stem(base)) for base in bases), whole)
    assert read == OmegaConf.to_container(expected) and {type(value) for value in read.values()} <= {
        str, int, float, bool, list, type(None),
    }  # fmt: skip
