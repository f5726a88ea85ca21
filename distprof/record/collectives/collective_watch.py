"""What the wrappers around torch's functions share: codes of process groups, and the collectives in flight."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from threading import get_ident
from types import CodeType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from msgspec import Struct
from torch.distributed import distributed_c10d

from distprof.compiling import hide, is_compiling, skip_compile
from distprof.error_boundary import ErrorBoundary
from distprof.facts.run import PHASE_CODE, CollectiveKind, Phase
from distprof.patching import leave_out_of_warnings
from distprof.record.collectives.flight_recorder import OWN_GROUP
from distprof.record.step.recorder import Recorder
from distprof.record.step.timeline import OTHER

_SHOWN_RANKS = 4
FEW_BYTES = 64
"""A collective of no more moves a loss or a count, and no gradients."""
_ALL_REDUCE, _BACKWARD = PHASE_CODE[Phase.ALL_REDUCE], PHASE_CODE[Phase.BACKWARD]
_REDUCTIONS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER)
_RECENT = 8
"""Segments in which the last phase is looked for."""
_HOST_BACKENDS = frozenset({"gloo", "mpi"})
"""Backends whose collectives end on the host, also on tensors of a device, whose data they move over the host."""
_CPU = torch.device("cpu")
_DEEPEST = 16
"""How many callers are looked at for a hook."""
_MOST_THREADS = 1_000
"""Of the script's that are kept."""

Watch = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class _Call:
    """One call of a function: whether it has returned or raised."""

    __slots__ = ("_function", "error", "result", "returned")

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function, self.returned = function, False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            self.result = self._function(*args, **options)
        except BaseException as error:
            self.error = error
            raise
        self.returned = True
        return self.result


class Bucket(Struct, kw_only=True):
    """A bucket of gradients whose hook, a user's, runs now."""

    size_bytes: int
    code: int
    """Of its process group."""
    asynchronous: bool
    on_device: bool
    ticket: int | None = None
    """None: the hook has issued nothing yet; until then its time is the rank's own."""


class KnownGroup(NamedTuple):
    """A process group that has been looked up."""

    held: weakref.ref[Any]
    """The group: another one may come to lie where it was."""
    code: int
    is_own: bool
    """It is distprof's."""


class Batch:
    """Collectives that torch collects now, and issues together when their block ends."""

    __slots__ = ("_every", "_group", "exchanges", "sizes_bytes")

    def __init__(self, group: Any, *, every: bool) -> None:
        """Args:
        group: The process group of the block. None: the default one.
        every: Whether its backend collects all collectives, and not only those of which torch makes one.
        """
        self._group, self._every = group, every
        self.exchanges: list[int] = []
        """Tickets of the exchanges with single ranks that are among them."""
        self.sizes_bytes: dict[tuple[CollectiveKind, int, bool], int] = {}
        """Bytes by kind, code of the process group, and whether it runs on a device; in the order of the first call."""

    def collects(self, group: Any, *, alone: bool) -> bool:
        """Whether a collective of a group that is called now is issued with the others.

        Args:
            group: As given. None: the default one.
            alone: Whether torch collects it even without the backend.
        """
        own, called = (dist.group.WORLD if each is None else each for each in (self._group, group))
        return called is own and (alone or self._every)

    def add(self, kind: CollectiveKind, code: int, on_device: bool, size_bytes: int) -> None:
        """One more of a kind."""
        key = (kind, code, on_device)
        self.sizes_bytes[key] = self.sizes_bytes.get(key, 0) + size_bytes


class _PartOfSteps(ErrorBoundary):
    """A part of recording whose line says from which step on it is lost."""

    def __init__(self, loss: str, recorder: Recorder, note: Callable[[str], None]) -> None:
        super().__init__(loss, note)
        self.recorder, self.note = recorder, note

    def clean_up(self) -> None:
        self.loss = f"{self.loss} from step {self.recorder.step} on"


class CollectiveWatch(_PartOfSteps):
    """One per recorder: what fails in it ends the recording of all collectives.

    Used by one thread at a time: the training thread, or autograd's while that one waits.
    """

    def __init__(self, recorder: Recorder, note: Callable[[str], None] = lambda text: None) -> None:
        """Attaches it to a recorder.

        Args:
            recorder: Records collectives.
            note: Receives what has failed.
        """
        super().__init__("collectives are not recorded", recorder, note)
        self._thread = get_ident()
        self.threads_aside: set[int] = set()
        """Identifiers of other threads of the script that have issued collectives; autograd's are none."""
        self.undo: list[Callable[[], None]] = []
        """Puts back what was replaced in models."""
        self.inside = 0
        """Above 0: what is issued now is part of a collective that is already recorded."""
        self.synchronising = False
        """Whether gradients are being synchronised; blocking collectives then count as phase `all_reduce`."""
        self.sharding = -1
        """The phase of blocking collectives while FSDP2 gathers parameters, where torch has no communication object for
        that; otherwise -1."""
        self.bucket: Bucket | None = None
        """The bucket whose hook runs, if it is a user's; whatever the hook issues or waits for is part of it."""
        self.batch: Batch | None = None
        """What is collected now, to be issued together. None: nothing is."""
        self.hidden_hooks: set[CodeType] = set()
        """Hooks that were registered before distprof could wrap them."""
        self.newest = -1
        """Ticket of the newest collective that synchronises gradients, or gathers parameters."""
        self.newest_scatter = -1
        """Ticket of the newest reduce-scatter among them."""
        self.works: weakref.WeakKeyDictionary[Any, tuple[int, int, bool]] = weakref.WeakKeyDictionary()
        """By handle of an asynchronous collective: its ticket, the phase of the wait for it (-1: the running one),
        and whether it runs on a device."""
        self.exchanges: dict[weakref.ref[Any], tuple[int, ...]] = {}
        """By handle of one or more exchanges with single ranks: the tickets of their operations. The first has the
        whole wait. -1: not recorded. Handles that are gone take themselves out, as from a ``WeakKeyDictionary``, which
        enters a function of Python's for whatever is done with it."""
        self.wait: tuple[Callable[..., Any], Callable[..., Any]] | None = None
        """What is around ``Work.wait`` for collectives, and what the class held before. None: it is not watched."""
        self._codes: dict[str, int] = {}
        self.groups: dict[int, KnownGroup] = {}
        """By identity of a process group, which may be another one's by now; see `look_up_group`. Asking torch for
        their names takes longer than all else."""
        self._sizes: dict[int, int] = {}
        self._backends: dict[tuple[int, str], str | None] = {}

    def stay_on_this_thread(self) -> None:
        """Regards the calling thread as the training thread."""
        self._thread = get_ident()

    def is_ours(self) -> bool:
        """Whether a call is looked at: of the training thread or of autograd's, and no part of one that is recorded.
        Another thread of the script is kept."""
        recorder = self.recorder
        if self.inside or not (recorder.recording or recorder.between.open):
            return False
        # Autograd runs backward on threads of its own, on which this is the number of the running backward.
        if (thread := get_ident()) == self._thread or torch._C._current_graph_task_id() != -1:
            return True
        if len(self.threads_aside) < _MOST_THREADS:
            self.threads_aside.add(thread)
        return False

    def surround(
        self,
        original: Callable[..., Any],
        watch: Watch,
        is_ours: Callable[[], bool] | None = None,
        *,
        name: str = "",
    ) -> Callable[..., Any]:
        """A function of torch with its calls watched: what fails in watching them never reaches the caller.

        In a graph of `torch.compile` it is the original.

        Args:
            original: The function.
            watch: Gets the function and the arguments of a call, makes the call, and returns what it has returned.
            is_ours: Whether a call made now is watched. None: `CollectiveWatch.is_ours`.
            name: Of the collective that it issues; the report says so if a graph hides it. "": none.
        """
        is_ours = is_ours or self.is_ours

        @functools.wraps(original)
        def watched(*args: Any, **options: Any) -> Any:
            if is_compiling():
                if name:
                    hide(name)
                return original(*args, **options)
            if self.inside or not self.on or self.recorder.skipping:
                return original(*args, **options)
            call: _Call | None = None
            try:
                if is_ours():
                    call = _Call(original)
                    return watch(call, args, options)
            except Exception as error:  # flat: some of it is the caller's, and goes on to the caller
                if call is not None and error is call.error:
                    raise
                self.fail(error)
                if call is not None and call.error is not None:
                    raise call.error from error
            return call.result if call is not None and call.returned else original(*args, **options)

        leave_out_of_warnings(watched, _Call.__call__, watch.func if isinstance(watch, functools.partial) else watch)
        skip_compile(watched, wholly=True)
        return watched

    def tell_aside(self, choose: Callable[[bool], None]) -> Callable[[], None]:
        """Has something told, now and at each change, whether what is around torch steps aside.

        Returns:
            A function after which it is no longer told.
        """

        def tell(aside: bool) -> None:
            self.run(choose, aside)

        choose(self.recorder.aside)
        self.recorder.on_aside.append(tell)
        return functools.partial(self.recorder.on_aside.remove, tell)

    def clean_up(self) -> None:
        """Whatever was under way is no longer recorded."""
        super().clean_up()
        self.inside, self.synchronising, self.bucket, self.batch = 0, False, None, None

    def make_part(self, loss: str) -> ErrorBoundary:
        """For what may fail by itself while collectives are recorded; ``loss`` as for `ErrorBoundary`."""
        return _PartOfSteps(loss, self.recorder, self.note)

    def leave_out(self, what: str) -> ErrorBoundary:
        """For a part of its own; if this torch has it otherwise than is known, that is noted, and the rest goes on.

        Args:
            what: That is not recorded then, with its verb: ``communication hooks are``.
        """
        return ErrorBoundary(f"{what} not recorded", self.note)

    def issue(
        self,
        kind: CollectiveKind,
        size_bytes: int,
        code: int,
        *,
        asynchronous: bool,
        on_device: bool,
        apart: bool = True,
    ) -> int:
        """Records that a collective is issued; in a bucket, the first one records the bucket. Returns its ticket."""
        if self.bucket is not None:
            return self.issue_bucket(self.bucket)
        return self.recorder.begin_collective(
            kind, size_bytes, code, asynchronous=asynchronous, on_device=on_device, apart=apart
        )

    def follow(self, work: dist.Work, ticket: int, phase: int, *, on_device: bool) -> None:
        """Keeps what is known about an asynchronous collective, and has a device record when it ends.

        Args:
            work: torch's handle of it.
            ticket: The collective.
            phase: Of the wait for it, by its code; -1: the one that runs then.
            on_device: Whether it runs on a device.
        """
        self.works[work] = (ticket, phase, on_device)
        timed = self.recorder.on_device
        if on_device and self.bucket is None and timed.times_collectives and not timed.captures():
            end = self.recorder.end_on_device
            try:
                self.recorder.on_device.follow(work, lambda _: end(ticket))
            except RuntimeError:  # a backend without futures: its end stays unknown
                return

    def issue_bucket(self, bucket: Bucket) -> int:
        """Records that a bucket is ready to be reduced, unless that is recorded already. Returns its ticket."""
        if bucket.ticket is None:
            bucket.ticket = self.recorder.begin_collective(
                CollectiveKind.ALL_REDUCE, bucket.size_bytes, bucket.code, asynchronous=bucket.asynchronous,
                on_device=bucket.on_device, awaited=not (bucket.asynchronous or bucket.on_device),
            )  # fmt: skip
        return bucket.ticket

    def in_hidden_hook(self) -> bool:
        """Whether a hidden hook issues the collective, in a phase whose end is the end of backward."""
        if not self.hidden_hooks or not self.in_phase:
            return False
        frame, left = sys._getframe(1), _DEEPEST
        while frame.f_back is not None and left:
            if frame.f_code in self.hidden_hooks:
                return True
            frame, left = frame.f_back, left - 1
        return False

    def choose_phase(self, kind: CollectiveKind, size_bytes: int) -> int:
        """The code of the phase that waiting for a collective counts as; -1: the one that runs then.

        A loop may synchronise gradients itself: it reduces more than a few numbers outside of all phases, and backward,
        or another such reduction, was the last phase before.
        """
        if self.synchronising or self.sharding >= 0:
            return _ALL_REDUCE if self.synchronising else self.sharding
        timeline = self.recorder.timeline
        if kind not in _REDUCTIONS or size_bytes <= FEW_BYTES or not self.recorder.recording or timeline.is_inside:
            return -1
        before = timeline.codes[max(0, timeline.count - _RECENT) : timeline.count]
        last = next((code for code in reversed(before) if code != OTHER), OTHER)
        return _ALL_REDUCE if last in (_ALL_REDUCE, _BACKWARD) else -1

    @property
    def in_phase(self) -> bool:
        """Whether a phase of a step is open, other than the remainder."""
        return self.recorder.recording and self.recorder.timeline.phase != OTHER

    def reduce_hidden(self, ticket: int, work: dist.Work, on_device: bool) -> None:
        """Regards what follows as the wait for a hidden hook's collective, until the hook issues another one.

        Its end may stay unseen: the hook's own callbacks need not wait for the one added here.
        """
        self.recorder.mark(_ALL_REDUCE, ticket)
        if not on_device:
            end = self.recorder.end_collective
            work.get_future().add_done_callback(lambda _: end(ticket))

    def look_up_code(self, group: Any) -> int:
        """The code of a process group, given as torch's object or name; assigned when first seen.

        Raises:
            AttributeError: Not a process group, or one without this rank.
        """
        if group is None:
            return 0
        key = group if isinstance(group, str) else group.group_name
        code = self._codes.get(key)
        return self._add(key, group) if code is None else code

    def look_up_group(self, group: Any) -> KnownGroup:
        """What is known of a process group, given as torch's object; looked up when first seen.

        Raises:
            AttributeError: As of `look_up_code`.
        """
        known = self.groups.get(id(group))
        if known is None or known.held() is not group:
            is_own = getattr(group, "group_desc", "") == OWN_GROUP
            known = KnownGroup(weakref.ref(group), -1 if is_own else self.look_up_code(group), is_own)
            self.groups[id(group)] = known
        return known

    def look_up_size(self, code: int) -> int:
        """Number of ranks of a group, by its code."""
        size = self._sizes.get(code)
        if size is None:
            ranks = self.recorder.groups[code][1]
            size = self._sizes[code] = dist.get_world_size() if ranks is None else len(ranks)
        return size

    def ends_on_device(self, group: Any, device: torch.device) -> bool:
        """Whether a group's collectives on tensors of a device run and end there, unseen by the host.

        Args:
            group: The process group, as torch's object or name.
            device: Where the tensors are.
        """
        if device == _CPU or device.type == "cpu":  # to ask for the type makes a text, which takes ten times as long
            return False
        key = (self.look_up_code(group), device.type)
        if key not in self._backends:
            pairs = (pair.partition(":") for pair in dist.get_backend_config(_resolve(group)).split(","))
            self._backends[key] = {kind: backend for kind, _, backend in pairs}.get(device.type)
        return self._backends[key] not in _HOST_BACKENDS

    def _add(self, key: str, group: Any) -> int:
        group = _resolve(group)
        if group is dist.group.WORLD:
            code = 0
        else:
            ranks = tuple(dist.get_process_group_ranks(group))
            name = getattr(group, "group_desc", "")
            kind = name if name and name != "undefined" else "group"
            code = self.recorder.add_group(f"{kind} {key} ({_name_ranks(ranks)})", ranks)
        self._codes[key] = code
        return code


def _resolve(group: Any) -> Any:
    """The process group itself. None: the default one."""
    # Functional collectives name their group.
    return distributed_c10d._resolve_process_group(group) if isinstance(group, str) else group  # type: ignore[arg-type, attr-defined]


def _name_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN_RANKS]))
    return f"ranks {shown}" if len(ranks) <= _SHOWN_RANKS else f"{len(ranks)} ranks: {shown}, ..."
