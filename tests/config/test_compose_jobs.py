"""From a command line to jobs: one, or every combination of a sweep, and nothing else that Hydra would do."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from distprof.config.compose import Composed, compose, read_request
from distprof.errors import UsageError


def compose_all(*arguments: str, launched: bool = False) -> list[Composed]:
    return compose(read_request(arguments), launched=launched, arguments=arguments)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_one_job() -> None:
    (job,) = compose_all("train=gpt2_tiny", "device=cpu", "train.steps=3")
    assert job.values["name"] == "gpt2_tiny_ddp" and job.values["train"]["steps"] == 3
    assert job.values["run_dir"] is None and "hydra" not in job.values
    assert os.listdir() == []


def test_a_sweep_is_every_combination_and_leaves_the_list_without_secrets() -> None:
    jobs = compose_all("-m", "train=gpt2_tiny,gpt2_small", "seed=1,2", "+db.password=pw1", "runs_dir=rüns")
    assert [(job.values["name"], job.values["seed"]) for job in jobs] == [
        ("gpt2_tiny_ddp", 1), ("gpt2_tiny_ddp", 2), ("gpt2_small_ddp", 1), ("gpt2_small_ddp", 2),
    ]  # fmt: skip
    assert {job.values["runs_dir"] for job in jobs} == {"rüns"}
    (kept,) = Path("rüns").glob("*_multirun/multirun.yaml")
    assert "seed=1,2" in OmegaConf.load(kept).hydra.overrides.task and "pw1" not in kept.read_text()
    assert {job.sweep_dir for job in jobs} == {str(kept.parent)}


def test_a_job_of_a_sweep_can_be_composed_alone() -> None:
    """From its overrides, which leave out whatever makes a sweep of it."""
    ours = [
        "experiment=scaling",
        "hydra.sweep.dir=here",
        "train=gpt2_tiny",
        "name='1, 2'",
        "sweep.timeout_s=5",
        "sweep.ranks=2",
    ]
    (job,) = compose_all(*ours, "+hydra.sweeper.params.seed='3'")
    assert job.sweep_dir == "here"
    expected = ["experiment=scaling", "name='1, 2'", "seed=3", "sweep.ranks=2", "train=gpt2_tiny", "hydra.mode=RUN"]
    assert [*sorted(job.overrides[:-1]), job.overrides[-1]] == expected
    (alone,) = compose_all(*job.overrides)
    assert alone.sweep_dir is None and alone.values["sweep"]["timeout_s"] != job.values["sweep"]["timeout_s"]
    del alone.values["sweep"], job.values["sweep"]
    assert alone.values == job.values


def test_jobs_of_a_sweep_run_under_no_other_launcher() -> None:
    with pytest.raises(UsageError, match="hydra/launcher: jobs of a sweep run in a process group each"):
        compose_all("-m", "hydra/launcher=basic", "seed=1,2")


def test_a_sweep_of_a_configuration_file_counts_as_one() -> None:
    Path("conf").mkdir()
    Path("conf/swept.yaml").write_text(
        "defaults: [config, _self_]\nhydra: {mode: MULTIRUN, sweeper: {params: {seed: '1,2'}}}"
    )
    given = ("--config-dir", "conf", "--config-name", "swept")
    assert [job.values["seed"] for job in compose_all(*given)] == [1, 2]
    with pytest.raises(UsageError, match="--multirun inside torchrun"):
        compose_all(*given, launched=True)


def test_hydras_own_folder_is_the_run_folder() -> None:
    (job,) = compose_all("hydra.run.dir=here/${train.mode}")
    assert job.values["run_dir"] == "here/train"


def test_nothing_of_hydras_logging_chdir_or_output_is_set_up() -> None:
    before, here = list(logging.getLogger().handlers), os.getcwd()
    compose_all("hydra/job_logging=default", "hydra.job.chdir=true", "hydra.output_subdir=.hydra", "hydra.verbose=true")
    assert logging.getLogger().handlers == before and os.getcwd() == here and os.listdir() == []


def test_a_flag_that_shows_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert compose_all("--cfg", "job", "-p", "train", "train=gpt2_tiny", "+train.token=abc") == []
    shown = capsys.readouterr().out
    assert "token: '[redacted]'" in shown and "layers: 2" in shown and "abc" not in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["+password=[abc"], r"^the value of \+password cannot be read"),
        (["seed=[abc"], r"^seed=\[abc: .*put texts in quotes"),
        (["--config-dir", "nope"], "^nope: not a folder with configuration files"),
        (["seed=${nope}"], "nope"),
    ],
)
def test_what_cannot_be_composed_is_one_line(arguments: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        compose_all(*arguments)
    assert "\n" not in str(caught.value)
