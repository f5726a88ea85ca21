"""A wrapper that was asked for is the wrapper that the model got."""

from __future__ import annotations

import pytest
from torch import nn

from distprof.config.check import check
from distprof.config.schema import AccelerateConfig
from distprof.errors import UsageError
from distprof.train.strategy import _require_wrapper
from tests.config.test_config import make_config


def test_fault_28_another_wrapper_than_was_asked_for_is_refused() -> None:
    config = make_config({"strategy": {"name": "accelerate", "wrap": "fsdp"}})
    assert isinstance(config.strategy, AccelerateConfig)
    with pytest.raises(UsageError, match="on a CPU, Accelerate silently falls back from FSDP to DDP"):
        check(config, world_size=2, device_type="cpu")
    with pytest.raises(UsageError, match=r"strategy\.wrap=fsdp: Accelerate chose no wrapper on this machine"):
        _require_wrapper(nn.Linear(1, 1), "fsdp", world_size=2)
