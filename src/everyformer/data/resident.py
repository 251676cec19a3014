"""Arrays that every batch reads: copied to a device once, and kept there."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


class Resident:
    """Arrays of whole numbers as tensors, for each device that asks.

    Args:
        arrays: By name; two bytes become int32, as torch cannot index with less.
    """

    def __init__(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._arrays = dict(arrays)
        self._held: dict[torch.device, dict[str, Tensor]] = {}

    def on(self, device: torch.device) -> dict[str, Tensor]:
        """The tensors on a device; only the first call copies."""
        if device not in self._held:
            self._held[device] = {
                name: torch.from_numpy(_wide(array)).to(device)
                for name, array in self._arrays.items()
            }
        return self._held[device]


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32 if array.itemsize <= 4 else np.int64)


def starts_of(lengths: np.ndarray) -> np.ndarray:
    """Where texts of these lengths begin when they lie one after the other."""
    return np.cumsum(lengths, dtype=np.int64) - lengths
