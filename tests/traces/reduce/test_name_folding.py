"""Names that differ only in an instance number become one name."""

from __future__ import annotations

import pytest

from distprof.traces.reduce.name_folding import LONGEST_FOLDED, fold_name
from distprof.traces.reduce.ranges import total_ranges
from tests.traces.reduce.synthetic_traces import SyntheticTrace


@pytest.mark.parametrize(
    ("name", "folded"),
    [
        ("ProfilerStep#551", "ProfilerStep#*"), ("step#42", "step#*"), ("global_step_12", "global_step_*"),
        ("iteration 7", "iteration *"), ("iter=0003", "iter=*"), ("train_step 4 of 99", "train_step * of 99"),
        ("epoch 1, batch 12", "epoch *, batch *"), ("micro_batch_3", "micro_batch_*"),
        ("layer_17 id=123", "layer_17 id=*"), ("request_id: 88", "request_id: *"),
        ("aten::mm, seq = 1234, op_id = 5678", "aten::mm, seq = *, op_id = *"),
        ("alloc at 0x7f3a00ff10", "alloc at *"), ("fetch 123e4567-e89b-12d3-a456-426614174000", "fetch *"),
        ("object_9f86d081884c7d659a2feaa0c55ad015", "object_*"), ("sent 1732233601123456", "sent *"),
    ],
)  # fmt: skip
def test_what_tells_instances_apart_is_folded(name: str, folded: str) -> None:
    assert fold_name(name) == folded
    assert fold_name(folded) == folded


@pytest.mark.parametrize(
    "name",
    [
        "layer_17", "transformer.h.3.mlp", "Linear_100", "BatchNorm2d_4", "bucket 3", "rank 2", "stage 1", "gemm4096",
        "conv2d_3x3", "Optimizer.step#AdamW.step", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "attention", "grid 4", "valid 3", "batch_norm_2", "step2vec", "stepwise_3", "identity_4", "size 16777216",
        "Torch-Compiled Region: 0/1", "facade", "deadbeefdeadbeefdead", "forward 1.0000000001", "",
        "id=1" + " " * LONGEST_FOLDED,
    ],
)  # fmt: skip
def test_what_tells_parts_apart_stays(name: str) -> None:
    assert fold_name(name) == name


def test_instances_of_folded_names_are_one_range_with_the_union_of_their_work() -> None:
    made = SyntheticTrace()
    for number in range(3):
        made.range(f"iteration {number}", 100 * number, 100 * number + 90)
        made.range("layer_0", 100 * number, 100 * number + 50)
        made.launch("gemm", 100 * number + 10, 100 * number + 20, 100 * number + 60)
    totals = {total.name: total for total in total_ranges(made.build(), window=[(100, 300)])}
    assert set(totals) == {"iteration *", "layer_0"}
    steps = totals["iteration *"]
    assert (steps.count, steps.host_ns, steps.gpu_ns, steps.warmup_count) == (2, 180, 80, 1)
    assert (steps.host_exclusive_ns, steps.activities) == (80, 2)
