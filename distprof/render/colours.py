"""The colours of phases and of times, the same wherever they are shown: Okabe and Ito's, which colour-blind eyes tell
apart, and viridis, which is as light as the time is long."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from distprof.facts.run import Phase

PHASE_COLOURS: Mapping[str, str] = MappingProxyType(
    {
        Phase.DATA.value: "#e69f00", Phase.FORWARD.value: "#56b4e9", Phase.BACKWARD.value: "#0072b2",
        Phase.ALL_GATHER.value: "#cc79a7", Phase.ALL_REDUCE.value: "#d55e00", Phase.GRAD_NORM.value: "#f0e442",
        Phase.OPTIMIZER.value: "#009e73", Phase.OTHER.value: "#999999",
    }
)  # fmt: skip
RAMP = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
"""From the shortest time to the longest: as light as it is long, also for eyes that see fewer colours."""
