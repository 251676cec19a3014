"""A network that is constant on cells off its ramps, read off its weights."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol, runtime_checkable

import numpy as np

from everyformer.certify.on_cells.values import Mode, Values
from everyformer.certify.undecided import Undecided
from everyformer.targets.box import Grid

Interval = tuple[Fraction | None, Fraction | None]


@dataclass(frozen=True)
class Plateaus:
    """Where the first layers are constant.

    Attributes:
        values: The state on each cell's plateau, Fractions of shape (n, d, K).
        ramps: Length of the cells off the plateaus, Fractions of shape (n, d).
        ramps_run: The same for a float64 run, whose plateaus are a little shorter; None
            where float64 is not known to reach the same states.
        shortest: The least share of a cell that is plateau, over all cells and, as a
            product, over all coordinates of all tokens.
        stages: How many stages were examined.
    """

    values: np.ndarray
    ramps: np.ndarray
    ramps_run: np.ndarray | None
    shortest: Fraction
    stages: int


@dataclass(frozen=True)
class Outside:
    """A network that is exactly 0 beyond a strip around the box.

    Attributes:
        strip: By how much the strip widens the interval of each coordinate of each token,
            on both sides together, Fractions of shape (n, d).
        sizes: |g| of each entry for every input, at most, Fractions of shape (n, d).
    """

    strip: np.ndarray
    sizes: np.ndarray


@runtime_checkable
class CellReading(Protocol):
    """What a proof on cells asks of a network."""

    @property
    def grid(self) -> Grid:
        """n, K and the box."""
        ...

    @property
    def plateaus(self) -> Plateaus:
        """Where the network is constant."""
        ...

    @property
    def positional(self) -> bool:
        """Whether positions are told apart; otherwise copies of a token stay equal."""
        ...

    @property
    def exact(self) -> bool:
        """Whether weights are rationals."""
        ...

    @property
    def ranges(self) -> tuple[Interval, ...]:
        """An interval for each coordinate of the output, for every input."""
        ...

    @property
    def run_slack(self) -> tuple[Fraction, ...]:
        """How far a float64 run may leave each of them."""
        ...

    @property
    def run_obstacle(self) -> Undecided | None:
        """Why no float64 run is followed, or None."""
        ...

    @property
    def last(self) -> str:
        """Name of the last stage."""
        ...

    @property
    def noise(self) -> tuple[str, str]:
        """What the radius in real arithmetic is, and where it is explained."""
        ...

    def outside(self) -> Outside:
        """Where the network is exactly 0, in real arithmetic.

        Raises:
            Undecided: If it is not proved to be 0 outside some strip around the box.
        """
        ...

    def values(self, columns: np.ndarray, mode: Mode) -> Values:
        """The network's values on cells, and how far from them it may be.

        Raises:
            Undecided: If a step cannot be proved, naming the stage.
        """
        ...
