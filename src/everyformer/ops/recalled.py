"""What is known of a tensor of indices, until it changes or goes."""

from collections.abc import Callable, Hashable
from typing import TypeVar

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from everyformer.ops.captured import is_captured

Found = TypeVar("Found")


class Recalled:
    """Results of a function, one for each tensor, which it does not keep alive.

    Nothing is recalled of tensors made in inference mode, which do not tell that they were
    changed, nor of what a CUDA graph captures, whose memory is its own.
    """

    def __init__(self) -> None:
        self._found: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def get(self, x: Tensor, key: Hashable, make: Callable[[], Found]) -> Found:
        """What `make` gave for this tensor and key when it was last called."""
        if x.is_inference() or is_captured(x):
            return make()
        now = (x._version, key)
        held = self._found.get(x)
        if held is None or held[0] != now:
            held = now, make()
            self._found[x] = held
        return held[1]
