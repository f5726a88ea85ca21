"""An error about an unknown name says which one may be meant."""

from __future__ import annotations

import pytest

import distprof
from distprof.config.decode import list_keys
from distprof.config.schema import Config
from distprof.config.suggest import REMOVED, suggest
from distprof.errors import UsageError

KEYS = tuple(list_keys(Config))


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("train.warmup", "train.warmup_steps"), ("train.step", "train.steps"), ("warmup_steps", "train.warmup_steps"),
        ("profile.kernel", "profile.kernel_steps"), ("train.model.lairs", "train.model.layers"), ("trian", "train"),
        ("logger.projet", "logger.project"), ("PROFILE.LEVEL", "profile.level"), ("run-dir", "run_dir"),
        ("rundir", "run_dir"), ("strategy.bucket", "strategy.bucket_mb"), ("profile.port", "profile.metrics_port"),
        ("loggers", "profile.loggers"), ("profile.logger", "profile.loggers"), ("logger.mod", "logger.mode"),
    ],
)  # fmt: skip
def test_the_key_meant_is_named(name: str, meant: str) -> None:
    assert suggest(name, KEYS) == f"; did you mean '{meant}'?"


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ({"signal": "SIGUSR2"}, r"signal: unknown key; it was removed: a file record.stop in the run folder"),
        ({"window_on": "slow"}, "window_on: unknown key; it was removed: `distprof window RUN` asks for a"),
        ({"max_windows": 3}, "max_windows: unknown key; it was removed: `distprof window RUN`"),
        ({"record": "none"}, "must be auto, all, or like 100 of 1000, from 1 on; level=off records none"),
        ({"loggers": ["tensorboard", "jsonl"]}, r"jsonl was removed: every step is in ranks/\*.jsonl"),
    ],
)
def test_of_what_was_removed_it_is_said_what_does_the_same(option: dict[str, object], instead: str) -> None:
    (key,) = option
    with pytest.raises(UsageError, match=instead):
        distprof.start("mine", **option)  # type: ignore[arg-type]
    if key in REMOVED:
        assert suggest(f"profile.{key}", KEYS) == suggest(key, KEYS) != suggest(f"train.{key}", KEYS)


def test_without_a_likely_one_nothing_is_said() -> None:
    assert suggest("zzz", KEYS) == "" == suggest("seed", ())


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("warmup", "warmup_steps"), ("warmup_step", "warmup_steps"), ("rundir", "run_dir"), ("kernel", "kernel_steps"),
        ("logger", "loggers"), ("levl", "level"), ("peaks", "peak"), ("port", "metrics_port"),
    ],
)  # fmt: skip
def test_options_of_start_are_told_apart_by_their_own_names(name: str, meant: str) -> None:
    with pytest.raises(UsageError, match=f"^{name}: unknown key; did you mean '{meant}'"):
        distprof.start("mine", **{name: 1})
