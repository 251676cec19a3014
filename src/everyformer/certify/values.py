"""What the prover finds of a network on cells."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Mode = Literal["real", "float64"]
"""Of what the distance is bounded: the network in real arithmetic, or its float64 run."""


@dataclass(frozen=True)
class Values:
    """The network's values on the plateaus of cells.

    Attributes:
        centre: Shape (count, n, d), float64; or rationals.
        radius: Bounds on the distance of the network's value, shape (count, n, d).
    """

    centre: np.ndarray
    radius: np.ndarray
