"""What stops a proof: the stage of the network, and why.

Bounds are float64 numbers in many places, and comparisons with nan are all False. So that a
nan never makes a check pass or a bound smaller, there are two rules. What is required is
written as what must hold, `not (a <= b)` instead of `a > b`, and 0 is recognised by `== 0`,
not as what is left when `> 0` fails. And where numbers leave float64, or a module, they go
through `require_finite`.
"""

import numpy as np


class Undecided(Exception):  # noqa: N818
    """A step of a proof cannot be taken. Caught by the prover, which answers UNKNOWN.

    Attributes:
        stage: Name of the stage.
        why: What was found there.
    """

    def __init__(self, stage: str, why: str) -> None:
        """Keep both parts; dask sends exceptions by their arguments."""
        super().__init__(stage, why)
        self.stage = stage
        self.why = why

    def __str__(self) -> str:
        """Both parts as text."""
        return f"{self.stage}: {self.why}"


def require_finite(stage: str, what: str, *arrays: np.ndarray | float) -> None:
    """Stop a proof where a number is infinite or nan.

    Args:
        stage: Where.
        what: Of what the numbers are, for the message.
        arrays: float64 numbers; Python ints and Fractions are finite.

    Raises:
        Undecided: If a number is not finite.
    """
    for array in map(np.asarray, arrays):
        if array.dtype != object and not np.isfinite(array).all():
            found = array[~np.isfinite(array)].reshape(-1)[0]
            raise Undecided(stage, f"nothing bounds {what}: {found} was found")
