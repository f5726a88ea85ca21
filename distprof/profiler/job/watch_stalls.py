"""Has a rank that waits for others for too long, or for one that has died, write where it stands."""

from __future__ import annotations

from collections.abc import Callable

from distprof.profiler.job.setting import OpenSetting
from distprof.record.gather.step_writer import StepWriter
from distprof.record.stalls.stacks import watch_gil
from distprof.record.stalls.stall_watch import Peers, StallWatch, read_timeout_s
from distprof.record.step.recorder import Recorder
from distprof.storage.run_folder import rank_path


def watch_stalls(
    setting: OpenSetting, recorder: Recorder, step_writer: StepWriter, thread: int
) -> list[Callable[[], None]]:
    """Starts the watch of one rank of several.

    Args:
        setting: Of the job.
        recorder: Tells the open step.
        step_writer: Writes where the rank stands.
        thread: The kernel's identifier of the training thread.

    Returns:
        What ends it, and takes back what it leaves behind, in this order.
    """
    world = setting.world
    others = [each.rank for each in setting.streams.ranks if each.host == world.host and each.rank != world.rank]
    peers = Peers({rank: rank_path(setting.folder, rank) for rank in others if rank not in setting.streams.apart})
    lock_watch = watch_gil(setting.streams.own.path, thread)
    watch = StallWatch(
        position=lambda: (recorder.step, recorder.open), lost=setting.warn, died=peers.have_died,
        stalled=lambda stalled_s: step_writer.save_state(stalled_s, stopped=peers.find_stopped()),
        looked=(lambda limit_s: None) if lock_watch is None else lock_watch.wind,
        timeout_s=read_timeout_s() or setting.timeout_s,
    )  # fmt: skip
    watch.start()
    return [watch.close, *([] if lock_watch is None else [lock_watch.close])]
