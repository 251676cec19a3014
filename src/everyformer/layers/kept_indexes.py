"""Vectors of buckets that are made once for each length, and kept.

An operator that has seen a vector need not look at its numbers again, nor rearrange them:
on a GPU that would mean to wait for them.
"""

from collections.abc import Callable, Hashable

import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.ops.captured import is_captured, outlasting

MOST_KEPT = 64
"""Vectors; then all are forgotten, and made anew."""

_KEPT: dict[Hashable, Tensor] = {}


def kept_index(
    key: Hashable, device: torch.device, make: Callable[[], Int[Tensor, " r"]]
) -> Int[Tensor, " r"]:
    """What `make` gives on this device, the same tensor for the same key.

    Nothing is kept while somebody compiles, traces or captures: the tensor belongs to them.
    What a CUDA graph reads of the others is never forgotten.
    """
    if torch.compiler.is_compiling():
        return make().to(device)
    found = _KEPT.get((key, device))
    if found is None:
        with torch.inference_mode(False), torch.no_grad():
            found = make().to(device)
        if is_captured(found):
            return found  # the graph's own: it is made again in each replay
        if type(found) is Tensor:
            if len(_KEPT) >= MOST_KEPT:
                _KEPT.clear()
            _KEPT[(key, device)] = found
    return outlasting(found, found)
