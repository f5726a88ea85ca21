"""Where in a cycle does a rank take longer: before which of its collectives? There the replay takes the time out."""

from __future__ import annotations

import numpy as np

from distprof.analyze.cycles.sync_cycles import SyncCycles
from distprof.facts.arrays import BoolArray, FloatArray
from distprof.facts.run import Part, Phase, Stretch

Z_BEYOND_DOUBT = 3.0
"""Standard errors by which a gap must be longer for its excess to lie there beyond doubt."""
_ORDER: dict[Part, int] = {
    Phase.DATA: 0, Phase.FORWARD: 1, Phase.BACKWARD: 2, Phase.GRAD_NORM: 3, Phase.OPTIMIZER: 4,
    **dict.fromkeys(Stretch, 5),
}  # fmt: skip
_COUNT = 6


def can_hold(cycles: SyncCycles, part: Part) -> BoolArray:
    """The gaps in which a part can lie, ``[num_collectives]``: those between its neighbours in the order of a step.

    A gap reaches from the part in which the collective before it is issued to the part in which its own is.
    """
    count = cycles.work_ns.shape[2]
    if part not in _ORDER or len(cycles.issued) != count or count == 1:
        return np.ones(count, dtype=bool)
    return np.array([_reaches(cycles.issued[index - 1], cycles.issued[index], part, index) for index in range(count)])


def _reaches(before: Part, own: Part, part: Part, index: int) -> bool:
    if before not in _ORDER or own not in _ORDER:
        return True
    first, last, at = _ORDER[before], _ORDER[own], _ORDER[part]
    if last < first or (index == 0 and last == first):
        last += _COUNT  # it begins in the step before, or in the micro-step before
    return first <= at <= last or first <= at + _COUNT <= last


def _follows_backward(cycles: SyncCycles) -> BoolArray:
    """The gaps after a wait in a backward, up to the next collective of one, ``[num_collectives]``.

    The wait may have been the end of that backward, and anything may follow: the passes of another model, as of a GAN,
    or of the next micro-step.
    """
    count = cycles.work_ns.shape[2]
    if len(cycles.issued) != count:
        return np.zeros(count, dtype=bool)
    in_backward = np.array([part is Phase.BACKWARD for part in cycles.issued])
    after_wait = np.concatenate([[False], (in_backward & cycles.is_waited_on)[:-1]])
    follows: BoolArray = after_wait & in_backward
    return follows


def locate_delay(
    cycles: SyncCycles, allowed: BoolArray, late_ns: FloatArray, error_ns: FloatArray, total_ns: float
) -> FloatArray:
    """Spreads an excess over gaps, ns, ``[num_collectives]``.

    Nobody notices what a rank makes up for before it arrives: where its gaps are longer by less than the excess beyond
    doubt, only so much is spread, and in gaps after the end of a backward what is beyond doubt there.

    Args:
        cycles: As recorded.
        allowed: The gaps in which it can lie.
        late_ns: Usual excess of the rank's gaps that is not yet explained, ``[num_collectives]``.
        error_ns: Their standard errors.
        total_ns: What is spread.
    """
    doubt_ns = Z_BEYOND_DOUBT * error_ns
    noticed_ns = np.where(allowed, np.maximum(late_ns, 0), 0.0)
    if (noticed_ns + np.where(allowed, doubt_ns, 0.0)).sum() < total_ns:
        noticed_ns = noticed_ns + np.where(_follows_backward(cycles) & ~allowed & (late_ns > doubt_ns), late_ns, 0.0)
        capped: FloatArray = noticed_ns * min(1.0, total_ns / max(noticed_ns.sum(), 1.0))
        return capped
    sure = np.where(allowed & (late_ns > doubt_ns), late_ns, 0.0)
    share = sure if sure.sum() >= 0.5 * total_ns else noticed_ns
    if share.sum() <= 0:
        usual_ns = np.where(allowed, np.median(cycles.work_ns, axis=(0, 1)), -1.0)
        share = (np.arange(len(usual_ns)) == int(usual_ns.argmax())).astype(float)
    spread: FloatArray = share * (total_ns / share.sum())
    return spread
