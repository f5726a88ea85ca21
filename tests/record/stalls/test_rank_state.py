"""A rank that waits in ``send`` or ``recv``: its peer is read from the blocked call."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.facts.stand import Message
from distprof.record.stalls.rank_state import parse_message, read_message


@pytest.mark.parametrize(("call", "inner", "kind"), [(dist.send, "isend", "send"), (dist.recv, "irecv", "recv")])
def test_a_blocked_call_tells_its_peer(
    call: Callable[..., object], inner: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, over = threading.Event(), threading.Event()

    def block(*args: object, **options: object) -> None:
        begun.set()
        over.wait(60)

    for name in (inner, "_group_or_default_group"):
        monkeypatch.setattr(distributed_c10d, name, block)

    def run(told: int | None) -> None:
        with contextlib.suppress(Exception):  # there is no process group
            call(torch.zeros(1), told)

    for told, peer in ((3, 3), (None, None)):
        begun.clear()
        over.clear()
        thread = threading.Thread(target=run, args=(told,), daemon=True)
        thread.start()
        assert begun.wait(60) and thread.ident is not None
        found = read_message(thread.ident)
        over.set()
        thread.join(60)
        assert found == Message(kind="send" if kind == "send" else "recv", peer=peer)
    assert read_message(threading.get_ident()) is None


def test_a_message_of_nccl_is_in_the_ring() -> None:
    entry = {"profiling_name": "nccl:send 0->1"}
    assert parse_message(entry, None) == Message(kind="send", peer=1)
    assert parse_message(entry, (4, 6)) == Message(kind="send", peer=6)
    assert parse_message(entry, (4,)) == Message(kind="send", peer=None)
    assert parse_message({"profiling_name": "nccl:coalesced"}, None) is None
