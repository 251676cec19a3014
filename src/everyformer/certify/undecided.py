"""What stops a proof: the claim it stops, the stage of the network, and why.

Bounds are float64 numbers in many places, and comparisons with nan are all False. So that a
nan never makes a check pass or a bound smaller, there are two rules. What is required is
written as what must hold, `not (a <= b)` instead of `a > b`, and 0 is recognised by `== 0`,
not as what is left when `> 0` fails. And where numbers leave float64, or a module, they go
through `require_finite`.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from everyformer.certify.hypotheses import BOTH, Claim, claims_among
from everyformer.errors import printable

OWN_STAGES = frozenset(
    {"bound", "program", "registers", "stages", "target", "unary", "weights"}
)
"""Stages that the prover names; all others are names that the file gives."""

LONGEST = 60
"""Characters of a file's own words that are shown."""


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


@dataclass(frozen=True)
class Obstacle:
    """What stopped a bound.

    Attributes:
        claims: The claims that are not proved because of it.
        stage: Where it was met; "" if the prover did not begin.
        why: What was found there.
        own: Whether the stage is the prover's word, and not a name that the file gives.

    Example:
        >>> print(Obstacle(("float64",), "clamp", "the output is not clamped twice"))
        float64, "clamp": the output is not clamped twice
    """

    claims: tuple[Claim, ...]
    stage: str
    why: str
    own: bool = False

    def __str__(self) -> str:
        """In words; a name that the file gives stands in quotes."""
        run = "float64, " if self.claims == ("float64",) else ""
        where = self.stage if self.own else quoted(self.stage)
        return f"{run}{where}: {self.why}" if self.stage else f"{run}{self.why}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"claims": list(self.claims), "stage": self.stage, "why": self.why}

    @classmethod
    def from_json(cls, values: Any) -> "Obstacle":
        """The inverse of `to_json`, but for `own`; or the text that older files have."""
        if isinstance(values, str):
            return cls(BOTH, "", values)
        claims = claims_among(values["claims"])
        return cls(claims, str(values["stage"]), str(values["why"]))


def quoted(words: str) -> str:
    r"""A file's own words, in quotes: one line of printable text, cut where it is long.

    Example:
        >>> print(quoted('sort", g) <= 0'))
        "sort\", g) <= 0"
    """
    short = words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
    return json.dumps(printable(short), ensure_ascii=False)
