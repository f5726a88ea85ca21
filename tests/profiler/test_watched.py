"""What models tell about a job."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from distprof.profiler.watched import PrecisionWatch


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_precision_of_a_scripted_model_is_that_of_its_parameters() -> None:
    model = torch.jit.script(nn.Linear(1, 1))
    watch = PrecisionWatch()
    watch.watch(model)  # such a model takes no hook
    assert watch.describe([model]) == "fp32"
