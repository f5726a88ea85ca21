"""Operations without a formula: which they are, and that they are said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.library import Library
from torch.utils.flop_counter import flop_registry

from distprof.modules.count import _name_uncounted
from distprof.modules.formulas import FORMULAS
from distprof.modules.profile import ModuleProfiler, profile_model

SAID = "not counted, because there is no formula: "


class Decompose(nn.Module):
    def forward(self, given: Tensor) -> Tensor:
        return torch.linalg.svd(given)[1]


@pytest.fixture
def library() -> Iterator[Library]:
    """Operations of someone else."""
    made = Library("tests_uncounted", "DEF")
    for number in range(10):
        made.define(f"times{number}(Tensor left, Tensor right) -> Tensor")
        made.impl(f"times{number}", torch.mm, "CPU")
    yield made
    made._destroy()


def test_what_has_no_formula_is_said_with_its_module() -> None:
    inner = nn.Sequential(*(Decompose() for _ in range(5)))
    model = nn.Sequential(nn.Linear(4, 4), Decompose())
    profiler = ModuleProfiler(model)
    for _ in range(2):  # the second start counts anew
        with profiler:
            model(torch.eye(4)).sum().backward()
            model(torch.eye(4))
    assert profiler.report().notes == (f"{SAID}aten._linalg_svd, 2 times, in 1",)
    profiler.reset()
    assert profiler.report().notes == ()
    assert profile_model(Decompose(), torch.eye(4), mode="forward", passes=0).notes == (
        f"{SAID}aten._linalg_svd, once, in the model itself",
    )
    with ModuleProfiler(inner, activations=False) as outer:
        for child in inner:
            child(torch.eye(4))
        Decompose.forward(inner[0], torch.eye(4))
    assert outer.report().notes == (f"{SAID}aten._linalg_svd, 6 times, in 0, 1, 2 and 3 more",)


def test_operations_of_other_libraries_are_said(library: Library) -> None:
    class Foreign(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            for number in range(10):
                for _ in range(10 - number):
                    given = getattr(torch.ops.tests_uncounted, f"times{number}")(given, given)
            return given

    report = profile_model(Foreign(), torch.eye(2), mode="forward", passes=0)
    assert report.rows[0].total_flops.total == 0 and len(report.notes) == 9
    assert report.notes[0] == f"{SAID}tests_uncounted.times0, 10 times, in the model itself"
    assert report.notes[-1] == "not counted either: 2 more operations"


def test_a_formula_of_the_users_own_counts(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign(nn.Module):
        def forward(self, given: Tensor) -> Tensor:
            result: Tensor = torch.ops.tests_uncounted.times0(given, given)
            return result

    def count(left: Any, right: Any, **more: Any) -> int:
        return 16

    monkeypatch.setitem(flop_registry, torch.ops.tests_uncounted.times0, count)
    report = profile_model(Foreign(), torch.eye(2), mode="forward", passes=0)
    assert report.notes == () and report.rows[0].total_flops.forward == 16


def test_products_are_known_by_their_names() -> None:
    """Every operation that has a formula would be missed if it had none; what only prepares or looks is not."""
    operations = [*flop_registry, *FORMULAS]
    assert len(operations) > 40 and [each for each in operations if not _name_uncounted(each)] == []
    aten, quantized = torch.ops.aten, torch.ops.quantized
    products = (
        aten._fft_r2c, aten._linalg_solve_ex, aten._sparse_semi_structured_mm, aten.cudnn_convolution_transpose,
        aten.quantized_lstm, quantized.conv2d_relu, aten._cdist_forward, aten.slow_conv_dilated2d,
    )  # fmt: skip
    others = (
        aten.add, aten._softmax, aten.native_layer_norm, aten._thnn_fused_lstm_cell, aten.upsample_bilinear2d,
        aten._linalg_check_errors, aten.linalg_vector_norm, aten._embedding_bag, aten.im2col, quantized.linear_prepack,
        aten.lgamma, aten.relu, aten._cudnn_rnn_flatten_weight, aten.cummin, torch.ops.c10d.allreduce_, aten.rsqrt,
    )  # fmt: skip
    assert all(map(_name_uncounted, products)) and not any(map(_name_uncounted, others))
