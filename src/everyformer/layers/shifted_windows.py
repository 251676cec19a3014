"""Attention inside windows of an image, every second layer with shifted windows.

Windows of M x M tokens begin at -s, s = 0 or M // 2. Where a window reaches over the edge,
the places outside are padding that nobody sees. Liu et al. 2021 roll the image round and
mask pairs of tokens that were not neighbours; what is left of their sums is the same.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.offsets import check_positive


class ShiftedWindows(nn.Module):
    """A layer of attention in each window of a grid of tokens, row by row.

    Args:
        layer: Attention on windows of M x M tokens.
        grid: Rows and columns of the image, in tokens.
        window: M.
        shift: s, below M.

    Raises:
        InputError: If the shift is not one of a window.

    Example:
        >>> from everyformer.layers import Swin
        >>> layer = RelativeAttention(8, 2, encoding=Swin(2, 4))
        >>> ShiftedWindows(layer, (6, 10), 4, shift=2)(torch.ones(3, 60, 8)).shape
        torch.Size([3, 60, 8])
    """

    def __init__(
        self, layer: RelativeAttention, grid: tuple[int, int], window: int, shift: int = 0
    ) -> None:
        super().__init__()
        check_positive(rows=grid[0], columns=grid[1], window=window)
        if not 0 <= shift < window:
            msg = (
                f"shift={shift} does not shift windows of {window} x {window}. Use 0 to "
                f"{window - 1}; {window // 2} in every second layer is usual."
            )
            raise InputError(msg)
        self.layer = layer
        self.grid, self.window, self.shift = grid, window, shift

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """Attend inside every window.

        Args:
            x: Tokens of the grid, row by row.
            key_padding_mask: True for tokens that nobody sees.

        Raises:
            InputError: If the tokens do not fill the grid.
        """
        rows, columns = self.grid
        if x.shape[-2] != rows * columns:
            msg = (
                f"x has {x.shape[-2]} tokens, and a grid of {rows} x {columns} has "
                f"{rows * columns}. Give all tokens of the image, row by row."
            )
            raise InputError(msg)
        batch = x.shape[:-2]
        hidden = x.new_zeros(*batch, rows * columns, 1, dtype=torch.bool)
        if key_padding_mask is not None:
            hidden = key_padding_mask[..., None]
        windows = cut(x, self.grid, self.window, self.shift)
        padding = ~cut(~hidden, self.grid, self.window, self.shift)[..., 0]
        mixed = self.layer(windows, key_padding_mask=padding)
        assert isinstance(mixed, Tensor), "weights were not asked for"  # noqa: S101
        return joined(mixed, self.grid, self.window, self.shift)

    def extra_repr(self) -> str:
        """Grid and windows."""
        return f"grid={self.grid}, window={self.window}, shift={self.shift}"


def cut(
    x: Float[Tensor, "*batch n d"] | Bool[Tensor, "*batch n d"],
    grid: tuple[int, int],
    window: int,
    shift: int,
) -> Tensor:
    """Windows (*batch, k, M M, d) of a grid, zeros (False) outside of it.

    Example:
        >>> x = torch.arange(1, 5)[:, None].float()
        >>> cut(x, (2, 2), 2, 1)[..., 0].int().tolist()  # every token in another window
        [[0, 0, 0, 1], [0, 0, 2, 0], [0, 3, 0, 0], [4, 0, 0, 0]]
    """
    rows, columns = grid
    down, across = _windows(grid, window, shift)
    image = x.unflatten(-2, (rows, columns))
    ends = (window * across - shift - columns, window * down - shift - rows)
    image = nn.functional.pad(image, (0, 0, shift, ends[0], shift, ends[1]))
    tiles = image.unflatten(-3, (down, window)).unflatten(-2, (across, window))
    tiles = tiles.movedim(-3, -4)  # [*batch, down, across, M, M, d]
    return tiles.flatten(-3, -2).flatten(-4, -3)


def joined(
    windows: Float[Tensor, "*batch k t d"], grid: tuple[int, int], window: int, shift: int
) -> Float[Tensor, "*batch n d"]:
    """The tokens of a grid from its windows; what lies outside is dropped."""
    rows, columns = grid
    down, across = _windows(grid, window, shift)
    tiles = windows.unflatten(-3, (down, across)).unflatten(-2, (window, window))
    image = tiles.movedim(-4, -3).flatten(-5, -4).flatten(-3, -2)
    kept = image[..., shift : shift + rows, shift : shift + columns, :]
    return kept.flatten(-3, -2)


def _windows(grid: tuple[int, int], window: int, shift: int) -> tuple[int, int]:
    """How many windows cover the rows and the columns."""
    down, across = (-(-(size + shift) // window) for size in grid)
    return down, across
