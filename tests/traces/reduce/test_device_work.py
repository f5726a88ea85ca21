"""Collectives whose kernels do not tell their kind: named by the annotation or operator that launched them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from distprof.cli.parser import run_verb
from distprof.errors import EXIT_OK
from distprof.facts.run import KINDS
from distprof.facts.trace import Trace
from distprof.traces.reduce.device_work import code_collectives, examine_device, look_up_operations
from distprof.traces.reduce.phase_names import NameMap
from distprof.traces.reduce.traced_rank import trace_rank
from tests.kineto_file import make_event, make_kernel, make_launch, make_op, make_step, write_kineto
from tests.traces.reduce.synthetic_traces import SyntheticTrace

SEND = "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
REDUCE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)"


def name_kinds(trace: Trace) -> list[str | None]:
    return [None if code < 0 else KINDS[code].value for code in code_collectives(trace)]


def test_the_annotation_around_the_launch_names_the_operation() -> None:
    made = SyntheticTrace()
    made.range("nccl:all_to_all", 100, 200)
    made.range("## alltoall ##", 110, 190)  # no name of an operation
    made.range("nccl:_all_gather_base", 300, 400)
    made.range("nccl:all_reduce", 100, 900, thread=2)  # another thread's
    for called_ns in (100, 199, 200, 350, 500):
        made.launch(SEND, called_ns, 1_000 + called_ns, 1_001 + called_ns)
    made.launch(SEND, 500, 2_000, 2_001, thread=2)
    made.launch("gemm", 150, 2_100, 2_200)
    made.launch(REDUCE, 150, 2_300, 2_400)  # its own name tells
    assert name_kinds(made.build()) == [
        "all_to_all", "all_to_all", "other", "all_gather", "other", "all_reduce", None, "all_reduce",
    ]  # fmt: skip


def test_an_operator_names_it_too_and_the_annotation_goes_first() -> None:
    made = SyntheticTrace()
    made.op("c10d::alltoall_base_", 100, 200)
    made.op("record_param_comms", 110, 190)
    made.op("c10d::allreduce_", 300, 400)
    made.range("nccl:_reduce_scatter_base", 310, 390)
    made.launch(SEND, 150, 1_000, 1_100)
    made.launch(SEND, 350, 1_200, 1_300)
    assert name_kinds(made.build()) == ["all_to_all", "reduce_scatter"]


def test_what_the_tool_says_goes_before_what_stands_around() -> None:
    made = SyntheticTrace()
    made.range("nccl:all_reduce", 0, None)  # never closed
    made.launch(SEND, 10, 100, 200)
    made.launch(SEND, 20, 300, 400)
    made.activity(SEND, 500, 600)  # its launch is not in the trace
    made.code("allgather")
    trace = made.build()
    told = np.array([trace.names.index("allgather"), -1, -1])
    said = structs.replace(trace, gpu=structs.replace(trace.gpu, collective=told))
    assert name_kinds(said) == ["all_gather", "all_reduce", "other"]
    assert look_up_operations(said, np.arange(3)).tolist() == [told[0], trace.names.index("nccl:all_reduce"), -1]


def test_exposed_communication_is_that_of_the_device_that_works_longest() -> None:
    made = SyntheticTrace()
    made.range("ProfilerStep#0", 0, 400)
    made.launch("gemm", 5, 10, 200)
    made.launch(REDUCE, 20, 150, 260, stream=20)
    made.activity(REDUCE, 100, 180, device=5)
    trace = made.build()
    begin_ns, end_ns = examine_device(trace).exposed
    assert (begin_ns.tolist(), end_ns.tolist()) == ([200], [260])
    (table,) = trace_rank(trace, NameMap()).collectives
    assert np.array_equal(table.exposed_ns, [[np.nan, 60]], equal_nan=True), "of another device it is not known"


def test_a_payload_that_is_not_known_is_no_0_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = []
    for rank in range(2):
        events = [make_step(1, 100, 200), make_event("user_annotation", "forward", 100, 200)]
        events += [make_launch(102, 1, 5), make_kernel("gemm", 104, 3, 5)]
        for number, (annotation, kernel) in enumerate((("nccl:all_to_all", SEND), ("nccl:all_reduce", REDUCE))):
            begin = 110 + 40 * number
            events += [
                make_event("user_annotation", annotation, begin, 10), make_op("record_param_comms", begin, 12),
                make_launch(begin + 2, 1, 9 + number),
                make_kernel(kernel, begin + 5 + rank, 20 - rank, 9 + number, stream=20),
            ]  # fmt: skip
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        paths.append(str(write_kineto(tmp_path / f"{rank}.json", events, distributedInfo=info, distprof={"host": "h"})))
    assert run_verb(["report", *paths, "--out", str(tmp_path / "out")]) == EXIT_OK
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert {item["kind"]: item["bytes_per_step"] for item in report["communication"]} == {
        "all_reduce": [None, None], "all_to_all": [None, None],
    }  # fmt: skip
    assert Counter((item["kind"], item["bytes_per_step"]) for item in report["waits"]) == {
        ("all_to_all", None): 1, ("all_reduce", None): 1,
    }  # fmt: skip
    shown = capsys.readouterr().out + (tmp_path / "out" / "report.html").read_text()
    assert " 0 B" not in shown and ">0 B" not in shown
