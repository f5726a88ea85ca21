"""A job that is looked at while it runs: windows that are asked for, and recording that is turned off and on."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import distprof
from distprof.analyze import analyze
from distprof.cli.parser import run_verb
from distprof.profiler.session.session import Session
from distprof.storage.window_files import WindowRequest, WindowState, publish_request, read_state
from distprof.traces.load_run import load_run
from distprof.traces.sources import list_called
from distprof.world import World
from tests.ranks import call_on_ranks

LIMIT_S = 120.0


def watch_a_job(world: World, folder: str) -> None:
    with Path(f"{folder}.{world.rank}.err").open("w") as file, contextlib.redirect_stderr(file):
        train_while_watched(world, folder)


def train_while_watched(world: World, folder: str) -> None:
    run = Path(folder)
    session = distprof.start(
        run_dir=folder,
        find=False,
        window_s=0.02,
        warmup_steps=0,
        shadow_every=0,
        max_overhead_ratio=None,
        record="all",
    )
    model = nn.Linear(8, 8)
    session.watch(model)
    recorded = [False]

    def step_until(holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + LIMIT_S
        while True:
            with session.step():
                recorded[0] = session.recording
                with session.phase("forward"):
                    model(torch.ones(2, 8))
                answer = torch.tensor([holds(), time.monotonic() > end_s], dtype=torch.int32)
                dist.all_reduce(answer)
            assert not answer[1], "it has not come to that"
            if answer[0] == world.size:
                return

    step_until(lambda: recorded[0] and session.folder is not None)
    for name, steps in (("mine", 2), ("another", None)):
        if world.rank == 0:
            assert publish_request(run, WindowRequest(id=name, steps=steps))
        ended = (name, "ended")
        step_until(lambda ended=ended: (found := read_state(run)) is not None and (found.id, found.state) == ended)  # type: ignore[misc]
        if world.rank == 0:
            (run / "record.stop").touch()
        step_until(lambda: not recorded[0])
        if world.rank == 0:
            (run / "record.stop").unlink()
        step_until(lambda: recorded[0])
    session.close()


def read_steps(path: Path) -> list[int]:
    trace: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    marks = [event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep#")]
    assert sorted({int(name[13:]) for name in marks}) == trace["distprof"]["steps"]
    assert any(event.get("name") == "distprof.forward" for event in trace["traceEvents"])
    assert any("Linear" in str(event.get("name")) for event in trace["traceEvents"])
    return list(trace["distprof"]["steps"])


@pytest.mark.slow
def test_two_ranks_are_looked_at_while_they_train(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    call_on_ranks(2, watch_a_job, str(folder), tmp_path=tmp_path)
    called = list_called(folder)
    windows = []
    for name in called:
        traces = sorted((folder / "kernels" / name).iterdir())
        assert [path.name for path in traces] == ["rank-00000.json.gz", "rank-00001.json.gz"]
        first, second = map(read_steps, traces)
        assert first == second and first[0] == int(name[5:])
        windows.append(first)
    assert sorted(map(len, windows))[0] == 2 and max(map(len, windows)) == 3  # as asked for, and kernel_steps
    run = load_run(folder)
    assert run.column("window").tolist()[0] == run.column("window").tolist()[1]
    marked = run.column("step")[0][run.column("window")[0] == 1].tolist()
    assert marked == sorted(step for steps in windows for step in (steps[0] - 1, *steps))
    assert run.traced_rows is not None  # the report has the kernels of the latest
    assert any(f"({called[-2]}" in text and "pass their folders" in text for text in run.warnings)
    notes = analyze(run).coverage.notes
    assert any("record.stop in the run folder" in note for note in notes)
    said = (tmp_path / "run.0.err").read_text()
    assert said.count("because distprof window has asked for it") == 2
    assert run_verb(["window", str(folder)]) == 1


def begin_window(folder: Path, **options: Any) -> Session:
    """A session of one rank that has come to the steps of a window."""
    options = {"find": False, "window_s": 0.01, "warmup_steps": 0, "shadow_every": 0, **options}
    session = distprof.start(run_dir=str(folder), **options)
    with session.step():
        pass
    assert publish_request(folder, WindowRequest(id="mine", steps=2))
    end_s = time.monotonic() + LIMIT_S
    while not ((state := read_state(folder)) and state.state == "agreed") and time.monotonic() < end_s:
        with session.step():
            pass
    return session


def run_until(session: Session, folder: Path, state: str) -> WindowState:
    end_s = time.monotonic() + LIMIT_S
    while time.monotonic() < end_s:
        with session.step():
            pass
        if (found := read_state(folder)) is not None and found.state == state:
            return found
    raise AssertionError(read_state(folder))


def test_training_that_fails_in_a_window_ends_at_once(tmp_path: Path) -> None:
    session = begin_window(tmp_path / "run")
    while not torch._C._autograd._profiler_enabled():
        with session.step():
            pass
    session.close(KeyError("theirs"))
    assert not torch._C._autograd._profiler_enabled()
    assert list_called(tmp_path / "run") == []
    run = load_run(tmp_path / "run")
    assert "the kernel window was interrupted: there is no trace of this rank" in run.ranks[0].notes


def test_a_step_that_fails_in_a_window_does_not_end_it(tmp_path: Path) -> None:
    session = begin_window(tmp_path / "run")
    while not torch._C._autograd._profiler_enabled():
        with session.step():
            pass
    with contextlib.suppress(KeyError), session.step():
        raise KeyError("caught by the script")
    session.begin_step()
    session.drop_step()
    assert run_until(session, tmp_path / "run", "ended").missing == ()
    session.close()
    (name,) = list_called(tmp_path / "run")
    assert run_verb(["report", str(tmp_path / "run" / "kernels" / name), "--no-write"]) in (0, 3)


def test_without_phases_there_is_a_window_all_the_same(tmp_path: Path) -> None:
    with begin_window(tmp_path / "run", level="off") as session:
        run_until(session, tmp_path / "run", "ended")
    (name,) = list_called(tmp_path / "run")
    trace = json.loads(gzip.decompress((tmp_path / "run" / "kernels" / name / "rank-00000.json.gz").read_bytes()))
    assert len(trace["distprof"]["steps"]) == 2


def test_the_scripts_own_profiler_is_left_alone(tmp_path: Path) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
        session = begin_window(tmp_path / "run")
        state = run_until(session, tmp_path / "run", "ended")
        torch.ones(2) + 1
    assert state.missing == ("rank 0: another profiler was running in the script",)
    session.close()
    assert any(event.key == "aten::add" for event in theirs.key_averages()) and not list_called(tmp_path / "run")


def test_a_level_with_a_window_of_its_own_comes_first(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    session = distprof.start(
        run_dir=str(folder), find=False, window_s=0.01, warmup_steps=0, level="kernels", kernel_from=10**6
    )
    with session.step():
        pass
    publish_request(folder, WindowRequest(id="mine", steps=2))
    state = run_until(session, folder, "refused")
    assert state.text == "profile.level=kernels has a window of its own still to come"
    session.close()


def test_the_end_of_training_closes_a_window(tmp_path: Path) -> None:
    session = begin_window(tmp_path / "run")
    while not torch._C._autograd._profiler_enabled():
        with session.step():
            pass
    with session.step():
        pass
    session.close()
    assert len(list_called(tmp_path / "run")) == 1
    state = read_state(tmp_path / "run")
    assert state is not None and (state.state, state.missing) == ("ended", ())
