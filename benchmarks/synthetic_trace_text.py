"""The text of synthetic traces: events of the PyTorch profiler as JSON, old or present, about 300 bytes each."""

from __future__ import annotations

import json

BASE_NS = 1_751_410_836_000_000_000
BEGIN_NS = BASE_NS + 1_428_625_731_000_000
GENERATIONS = {"old": (1_000, BEGIN_NS), "present": (1, BEGIN_NS)}
"""Resolution of the file's times, and begin of the first step on the Unix clock, ns."""
HOST_PID = 4000
MAIN_STREAM, LINK_STREAM = 7, 20
LAYER_NORM_KERNEL = (
    "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>"
    "(int, float, float const*, float const*, float const*, float*, float*, float*)"
)
GELU_KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl(at::TensorIteratorBase&, "
    "at::native::GeluType)::{lambda()#2}, at::detail::Array<char*, 2> >(int, float)"
)
ADD_KERNEL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "at::detail::Array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, at::detail::Array<char*, 3>)"
)
ATTENTION_KERNEL = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4, false, false> >"
COMPUTE = (
    ("aten::linear", "aten::addmm", "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x3_tn"),
    ("aten::layer_norm", "aten::native_layer_norm", LAYER_NORM_KERNEL),
    ("aten::gelu", "aten::gelu", GELU_KERNEL),
    ("aten::scaled_dot_product_attention", "aten::_flash_attention_forward", ATTENTION_KERNEL),
    ("aten::add", "aten::add_", ADD_KERNEL),
)
"""Operator, inner operator and kernel."""
COLLECTIVE = {
    "old": "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
    "present": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}


class TraceText:
    """Collects events of one rank. Times are ns on the Unix clock."""

    def __init__(self, *, rank: int, generation: str) -> None:
        self.rank, self.generation = rank, generation
        self.pid = HOST_PID + rank
        self.backward_tid = self.pid + 1000
        self.old = generation == "old"
        self.events: list[str] = []
        self.num_events = 0
        self.correlation = 1000

    def _time(self, time_ns: int) -> str:
        if self.old:
            return str(time_ns // 1000)
        time_ns -= BASE_NS
        return f"{time_ns // 1000}.{time_ns % 1000:03d}"

    def _span(self, duration_ns: int) -> str:
        return str(duration_ns // 1000) if self.old else f"{duration_ns // 1000}.{duration_ns % 1000:03d}"

    def _head(self, cat: str, name: str, begin_ns: int, lasts_ns: int, tid: int, pid: int | None = None) -> str:
        self.num_events += 1
        return (
            f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {self.pid if pid is None else pid}, "tid": {tid}, '
            f'"ts": {self._time(begin_ns)}, "dur": {self._span(lasts_ns)}, "args": {{"External id": {self.correlation}'
        )

    def _arrows(self, begin_ns: int, device_ns: int, tid: int, stream: int) -> None:
        self.num_events += 2
        number = self.correlation
        self.events.append(
            f'{{"ph": "s", "id": {number}, "pid": {self.pid}, "tid": {tid}, "ts": {self._time(begin_ns)}, '
            '"cat": "ac2g", "name": "ac2g"}'
        )
        self.events.append(
            f'{{"ph": "f", "id": {number}, "pid": 0, "tid": {stream}, "ts": {self._time(device_ns)}, '
            '"cat": "ac2g", "name": "ac2g", "bp": "e"}'
        )

    def annotate(self, name: str, begin_ns: int, end_ns: int) -> None:
        """Adds a user annotation on the main thread."""
        self.events.append(self._head("user_annotation", name, begin_ns, end_ns - begin_ns, self.pid) + "}}")

    def call(self, name: str, begin_ns: int, end_ns: int, tid: int | None = None) -> None:
        """Adds a CUDA runtime call."""
        head = self._head("cuda_runtime", name, begin_ns, end_ns - begin_ns, self.pid if tid is None else tid)
        self.events.append(f'{head}, "cbid": 211, "correlation": {self.correlation}}}}}')

    def copy(self, begin_ns: int, device_ns: int, lasts_ns: int, size_bytes: int) -> None:
        """Adds a copy from pageable memory, and the call that requests it."""
        self.correlation += 1
        self.call("cudaMemcpyAsync", begin_ns, begin_ns + 5000)
        head = self._head("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", device_ns, lasts_ns, MAIN_STREAM, 0)
        self.events.append(
            f'{head}, "device": 0, "context": 1, "stream": {MAIN_STREAM}, "correlation": {self.correlation}, '
            f'"bytes": {size_bytes}, "memory bandwidth (GB/s)": 5.825422222222222}}}}'
        )
        self._arrows(begin_ns, device_ns, self.pid, MAIN_STREAM)

    def kernel(self, slot: int, backward: bool, begin_ns: int, host_ns: int, device_ns: int, lasts_ns: int) -> None:
        """Adds an operator with two nested operators, the call in the innermost, and the kernel."""
        self.correlation += 1
        outer, inner, name = COMPUTE[slot % len(COMPUTE)]
        tid = self.backward_tid if backward else self.pid
        if backward:
            outer = f"autograd::engine::evaluate_function: {outer[6:].title()}Backward0"
        events, number = self.events, self.correlation
        shapes = (
            f', "Record function id": {number}, "Concrete Inputs": ["", "", "", "{slot}"], "Input type": '
            '["c10::BFloat16", "c10::BFloat16", "c10::BFloat16", "Scalar"], '
            '"Input Dims": [[8192, 2048], [2048, 2048], [2048], []], '
            f'"Ev Idx": {number}}}}}'
        )
        for index, cpu_op in enumerate((outer, inner, "aten::empty")):
            events.append(self._head("cpu_op", cpu_op, begin_ns + 1000 * index, host_ns - 2000 * index, tid) + shapes)
        self.call("cudaLaunchKernel", begin_ns + 3000, begin_ns + 6000, tid)
        events.append(
            self._head("kernel", name, device_ns, lasts_ns, MAIN_STREAM, 0)
            + f', "queued": 0, "device": 0, "context": 1, "stream": {MAIN_STREAM}, "correlation": {number}, '
            '"registers per thread": 96, "shared memory": 87568, "blocks per SM": 2.074074, "warps per SM": 18.259259, '
            '"grid": [224, 1, 1], "block": [256, 1, 1], "est. achieved occupancy %": 28}}'
        )
        self._arrows(begin_ns + 3000, device_ns, tid, MAIN_STREAM)

    def collective(self, begin_ns: int, device_ns: int, lasts_ns: int, elements: int) -> None:
        """Adds an all-reduce of floats on the communication stream, and the call that launches it."""
        self.correlation += 1
        tid = self.backward_tid
        self.events.append(self._head("user_annotation", "nccl:all_reduce", begin_ns, 5000, tid) + "}}")
        self.events.append(self._head("cpu_op", "c10d::allreduce_", begin_ns, 6000, tid) + "}}")
        self.call("cudaLaunchKernelExC", begin_ns + 1000, begin_ns + 4000, tid)
        said = "" if self.old else (
            f', "Collective name": "allreduce", "In msg nelems": {elements}, "Out msg nelems": {elements}, '
            '"Group size": 2, "dtype": "Float", "In split size": "[]", "Out split size": "[]", '
            '"Process Group Name": "0", "Process Group Description": "default_pg"'
        )  # fmt: skip
        head = self._head("kernel", COLLECTIVE[self.generation], device_ns, lasts_ns, LINK_STREAM, 0)
        self.events.append(
            f'{head}, "queued": 0, "device": 0, "context": 1, "stream": {LINK_STREAM}, '
            f'"correlation": {self.correlation}, "grid": [8, 1, 1], "block": [544, 1, 1]{said}}}}}'
        )
        self._arrows(begin_ns + 1000, device_ns, tid, LINK_STREAM)

    def close(self, *, rank: int, world_size: int) -> str:
        """The complete file; nothing can be added afterwards."""
        info: dict[str, object] = {"backend": "nccl", "rank": rank, "world_size": world_size}
        head: dict[str, object] = {"schemaVersion": 1, "distributedInfo": info}
        tail: dict[str, object] = {"traceName": "synthetic.json", "displayTimeUnit": "ms"}
        if not self.old:
            ranks = list(range(world_size))
            group = {"pg_name": "0", "pg_desc": "default_pg", "pg_size": world_size, "ranks": ranks}
            info |= {"pg_count": 1, "pg_config": [group], "nccl_version": "2.27.5"}
            device = {
                "id": 0,
                "name": "Synthetic GPU",
                "totalGlobalMem": 85018279936,
                "computeMajor": 9,
                "computeMinor": 0,
            }
            head["deviceProperties"] = [device]
            tail["baseTimeNanoseconds"] = BASE_NS
        events = ",\n  ".join(self.events)
        return f'{json.dumps(head)[:-1]}, "traceEvents": [\n  {events}\n], {json.dumps(tail)[1:]}\n'
