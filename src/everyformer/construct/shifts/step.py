"""One step of the construction: a stage of the modified class, and its ramps."""

from fractions import Fraction
from typing import NamedTuple

from everyformer.model.stacks import Stage
from everyformer.papers import YUN2020, Citation, Paper


class ProofStep(NamedTuple):
    """A stage with hardmax and functions of Phi, and how wide Lemma 9 makes its ramps.

    Attributes:
        stage: The layers.
        ramp: Width of the ramp that replaces a jump, in the units of the state.
    """

    stage: Stage
    ramp: Fraction = Fraction(0)


def cite(result: str, paper: Paper = YUN2020) -> str:
    """A result of a paper, as stages name their source."""
    return str(Citation(paper, result))


OWN = "everyformer, docs/constructions/dense.md"
"""Source of the stages that close gaps of the paper."""
