"""A user's communication hook for DDP that does what DDP does without one, and pauses."""
# No postponed annotations: DDP inspects those of the hook and needs the types themselves.

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def make_hook(place: str, *, only_last: bool, pause: Callable[[str], None]) -> Callable[..., Any]:
    """Calls ``pause(place)`` before it reduces a bucket, or only before the last bucket."""
    scale = 1.0 / dist.get_world_size()

    def reduce_mean(
        state: object,
        bucket: dist.GradBucket,  # type: ignore[name-defined]
    ) -> torch.futures.Future[torch.Tensor]:
        if bucket.is_last() or not only_last:
            pause(place)
        work = dist.all_reduce(bucket.buffer().mul_(scale), async_op=True)
        assert work is not None
        reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
        return reduced

    return reduce_mean
