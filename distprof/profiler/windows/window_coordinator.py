"""On rank 0: takes orders for kernel windows from a file in the run folder, and answers them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.profiler import kineto_available

from distprof.errors import DataError, describe_error
from distprof.facts.run import name_ranks
from distprof.profiler.job.rank_context import OpenRankContext
from distprof.record.gather.window_agreement import WindowOutcome
from distprof.record.windows.nvtx_ranges import tool_listens
from distprof.storage.window_files import REQUEST, WindowRequest, WindowState, read_request, window_folder, write_state

MIN_FREE_BYTES = 256 << 20
"""With less space no window begins: the job's own records need it."""
WHY_MISSING = {
    WindowOutcome.NONE: "did not take part",
    WindowOutcome.OTHER_PROFILER: "another profiler was running in the script",
    WindowOutcome.FAILED: "the profiler failed, or its trace could not be written: the report's coverage says how",
    WindowOutcome.ENDED: "training had ended there",
}


class WindowCoordinator:
    """The `distprof.record.gather.window_agreement.Coordinator` of a job, which the gather thread asks. One window at a
    time."""

    def __init__(
        self,
        folder: Path,
        *,
        kept_steps: int,
        apart: Sequence[int],
        describe_obstacle: Callable[[], str | None],
        print_line: Callable[[str], None],
    ) -> None:
        """Waits for orders.

        Args:
            folder: The run folder.
            kept_steps: Steps that a window keeps unless its request says how many.
            apart: Ranks that do not see the folder, and write their traces on their own hosts.
            describe_obstacle: Tells why there can be no window now. None: there can.
            print_line: Says a line to the user.
        """
        self._folder, self._kept_steps, self._apart = folder, kept_steps, tuple(apart)
        self._check_obstacle, self._print_line = describe_obstacle, print_line
        self._order: WindowRequest | None = None
        self._stuck: tuple[int, int] | None = None  # a request that cannot be taken away
        self._state: WindowState | None = None

    def look(self) -> int:
        self._look_at_request()
        return 0 if self._order is None else self._order.steps or self._kept_steps

    def agreed(self, first_step: int, kept_steps: int) -> None:
        steps = range(first_step + 1, first_step + 1 + kept_steps)
        inside = window_folder(self._folder, steps[0]).relative_to(self._folder)
        if self._order is None:
            return
        self._answer(self._order, "agreed", steps=tuple(steps), folder=str(inside))
        listed = f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}"
        self._print_line(f"distprof: kernel window of {listed}, because distprof window has asked for it")

    def refuse(self, why: str) -> None:
        order, self._order = self._order, None  # at once: the end of the job may refuse it too
        if order is not None:
            self._answer(order, "refused", text=why)
            self._print_line(f"distprof: no kernel window: {why}")

    def ended(self, outcomes: Sequence[WindowOutcome]) -> None:
        order, self._order = self._order, None
        if order is None or self._state is None:
            return
        by_outcome: dict[WindowOutcome, list[int]] = {}
        for rank, outcome in enumerate(outcomes):
            by_outcome.setdefault(outcome, []).append(rank)
        missing = [
            f"{name_ranks(ranks)}: {WHY_MISSING[why]}" for why, ranks in by_outcome.items() if why in WHY_MISSING
        ]
        far = [rank for rank in self._apart if outcomes[rank] == WindowOutcome.WRITTEN]
        if far:
            missing.append(f"{name_ranks(far)}: on its own host, in the folder of the same name: copy it here")
        state = self._state
        self._answer(order, "ended", steps=state.steps, folder=state.folder, missing=tuple(missing))
        if any(outcome == WindowOutcome.WRITTEN for outcome in outcomes):
            self._print_line(f"distprof: kernel window: {self._folder / state.folder}")
        for text in missing:
            self._print_line(f"distprof: no trace of {text}")

    def close(self) -> None:
        """The job ends: an order that is left is refused."""
        self._look_at_request()
        self.refuse("the job has ended")

    def _look_at_request(self) -> None:
        """Takes the request in the folder, if there is one; one that cannot be deleted is reported once."""
        path = self._folder / REQUEST
        try:
            found = os.lstat(path)
        except OSError:
            return
        if self._order is not None or (found.st_dev, found.st_ino) == self._stuck:
            return
        try:
            request = read_request(self._folder)
        except DataError as error:
            self._print_line(f"distprof: no kernel window: {error}")
            request = None
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError:
            self._stuck = found.st_dev, found.st_ino
        if request is None:
            return
        self._order = request
        self._answer(request, "taken")
        if (obstacle := self._describe_obstacle()) is not None:
            self.refuse(obstacle)

    def _describe_obstacle(self) -> str | None:
        if (obstacle := self._check_obstacle()) is not None:
            return obstacle
        try:
            free_bytes = shutil.disk_usage(self._folder).free
        except OSError as error:
            return f"the run folder cannot be read: {error.strerror}"
        if free_bytes < MIN_FREE_BYTES:
            return f"{free_bytes >> 20} MiB are free in the run folder, and {MIN_FREE_BYTES >> 20} MiB are the least"
        return None

    def _answer(self, order: WindowRequest, state: str, **facts: object) -> None:
        self._state = WindowState(id=order.id, state=state, **facts)  # type: ignore[arg-type]
        try:
            write_state(self._folder, self._state)
        except OSError as error:
            self._print_line(f"distprof: the state of the kernel window was not written: {describe_error(error)}")


def open_coordinator(context: OpenRankContext, level_is_to_come: Callable[[], bool]) -> WindowCoordinator:
    """What takes orders on rank 0; it refuses them while the window of the level is still to come."""

    def describe_obstacle() -> str | None:
        if level_is_to_come():
            return f"profile.level={context.profile.level} has a window of its own still to come"
        if not kineto_available():
            return "this PyTorch is built without a profiler (Kineto)"
        if tool_listens():
            return "another tool, such as Nsight Systems, listens already, and only one can trace a device"
        return None

    return WindowCoordinator(
        context.folder, kept_steps=context.profile.kernel_steps, apart=list(context.streams.apart),
        describe_obstacle=describe_obstacle, print_line=context.print_line,
    )  # fmt: skip
