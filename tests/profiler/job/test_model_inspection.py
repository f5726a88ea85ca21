"""What models tell about a job."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn

from distprof.profiler.job.model_inspection import PrecisionWatch, infer_device


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_precision_of_a_scripted_model_is_that_of_its_parameters() -> None:
    model = torch.jit.script(nn.Linear(1, 1))
    watch = PrecisionWatch()
    watch.watch(model)  # such a model takes no hook
    watch.learn([model])
    watch.learn([])
    assert watch.describe() == "fp32"


class Offloaded(nn.Module):
    """Parameters on the host, of which some are on an accelerator; no tensor is made."""

    def __init__(self, *types: str) -> None:
        super().__init__()
        self.types = types

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        for each in self.types:
            yield cast(nn.Parameter, SimpleNamespace(device=torch.device(each)))


@pytest.mark.parametrize(
    ("types", "found"),
    [
        (["cpu", "cuda:1"], "cuda:1"), (["cpu", "meta", "xpu:0"], "xpu:0"), (["hpu"], "hpu"), (["cpu", "meta"], "cpu"),
        (["cuda:0", "cpu"], "cuda:0"),
    ],
)  # fmt: skip
def test_any_parameter_on_an_accelerator_says_where_a_model_computes(types: list[str], found: str) -> None:
    assert infer_device([Offloaded(*types)]) == torch.device(found)
    assert infer_device([Offloaded("cpu"), Offloaded(*types)]) == torch.device(found)


def test_what_a_wrapper_brings_to_an_accelerator_computes_there() -> None:
    model = nn.Sequential(Offloaded("cpu"))
    model[0]._hf_hook = SimpleNamespace(execution_device="cuda:2")
    assert infer_device([model]) == torch.device("cuda:2")
    model[0]._hf_hook = SimpleNamespace(execution_device=None)
    assert infer_device([model]) == torch.device("cpu")
    group = SimpleNamespace(device=torch.device("cuda", 3))
    for state in (SimpleNamespace(_fsdp_param_group=group), SimpleNamespace(_fsdp_param_groups=[group])):
        model[0]._get_fsdp_state = lambda state=state: state
        assert infer_device([model]) == torch.device("cuda:3")
