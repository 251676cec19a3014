"""The letters of the papers for the sizes of a grid."""

from dataclasses import dataclass

from everyformer.targets.box import Grid


@dataclass(frozen=True)
class Sizes:
    """n, d, K and V of a grid.

    Attributes:
        grid: n, d, K and the box.
    """

    grid: Grid

    @property
    def n(self) -> int:
        """Number of tokens."""
        return self.grid.seq_len

    @property
    def d(self) -> int:
        """Width of a token."""
        return self.grid.d_model

    @property
    def K(self) -> int:
        """Cells per axis, 1/delta."""
        return self.grid.cells

    @property
    def V(self) -> int:
        """K^d, the number of columns; also the coefficient of the selective shifts."""
        return self.grid.columns
