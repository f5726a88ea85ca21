"""Rows on their way to rank 0, over real gloo groups and through a pretended exchange."""

from __future__ import annotations

import gc
import threading
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d

from distprof.facts.arrays import FloatArray
from distprof.facts.gpu import UNREAD, GpuReading
from distprof.facts.run import COLUMN, ROW_WIDTH
from distprof.record.gather.gather import Exchange, GatherThread, choose_devices, list_script_devices, make_own_group
from distprof.record.gather.live import MAX_OPEN_STEPS, LiveSteps
from distprof.record.gather.thinning import Thinning
from distprof.record.gather.window_agreement import WindowMessage
from distprof.record.step.step_record import STEPS_AT_ONCE
from distprof.world import World, all_reduce_max, collect_texts, share_text
from tests.ranks import call_on_ranks


def make_row(rank: int, step: int) -> FloatArray:
    row = np.full(ROW_WIDTH, np.nan)
    row[COLUMN["step"]], row[COLUMN["tokens"]] = step, 1000 * rank + step
    return row


def exchange_unequal_numbers(world: World) -> None:
    exchange = Exchange(dist.new_group(backend="gloo"))
    sent = {0: [0, 1], 1: [], 2: [0, 1, 2]}[world.rank]
    tables, everyone = exchange.send([make_row(world.rank, step) for step in sent], last=world.rank != 1)
    assert not everyone
    if world.rank == 0:
        np.testing.assert_array_equal([len(table) for table in tables], [2, 0, 3])
        np.testing.assert_array_equal(tables[2], [make_row(2, step) for step in range(3)])
    else:
        assert tables == []
    assert not exchange.paused
    if world.rank == 0:
        exchange.ask_to_pause(True)
    tables, everyone = exchange.send([], last=True)
    assert exchange.paused and not exchange.stop_recording
    assert everyone and (world.rank != 0 or [len(table) for table in tables] == [0, 0, 0])


def test_ranks_with_unequal_numbers_of_rows(tmp_path: Path) -> None:
    call_on_ranks(3, exchange_unequal_numbers, tmp_path=tmp_path)


def tell_each_other(world: World) -> None:
    exchange = Exchange(dist.new_group(backend="gloo"))
    if world.rank == 1:
        exchange.read_gpu = lambda: GpuReading(power_mw=125_000, energy_mj=2**40, sm_clock_mhz=345, limits=1)
    exchange.thinner.wish = (
        Thinning(stride=8, first_steps=40) if world.rank == 0 else Thinning(stride=2, first_steps=36, again=90)
    )
    exchange.word = WindowMessage(next_step=7 + world.rank)
    exchange.send([], last=False)
    assert exchange.gpus == [GpuReading(), (125_000, 2**40, 345, UNREAD, 1)]
    assert [word.next_step for word in exchange.words] == [7, 8]
    assert exchange.thinner.agreed == (8, 36, 90)


def test_ranks_tell_of_their_gpus_of_their_steps_and_of_what_they_would_record(tmp_path: Path) -> None:
    call_on_ranks(2, tell_each_other, tmp_path=tmp_path)


def agree(world: World) -> None:
    group = dist.group.WORLD
    assert share_text("from zero ü" if world.rank == 0 else "ignored", group=group) == "from zero ü"
    assert share_text("", source=1, group=group) == ""
    assert collect_texts("é" * world.rank, group=group) == ["é" * rank for rank in range(world.size)]
    assert all_reduce_max(world.rank, group=group) == world.size - 1
    alone = share_text("one", group=None), collect_texts("one", group=None), all_reduce_max(7, group=None)
    assert alone == ("one", ["one"], 7)


def test_texts_are_shared_and_collected(tmp_path: Path) -> None:
    call_on_ranks(2, agree, tmp_path=tmp_path)


def keep_what_was_issued(world: World) -> None:
    issued: list[weakref.ref[Any]] = []

    class Watched:
        """The default group; remembers what is issued."""

        def __getattr__(self, name: str) -> Any:
            method = getattr(dist.group.WORLD, name)

            def watched(*args: Any) -> Any:
                work = method(*args)
                if isinstance(work, dist.Work):
                    issued.append(weakref.ref(work))
                return work

            return watched

    group: Any = Watched()
    share_text("text", group=group)
    collect_texts("text", group=group)
    all_reduce_max(1, group=group)
    Exchange(group).send([make_row(world.rank, 0)], last=True)
    gc.collect()
    assert len(issued) == 7 and all(work() is not None for work in issued)


def test_the_last_reference_to_a_collective_is_not_left_to_the_thread_that_ran_it(tmp_path: Path) -> None:
    """It would take the GIL to let go of it, at a time when Python may have ended, and abort the process."""
    call_on_ranks(2, keep_what_was_issued, tmp_path=tmp_path)


def test_a_long_backlog_travels_in_parts() -> None:
    exchange = Exchange(None)
    (first,), everyone = exchange.send([make_row(0, step) for step in range(STEPS_AT_ONCE + 5)], last=True)
    assert len(first) == STEPS_AT_ONCE and not everyone
    (rest,), everyone = exchange.send([], last=True)
    assert [row[COLUMN["step"]] for row in rest] == list(range(STEPS_AT_ONCE, STEPS_AT_ONCE + 5)) and everyone


def make_gather_thread(
    exchange: Exchange, rows: list[list[FloatArray]], log: list[str], **options: object
) -> GatherThread:
    def take(wait: bool) -> list[FloatArray]:
        log.append(f"take wait={wait}")
        return rows.pop(0) if rows else []

    return GatherThread(
        take=take, end=lambda: log.append("end"), exchange=exchange, window_s=60.0, lost=log.append,
        deliver=lambda tables: log.append(f"deliver {[len(table) for table in tables]}"), **options,  # type: ignore[arg-type]
    )  # fmt: skip


@pytest.mark.parametrize(("at_s", "nap_s"), [(120.0, 60.0), (123.5, 56.5), (179.0, 1.0), (179.5, 60.5)])
def test_rounds_begin_together_on_all_ranks(monkeypatch: pytest.MonkeyPatch, at_s: float, nap_s: float) -> None:
    """At whole minutes, if a window is one; who wakes up half a second before has woken up for that round."""
    monkeypatch.setattr("distprof.record.gather.gather.time.time", lambda: at_s)
    assert make_gather_thread(Exchange(None), [], [])._compute_nap_s() == nap_s


def test_finishing_takes_the_last_rows_writes_the_end_and_delivers() -> None:
    log: list[str] = []
    gather_thread = make_gather_thread(Exchange(None), [[make_row(0, 0)]], log, together=lambda: log.append("together"))
    gather_thread.start()
    assert gather_thread.finish(alone=False, timeout_s=30)
    assert log == ["take wait=True", "end", "deliver [1]", "together"]
    assert gather_thread.complete and gather_thread.received == {0: 1}


def test_recording_stops_once_when_rank_0_has_asked() -> None:
    log: list[str] = []
    exchange = Exchange(None)
    gather_thread = make_gather_thread(exchange, [[make_row(0, 0)]], log, stop_recording=lambda: log.append("stop"))
    exchange.ask_to_stop()
    gather_thread.start()
    assert gather_thread.finish(alone=False, timeout_s=30)
    assert log == ["take wait=True", "end", "stop", "deliver [1]"]


def test_recording_pauses_for_as_long_as_rank_0_wants_it() -> None:
    log: list[str] = []
    wanted = iter([False, True, True, False])
    backlog = [[make_row(0, step) for step in range(STEPS_AT_ONCE)]] * 3 + [[make_row(0, 0)]]  # four rounds
    gather_thread = make_gather_thread(
        Exchange(None), backlog, log, wants_pause=lambda: next(wanted), pause=lambda off: log.append(f"pause {off}")
    )
    gather_thread.start()
    assert gather_thread.finish(alone=False, timeout_s=30)
    assert [line for line in log if not line.startswith("take")] == [
        "deliver [256]", "pause True", "deliver [256]", "deliver [256]", "end", "pause False", "deliver [1]",
    ]  # fmt: skip


def test_after_a_failure_a_rank_finishes_alone_and_never_waits_for_the_device() -> None:
    class NoExchange(Exchange):
        def send(self, rows: list[FloatArray], *, last: bool) -> tuple[list[FloatArray], bool]:
            raise AssertionError("the others may be gone")

    log: list[str] = []
    gather_thread = make_gather_thread(
        NoExchange(None), [[make_row(0, 0)]], log, together=lambda: log.append("together")
    )
    gather_thread.start()
    assert gather_thread.finish(alone=True, timeout_s=30)
    assert log == ["take wait=False", "end"]


@pytest.mark.parametrize("alone", [False, True])
def test_a_thread_that_waits_for_others_ends_with_its_process(alone: bool) -> None:
    waits = threading.Event()

    class Work:
        def is_completed(self) -> bool:
            waits.set()
            return False

    class Endless(Exchange):
        def send(self, rows: list[FloatArray], *, last: bool) -> tuple[list[FloatArray], bool]:
            self._wait(Work())
            raise AssertionError

    log: list[str] = []
    gather_thread = make_gather_thread(Endless(None), [], log)
    gather_thread._wake.set()  # the first round
    gather_thread.start()
    assert waits.wait(30)
    assert gather_thread.finish(alone=alone, timeout_s=0.0)
    assert set(log) == {"take wait=False", f"take wait={not alone}", "end"}


@pytest.mark.parametrize(("others", "done", "stepped_on"), [(5, False, False), (6, True, False), (6, False, True)])
def test_fault_47_a_rank_that_has_ended_alone_holds_up_no_rank_that_steps_on(
    monkeypatch: pytest.MonkeyPatch, others: int, done: bool, stepped_on: bool
) -> None:
    """The others go on, and soon wait for this rank inside training, so that they never send their last rows."""
    monkeypatch.setattr("distprof.record.gather.gather.STEPPED_ON_WAIT_S", 0.0)

    class Work:
        def is_completed(self) -> bool:
            return False

    class Endless(Exchange):
        def send(self, rows: list[FloatArray], *, last: bool) -> tuple[list[FloatArray], bool]:
            self.word, self.words, self.done = (
                WindowMessage(next_step=5),
                [WindowMessage(next_step=n) for n in (5, others)],
                [True, done],
            )
            self._wait(Work())
            raise AssertionError

    gather_thread = make_gather_thread(Endless(None), [], [])
    gather_thread.start()
    assert gather_thread.finish(alone=False, timeout_s=3600.0 if stepped_on else 0.2)
    assert bool(gather_thread._exchange.list_ranks_ahead()) == stepped_on


def test_a_broken_exchange_is_told_once_and_the_file_is_still_ended() -> None:
    class Broken(Exchange):
        def send(self, rows: list[FloatArray], *, last: bool) -> tuple[list[FloatArray], bool]:
            raise RuntimeError("Connection closed by peer\nmore")

    log: list[str] = []
    gather_thread = make_gather_thread(Broken(None), [], log, together=lambda: log.append("together"))
    gather_thread.start()
    assert gather_thread.finish(alone=False, timeout_s=30)
    assert log[:3] == ["take wait=True", "end", "the ranks' rows no longer reach rank 0: Connection closed by peer"]
    assert "together" not in log


def test_whatever_goes_wrong_in_delivery_training_goes_on() -> None:
    log: list[str] = []

    def fail(tables: list[FloatArray]) -> None:
        raise ZeroDivisionError("wandb is down")

    gather_thread = make_gather_thread(Exchange(None), [[make_row(0, 0)]], log)
    gather_thread.deliver = fail
    gather_thread.start()
    assert gather_thread.finish(alone=False, timeout_s=30)
    assert "delivery stopped: ZeroDivisionError: wandb is down" in log


def test_live_steps_come_whole_and_in_order() -> None:
    seen: list[FloatArray] = []
    live = LiveSteps(2, seen.append)
    live.add([np.stack([make_row(0, 0), make_row(0, 1)]), np.empty((0, ROW_WIDTH))])
    assert seen == []
    live.add([np.empty((0, ROW_WIDTH)), np.stack([make_row(1, 1), make_row(1, 0)])])
    (rows,) = seen
    np.testing.assert_array_equal(rows[:, :, COLUMN["tokens"]], [[0, 1], [1000, 1001]])


def test_live_steps_do_not_grow_when_a_rank_stays_silent() -> None:
    live = LiveSteps(2, lambda rows: None)
    live.add([np.stack([make_row(0, step) for step in range(MAX_OPEN_STEPS + 9)]), np.empty((0, ROW_WIDTH))])
    assert len(live._open) == MAX_OPEN_STEPS and min(live._open) == 9


def make(world: World, name: str) -> dist.ProcessGroup:
    store = distributed_c10d.PrefixStore(name, distributed_c10d._get_default_store())  # type: ignore[attr-defined]
    return make_own_group(store, rank=world.rank, size=world.size, devices=choose_devices(), timeout_s=40.0)


def live_beside_the_scripts_groups(world: World) -> None:
    known = list(distributed_c10d._world.pg_map), distributed_c10d._world.group_count
    own = make(world, "own")
    assert choose_devices() == list_script_devices() != []
    assert (list(distributed_c10d._world.pg_map), distributed_c10d._world.group_count) == known
    assert own.group_desc == "distprof"
    assert own._get_backend(torch.device("cpu")).options._timeout == timedelta(seconds=40)
    group = dist.new_group(backend="gloo")
    total = torch.tensor([world.rank + 1])
    dist.all_reduce(total, group=group)
    assert int(total) == 3 and all_reduce_max(world.rank, group=own) == 1
    dist.destroy_process_group()
    assert collect_texts(f"rank {world.rank}", group=own) == ["rank 0", "rank 1"]


def test_it_is_none_of_the_scripts_groups_and_outlives_them(tmp_path: Path) -> None:
    call_on_ranks(2, live_beside_the_scripts_groups, tmp_path=tmp_path)


def test_an_interface_that_does_not_exist_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    with pytest.raises(RuntimeError, match="none0"):
        choose_devices()
