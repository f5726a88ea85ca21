"""What operations count that torch's own counter misses or has wrong: against counts by hand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from distprof.modules.formulas import FORMULAS
from distprof.modules.profile import profile_model

BATCH, LENGTH, WIDTH, WIDER = 2, 8, 32, 64
TOKENS = BATCH * LENGTH
Shape = tuple[int, ...]


class Apply(nn.Module):
    """A function of parameters."""

    def __init__(self, function: Callable[..., Tensor], *shapes: Shape) -> None:
        super().__init__()
        self.function = function
        self.given = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self) -> Tensor:
        return self.function(*self.given)


def count(model: nn.Module, inputs: Any = (), *, backward: bool = True) -> tuple[int, int]:
    """Multiply-adds in forward and in backward, of which nothing is left uncounted."""
    report = profile_model(model, inputs, mode="forward_backward" if backward else "forward", passes=0)
    assert not any("not counted" in note for note in report.notes)
    work = report.rows[0].total_flops
    assert work.forward % 2 == work.backward % 2 == work.recomputed == 0
    return work.forward // 2, work.backward // 2


@pytest.mark.parametrize(
    ("function", "given", "weight", "options", "products"),
    [
        # sequences x places of the output x out x in / groups x kernel
        (functional.conv1d, (2, 8, 9), (8, 1, 3), {"groups": 8}, 2 * 7 * 8 * 1 * 3),
        (functional.conv2d, (2, 8, 8, 8), (8, 4, 3, 3), {"groups": 2, "padding": 1}, 2 * 64 * 8 * 4 * 9),
        (functional.conv2d, (2, 8, 8, 8), (8, 4, 3, 3), {"groups": 2, "padding": "same"}, 2 * 64 * 8 * 4 * 9),
        (functional.conv2d, (2, 8, 11, 9), (12, 2, 3, 2), {"groups": 4, "stride": 2, "dilation": 2}, 2 * 16 * 144),
        (functional.conv2d, (8, 8, 8), (8, 4, 3, 3), {"groups": 2}, 36 * 8 * 4 * 9),
        (functional.conv3d, (2, 4, 5, 5, 5), (6, 2, 2, 2, 2), {"groups": 2, "stride": 2}, 2 * 8 * 6 * 2 * 8),
        # sequences x places of the input x in x out / groups x kernel
        (functional.conv_transpose1d, (2, 8, 6), (8, 2, 3), {"groups": 4, "stride": 2, "dilation": 2}, 2 * 6 * 48),
        (functional.conv_transpose2d, (2, 8, 6, 6), (8, 3, 3, 3), {"groups": 2, "stride": 2}, 2 * 36 * 8 * 3 * 9),
        (functional.conv_transpose3d, (1, 4, 3, 3, 3), (4, 2, 2, 2, 2), {"dilation": 2}, 27 * 4 * 2 * 8),
    ],
)  # fmt: skip
def test_a_convolution_does_as_much_for_each_gradient(
    function: Any, given: Shape, weight: Shape, options: dict[str, Any], products: int
) -> None:
    def convolve(states: Tensor, weights: Tensor) -> Tensor:
        result: Tensor = function(states, weights, **options)
        return result

    assert count(Apply(convolve, given, weight)) == (products, 2 * products)
    assert count(Apply(lambda weights: convolve(torch.zeros(given), weights), weight)) == (products, products)
    frozen = Apply(convolve, given, weight)
    frozen.given[1].requires_grad_(False)
    assert count(frozen) == (products, products)


def test_torchs_formula_still_forgets_the_groups() -> None:
    """If it does not, ours is no longer needed."""
    model = Apply(lambda states, weights: functional.conv1d(states, weights, groups=8), (2, 8, 9), (8, 1, 3))
    with FlopCounterMode(display=False) as counter:
        model().sum().backward()
    assert counter.get_total_flops() > 3 * 2 * 2 * 7 * 8 * 3


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_recurrent_layers_do_every_weight_once_per_token(device: str) -> None:
    states, tokens = torch.zeros(BATCH, 3, WIDTH, device=device), BATCH * 3
    for kind, gates in ((nn.LSTM, 4), (nn.GRU, 3), (nn.RNN, 1)):
        layer = kind(WIDTH, WIDER, batch_first=True, device=device)
        assert count(layer, states, backward=False) == (tokens * gates * WIDER * (WIDTH + WIDER), 0)
    deep = nn.LSTM(WIDTH, WIDER, num_layers=2, bidirectional=True, batch_first=True, device=device)
    forward = 2 * tokens * 4 * WIDER * (WIDTH + WIDER + 2 * WIDER + WIDER)
    assert count(deep, states) == (forward, 2 * forward)  # fused: all gradients are made


def test_recurrent_layers_of_a_gpu() -> None:
    """Seven tokens in sequences of unequal length, and a layer with a projection: its weights have four matrices."""
    weights = [torch.zeros(shape, device="meta") for shape in ((32, 5), (32, 3), (32,), (32,), (3, 8))]
    given, state, cell = (torch.zeros(shape, device="meta") for shape in ((7, 5), (1, 3, 3), (1, 3, 8)))
    sizes = (2, 8, 3, 1, False, 0.0, True, False, [3, 2, 2], None)
    once = 7 * (32 * 5 + 32 * 3 + 3 * 8)
    with FlopCounterMode(display=False, custom_mapping=FORMULAS) as counter:
        torch.ops.aten._cudnn_rnn(given, weights, 5, None, state, cell, *sizes)
    assert counter.get_total_flops() == 2 * once
    backward = FORMULAS[torch.ops.aten._cudnn_rnn_backward]
    before = ((7, 5), [tuple(each.shape) for each in weights])
    assert backward(*before, 5, None, [True, True, True, True]) == 2 * 2 * once
    assert backward(*before, 5, None, output_mask=[True, False, False, False]) == 2 * once


def test_a_fused_encoder_layer_is_its_matrices() -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, WIDER, batch_first=True).eval()
    states = torch.zeros(BATCH, LENGTH, WIDTH)
    weights, attention = 4 * WIDTH**2 + 2 * WIDTH * WIDER, 2 * BATCH * LENGTH**2 * WIDTH
    assert count(layer, states, backward=False) == (TOKENS * weights + attention, 0)
    assert count(layer.self_attn, (states,) * 3, backward=False) == (TOKENS * 4 * WIDTH**2 + attention, 0)
    # With gradients it is not fused. The input needs none, and attention's backward has five products, not two.
    backward = TOKENS * (2 * weights - 3 * WIDTH**2) + 5 * attention // 2
    assert count(layer, states) == (TOKENS * weights + attention, backward)
    # Five tokens of the second sequence: projected without padding, attention over eight.
    padding = torch.arange(LENGTH) >= torch.tensor([[LENGTH], [5]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        encoder = nn.TransformerEncoder(layer, 2).eval()
        given = {"src": states, "src_key_padding_mask": padding}
        assert count(encoder, given, backward=False) == (2 * ((LENGTH + 5) * weights + attention), 0)
        report = profile_model(encoder, given, mode="forward", passes=0)
    assert report.rows[2].output_shapes == ((BATCH, LENGTH, WIDTH),)


@pytest.mark.parametrize(
    ("function", "shapes", "forward", "backward"),
    [
        (torch.addbmm, ((3, 5), (2, 3, 4), (2, 4, 5)), 2 * 3 * 4 * 5, 2 * 2 * 3 * 4 * 5),
        (lambda left, right: torch.zeros(3, 5).addmm_(left, right), ((3, 4), (4, 5)), 60, 120),
        (lambda left, right: torch.zeros(2, 3, 5).baddbmm_(left, right), ((2, 3, 4), (2, 4, 5)), 120, 240),
        # the matrix's gradient is an outer product, which torch makes element by element
        (torch.mv, ((3, 4), (4,)), 12, 12),
        (torch.addmv, ((3,), (3, 4), (4,)), 12, 12),
        (torch.dot, ((4,), (4,)), 4, 0),
        (torch.conv_tbc, ((9, 2, 4), (3, 4, 6), (6,)), 7 * 2 * 3 * 4 * 6, 2 * 7 * 2 * 3 * 4 * 6),
        # b o i j, and b o j; of the gradients, one begins with the weights, the others with the output's and an input
        (functional.bilinear, ((5, 3), (5, 4), (6, 3, 4)), 360 + 120, (360 + 5 * 3 * 4) + (90 + 360) + (120 + 360)),
        (torch.cdist, ((30, 4), (40, 4)), 30 * 40 * (4 + 2), 2 * 30 * 40 * 4),
    ],
)  # fmt: skip
def test_products_by_hand(function: Any, shapes: tuple[Shape, ...], forward: int, backward: int) -> None:
    assert count(Apply(function, *shapes)) == (forward, backward)


@pytest.mark.skipif(not hasattr(functional, "grouped_mm"), reason="this torch has no grouped products")
def test_grouped_products() -> None:
    """Squared, so that the gradient is no broadcast number, which torch refuses."""
    rows = torch.tensor([8, 16], dtype=torch.int32)

    def multiply(left: Tensor, right: Tensor) -> Tensor:
        return functional.grouped_mm(left, right, offs=None if left.ndim == right.ndim else rows).square()

    one = 16 * 32 * 16
    assert count(Apply(multiply, (2, 16, 32), (2, 32, 16))) == (2 * one, 2 * 2 * one)
    assert count(Apply(multiply, (16, 32), (2, 32, 16))) == (one, 2 * one)  # each row once
    if hasattr(torch, "_foreach_mm"):
        assert count(Apply(lambda left, right: torch._foreach_mm([left], [right])[0], (3, 4), (4, 5))) == (60, 120)


def test_sparse_products_are_of_what_is_stored() -> None:
    """Four ones on the diagonal, and a matrix of three columns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CSR is in beta
        sparse, rows = torch.eye(4).to_sparse(), torch.eye(4).to_sparse_csr()
    assert count(Apply(lambda other: torch.sparse.mm(sparse, other), (4, 3)), backward=False)[0] == 4 * 3
    assert count(Apply(lambda other: rows @ other, (4, 3)), backward=False)[0] == 4 * 3
    assert count(Apply(lambda other: other @ rows, (3, 4)), backward=False)[0] == 4 * 3
    assert count(Apply(lambda other: (rows @ rows).to_dense(), (1,)), backward=False)[0] == 4

    def sample(left: Tensor, right: Tensor) -> Tensor:
        return torch.sparse.sampled_addmm(rows, left, right).values()

    assert count(Apply(sample, (4, 6), (6, 4)), backward=False)[0] == 4 * 6


def test_packed_and_integer_products() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao is on its way out
        packed = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(WIDTH, WIDER)), {nn.Linear})
    assert count(packed, torch.zeros(3, 5, WIDTH), backward=False)[0] == 15 * WIDTH * WIDER

    def multiply(given: Tensor) -> Tensor:
        return torch._int_mm(given.to(torch.int8), given.to(torch.int8))

    assert count(Apply(multiply, (32, 32)), backward=False)[0] == 32**3
