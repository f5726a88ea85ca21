"""Configuration: every file of conf/ decodes, and every slip is refused by its path."""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

import hydra
import pytest
from hydra import initialize_config_dir
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from omegaconf import DictConfig, OmegaConf

from distprof.config.check import check
from distprof.config.schema import AccelerateConfig, Config, DdpConfig, NoLoggerConfig, TextDataConfig, decode
from distprof.errors import DataError, UsageError
from distprof.facts.plain import make_plain
from tests.ranks import REPOSITORY

CONF = REPOSITORY / "conf"
CHOICES = sorted((path.parent.name, path.stem) for path in CONF.glob("*/*.yaml"))
PARTIAL = {("train", "base")}
"""Files that others build on: they leave something to say."""

ON_GPU, ON_CPU = 0, 1
Overrides = Mapping[str, object]


@functools.cache
def compose_once(overrides: tuple[str, ...]) -> DictConfig:
    """What Hydra makes of ``name=test`` and these overrides, for any device."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return hydra.compose("config", overrides=["name=test", *overrides])


@functools.cache
def resolve_once(overrides: tuple[str, ...], device: int) -> dict[str, Any]:
    """The same on one device, as plain containers."""
    OmegaConf.register_new_resolver("by_device", lambda *values: values[device], replace=True)
    try:
        plain = OmegaConf.to_container(compose_once(overrides), resolve=True)
    finally:
        OmegaConf.clear_resolver("by_device")
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def compose(*overrides: str, device: int = ON_CPU) -> dict[str, Any]:
    return copy.deepcopy(resolve_once(overrides, device))


def change(values: dict[str, Any], overrides: Overrides) -> dict[str, Any]:
    """The values with some replaced, each named by its dotted path."""
    for path, value in overrides.items():
        *groups, key = path.split(".")
        functools.reduce(dict.__getitem__, groups, values)[key] = value
    return values


def make_config(overrides: Overrides | None = None) -> Config:
    return decode(Config, change(compose("train=gpt2_tiny", "logger=none"), overrides or {}))


# Files


@pytest.mark.parametrize(("group", "choice"), [pair for pair in CHOICES if pair not in PARTIAL])
def test_every_file_composes_decodes_and_can_run(group: str, choice: str) -> None:
    for device in (ON_GPU, ON_CPU):
        config = decode(Config, compose(f"{group}={choice}", device=device))
        check(config, world_size=1 if choice == "single" else 4, device_type=("cuda", "cpu")[device])
        part = getattr(config, group, None)
        assert getattr(part, "name", choice) == choice


def test_every_folder_of_conf_is_in_the_defaults_list() -> None:
    listed: Any = OmegaConf.to_container(OmegaConf.load(CONF / "config.yaml"), resolve=False)
    keys = {key for item in listed["defaults"] if item != "_self_" for key in item if not key.startswith("override ")}
    assert keys == {group for group, _ in CHOICES}


def test_only_our_own_keys_are_composed() -> None:
    assert set(compose()) == set(Config.__struct_fields__)


@pytest.mark.parametrize(("device", "expected"), [(ON_GPU, (1024, "bf16", 50)), (ON_CPU, (128, "fp32", 8))])
def test_the_default_job_is_shortened_on_a_cpu(device: int, expected: tuple[int, str, int]) -> None:
    train = decode(Config, compose(device=device)).train
    assert (train.seq_len, train.precision, train.steps) == expected


def test_a_window_keeps_the_rest_of_phases() -> None:
    phases, kernels = (decode(Config, compose(f"profile={level}")).profile for level in ("phases", "kernels"))
    assert structs.replace(kernels, level="phases") == phases
    assert (kernels.window_steps, phases.window_steps) == (kernels.kernel_steps + 1, 0)
    modules = decode(Config, compose("profile=modules")).profile
    assert structs.replace(modules, level="phases") == phases and modules.window_steps == modules.module_steps + 2


def test_an_experiment_changes_other_groups() -> None:
    config = decode(Config, compose("experiment=straggler"))
    assert (config.inject.rank, config.inject.delay_ms, config.train.model.layers) == (2, 200.0, 2)


def test_what_a_file_leaves_open_is_asked_for_by_path() -> None:
    with pytest.raises(UsageError, match=r"^train\.model\.layers: missing"):
        decode(Config, compose("train=base"))


# Decoding


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"sede": 1}, "sede: unknown key; did you mean 'seed'?"),
        ({"train.model.lairs": 1}, "train.model.lairs: unknown key; did you mean 'layers'?"),
        (
            {"inject.zzz": 1},
            "inject.zzz: unknown key; known keys: rank, phase, delay_ms, from_step, action, ",
        ),
        ({"train.steps": "???"}, "train.steps: missing; give it a value: train.steps=..."),
        ({"train.steps": "x"}, "train.steps='x': expected a whole number"),
        ({"train.steps": 1.5}, "train.steps=1.5: expected a whole number"),
        ({"train.steps": True}, "train.steps=True: expected a whole number"),
        ({"train.steps": None}, "train.steps=None: expected a whole number"),
        ({"train.learning_rate": True}, "train.learning_rate=True: expected a number"),
        ({"train.clip_norm": "off"}, "train.clip_norm='off': expected a number or null"),
        ({"train.compile": 1}, "train.compile=1: expected true or false"),
        ({"train.fused_optimizer": "yes"}, "train.fused_optimizer='yes': expected true or false"),
        ({"train.precision": "fp8"}, "train.precision='fp8': expected one of fp32, tf32, bf16, fp16"),
        ({"train.precision": ["fp32"]}, "train.precision=['fp32']: expected one of fp32, tf32, bf16, fp16"),
        ({"name": 7}, "name=7: expected text"),
        ({"train": "gpt2"}, "train: expected a group of keys, got 'gpt2'"),
        ({"train.model": None}, "train.model: expected a group of keys, got None"),
        ({"strategy.name": "zero"}, "strategy='zero': expected one of single, ddp, fsdp, accelerate"),
        ({"strategy.name": ["ddp"]}, "strategy=['ddp']: expected one of single, ddp, fsdp, accelerate"),
        ({"strategy": None}, "strategy=None: expected one of single, ddp, fsdp, accelerate"),
        ({"strategy.wrap": "ddp"}, "strategy.wrap: unknown key"),
        ({"hardware.peak": "fast"}, "hardware.peak='fast': expected a number or one of auto, measure, none"),
        ({"profile.level": False}, "profile.level=False: expected one of off, phases"),
    ],
    ids=str,
)
def test_a_slip_is_refused_by_its_path(overrides: Overrides, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_config(overrides)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_missing_key_is_asked_for_by_path() -> None:
    values = compose()
    del values["train"]["model"]["heads"]
    with pytest.raises(UsageError, match=r"^train\.model\.heads: missing"):
        decode(Config, values)


def test_the_caller_says_what_is_raised() -> None:
    with pytest.raises(DataError, match=r"^line 3: expected a group of keys"):
        decode(Config, 7, "line 3", DataError)


def test_a_whole_number_is_a_number() -> None:
    bucket = decode(DdpConfig, {"name": "ddp", "bucket_mb": 25}).bucket_mb
    assert bucket == 25.0
    assert type(bucket) is float


def test_null_where_it_is_allowed() -> None:
    config = make_config({"train.clip_norm": None, "inject.rank": None, "run_dir": None})
    assert (config.train.clip_norm, config.inject.rank, config.run_dir) == (None, None, None)


@pytest.mark.parametrize("peak", ["auto", "measure", "none", 312e12])
def test_a_word_or_a_number(peak: object) -> None:
    assert make_config({"hardware.peak": peak}).hardware.peak == peak


def test_a_group_is_chosen_by_its_name() -> None:
    config = make_config({
        "strategy": {"name": "accelerate", "wrap": "fsdp"},
        "data": {"name": "text", "path": None, "glob": "*.md", "max_bytes": 10, "workers": 0},
    })  # fmt: skip
    assert config.strategy == AccelerateConfig(name="accelerate", wrap="fsdp")
    assert config.data == TextDataConfig(name="text", path=None, glob="*.md", max_bytes=10, workers=0)
    assert config.logger == NoLoggerConfig(name="none")


@given(st.data())
def test_decoding_what_was_decoded_changes_nothing(data: st.DataObject) -> None:
    config = make_config(data.draw(st.fixed_dictionaries({}, optional={
        "seed": st.integers(),
        "name": st.text(),
        "run_dir": st.none() | st.text(),
        "train.learning_rate": st.floats(allow_nan=False) | st.integers(-(2**53), 2**53),
        "train.clip_norm": st.none() | st.floats(allow_nan=False),
        "train.fused_optimizer": st.booleans(),
        "hardware.peak": st.floats(1, 1e18) | st.sampled_from(["auto", "measure", "none"]),
        "strategy": st.sampled_from([
            {"name": "single"}, {"name": "fsdp", "reshard_after_forward": False, "replicas": 1},
        ]),
    })))  # fmt: skip
    assert decode(Config, make_plain(config)) == config


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
PATHS = ["train", "train.model", "train.steps", "train.mode", "strategy", "inject.rank", "profile.nvtx", "data"]


@given(st.sampled_from(PATHS), PLAIN)
def test_any_value_is_taken_or_refused_by_its_path(path: str, value: object) -> None:
    refusal = ""
    try:
        config = make_config({path: value})
    except UsageError as error:
        refusal = str(error)
    assert refusal.startswith(path) if refusal else decode(Config, make_plain(config)) == config


# Combinations
