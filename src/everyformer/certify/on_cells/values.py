"""What the prover finds of a network on cells."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from everyformer.certify.undecided import Undecided, require_finite

Mode = Literal["real", "float64"]
"""Of what the distance is bounded: the network in real arithmetic, or its float64 run."""


@dataclass(frozen=True)
class Values:
    """The network's values on the plateaus of cells.

    Attributes:
        centre: Shape (count, n, d), float64; or rationals.
        radius: Bounds on the distance of the network's value, shape (count, n, d).

    Raises:
        Undecided: If one of them is infinite, nan, or a radius is negative.
    """

    centre: np.ndarray
    radius: np.ndarray

    def __post_init__(self) -> None:
        """Nothing leaves a reading but numbers."""
        require_finite("network", "its values on the cells", self.centre, self.radius)
        if not (self.radius >= 0).all():
            raise Undecided("network", "a distance from its values is negative")
