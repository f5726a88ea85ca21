"""The tables that nsys writes, by generation: names and types of columns, in order."""

from __future__ import annotations

import enum
from collections.abc import Mapping

COPY_LABELS = (
    "Unknown", "Host-to-Device", "Device-to-Host", "Host-to-Array", "Array-to-Host", "Array-to-Array",
    "Array-to-Device", "Device-to-Array", "Device-to-Device", "Host-to-Host", "Peer-to-Peer",
    "Unified Host-to-Device", "Unified Device-to-Host", "Unified Device-to-Device",
)  # fmt: skip
MEMORY_LABELS = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")


class Generation(enum.StrEnum):
    """A release of nsys by its number."""

    OLD = "2022.4.2"
    PRESENT = "2024.6.1"


_KINDS = {"doubleValue": "REAL", "floatValue": "REAL", "id": "INTEGER NOT NULL PRIMARY KEY"}
_KINDS |= dict.fromkeys(
    ("text", "jsonText", "name", "label", "chipName", "devStateName", "uuid", "busLocation"), "TEXT"
)


def _columns(names: str, **kinds: str) -> dict[str, str]:
    """Columns by name with their types: integers that may be NULL, with a few exceptions."""
    return {name: kinds.get(name) or _KINDS.get(name, "INTEGER") for name in names.split()}


_LAUNCHED = "start end deviceId contextId streamId correlationId globalPid"
_LAUNCHED_GREEN = "start end deviceId contextId greenContextId streamId correlationId globalPid"
_KERNEL = """
    launchType cacheConfig registersPerThread gridX gridY gridZ blockX blockY blockZ staticSharedMemory
    dynamicSharedMemory localMemoryPerThread localMemoryTotal gridId sharedMemoryExecuted graphNodeId
    sharedMemoryLimitConfig"""
_COPY = "bytes copyKind deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId graphNodeId"

_OLD: dict[str, dict[str, str]] = {
    "StringIds": _columns("id value", value="TEXT NOT NULL"),
    "META_DATA_EXPORT": _columns("name value", value="TEXT"),
    "TARGET_INFO_SYSTEM_ENV": _columns("globalVid devStateName name nameEnum value", value="TEXT"),
    "TARGET_INFO_GPU": _columns("""
        vmId id name busLocation isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate smCount pwGpuId uuid luid
        chipName cuDevice ctxswDevicePath ctrlDevicePath numConcurrentCopies computeMajor computeMinor smMajor smMinor
        """, id="INTEGER NOT NULL"),
    "ANALYSIS_DETAILS": _columns("globalVid duration startTime stopTime"),
    "TARGET_INFO_SESSION_START_TIME": _columns("utcEpochNs utcTime localTime", utcTime="TEXT", localTime="TEXT"),
    "PROCESSES": _columns("globalPid pid name"),
    "ENUM_CUDA_MEMCPY_OPER": _columns("id name label"),
    "ENUM_CUDA_MEM_KIND": _columns("id name label"),
    "NVTX_EVENTS": _columns("""
        start end eventType rangeId category color text globalTid endGlobalTid textId domainId uint64Value int64Value
        doubleValue uint32Value int32Value floatValue jsonTextId jsonText"""),
    "CUPTI_ACTIVITY_KIND_RUNTIME": _columns("""
        start end eventClass globalTid correlationId nameId returnValue callchainId"""),
    "CUPTI_ACTIVITY_KIND_KERNEL": _columns(f"{_LAUNCHED} demangledName shortName {_KERNEL}"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _columns(f"{_LAUNCHED} {_COPY}"),
    "CUPTI_ACTIVITY_KIND_MEMSET": _columns(f"{_LAUNCHED} value bytes graphNodeId memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _columns(f"{_LAUNCHED} graphId graphExecId"),
    "OSRT_API": _columns("start end eventClass globalTid correlationId nameId returnValue nestingLevel callchainId"),
}  # fmt: skip

_PRESENT = _OLD | {
    "CUPTI_ACTIVITY_KIND_KERNEL": _columns(
        f"{_LAUNCHED_GREEN} demangledName shortName mangledName {_KERNEL} clusterX clusterY clusterZ"
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": _columns(f"{_LAUNCHED_GREEN} {_COPY} migrationCause virtualAddress copyCount"),
    "CUPTI_ACTIVITY_KIND_MEMSET": _columns(f"{_LAUNCHED_GREEN} value bytes graphNodeId memKind"),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": _columns(f"{_LAUNCHED_GREEN} graphId graphExecId"),
    "TARGET_INFO_CUDA_DEVICE": _columns("gpuId cudaId pid uuid numMultiprocessors"),
}

TABLES: Mapping[Generation, Mapping[str, Mapping[str, str]]] = {Generation.OLD: _OLD, Generation.PRESENT: _PRESENT}
