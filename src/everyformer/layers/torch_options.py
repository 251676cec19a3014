"""Where and in which numbers torch makes parameters."""

from typing import TypedDict

import torch


class TorchOptions(TypedDict):
    """The keywords `device` and `dtype` that modules of torch take."""

    device: torch.device | str | None
    dtype: torch.dtype | None
