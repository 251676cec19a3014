"""Windows of M x M tokens, row by row: which entry of a table belongs to a pair."""

import torch
from jaxtyping import Int
from torch import Tensor

from everyformer.errors import InputError


def window_entries(window: int, n: int, device: torch.device) -> Int[Tensor, "{n} {n}"]:
    """(dx + M - 1) (2M - 1) + dy + M - 1 for query minus key (dx, dy).

    Raises:
        InputError: If n is not M * M.
    """
    if n != window * window:
        msg = (
            f"The sequence has {n} tokens, but a window of {window} x {window} has "
            f"{window * window}. Cut the image into windows and put them in the batch."
        )
        raise InputError(msg)
    token = torch.arange(n, device=device)
    row, column = token // window, token % window
    dx = row[:, None] - row + (window - 1)
    dy = column[:, None] - column + (window - 1)
    return dx * (2 * window - 1) + dy
