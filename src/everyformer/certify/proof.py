"""What is proved of a network and a function, and with what means."""

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from everyformer.certify.bound import Bound
from everyformer.certify.hypotheses import BOTH, Claim, Hypothesis
from everyformer.certify.undecided import OWN_STAGES, Obstacle, Undecided
from everyformer.certify.weights import Weights
from everyformer.numerics.limits import check_integer
from everyformer.progress import Progress, no_progress


@dataclass(frozen=True)
class Proof:
    """What is proved of a network and a function.

    Attributes:
        real: A bound on d_p(f, g), g the network in real arithmetic; None if none.
        float64: A bound on d_p(f, g), g the network as float64 runs it; None if none.
        lower: A lower bound on d_p(f, g), to the p-th power, g in real arithmetic.
        obstacles: What stopped a bound, each with the claim and the stage.
        hypotheses: What the bounds rest on, the lower one too.
        summary: Counts and extremes, for the certificate.
    """

    real: Bound | None = None
    float64: Bound | None = None
    lower: Fraction = Fraction(0)
    obstacles: tuple[Obstacle, ...] = ()
    hypotheses: tuple[Hypothesis, ...] = ()
    summary: dict[str, Any] = field(default_factory=dict)

    def obstacles_to(self, claim: Claim) -> tuple[Obstacle, ...]:
        """What stopped the bound of one claim."""
        return tuple(one for one in self.obstacles if claim in one.claims)


@dataclass(frozen=True)
class Computing:
    """Where and how shards run; none of it changes a result.

    Attributes:
        scheduler: Address of a Dask scheduler, or None for this machine.
        workers: Processes on this machine; None for one on each core. With more than
            one, a script needs `if __name__ == "__main__":`, as for multiprocessing.
        work: A folder that keeps finished shards.
        progress: Called as progress(what, done, total).
    """

    scheduler: str | None = None
    workers: int | None = 1
    work: Path | None = None
    progress: Progress = no_progress

    def __post_init__(self) -> None:
        """Refuse what is not a number of processes.

        Raises:
            InputError: With what was given.
        """
        if self.workers is not None:
            check_integer("workers", self.workers, 1)


@dataclass(frozen=True)
class Work:
    """How a proof is made; what it proves does not depend on it.

    Attributes:
        computing: Where shards run.
        balls: Enclose f in Arb balls on every cell, instead of float64 intervals first.
        purpose: Part of the name of kept shards: a verifier reads none that a builder left.
    """

    computing: Computing = Computing()
    balls: bool = False
    purpose: str = "construct"


def obstacle_of(
    error: Undecided | OverflowError,
    weights: Weights,
    claims: tuple[Claim, ...] = BOTH,
) -> Obstacle:
    """What stops a proof; a stage that the file names is not our word for one."""
    if isinstance(error, OverflowError):
        why = f"numbers are too large to be followed ({error})"
        return Obstacle(claims, "weights", why, own=True)
    named = any(stage.name == error.stage for stage in weights.stages)
    own = error.stage in OWN_STAGES and not named
    return Obstacle(claims, error.stage, error.why, own)
