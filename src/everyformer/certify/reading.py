"""How a network is read for a proof: one form for each kind of construction."""

from collections.abc import Callable
from fractions import Fraction
from typing import Protocol, runtime_checkable

from everyformer.certify.known import Known
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.proof import Proof, Work
from everyformer.certify.weights import Weights
from everyformer.targets.box import Grid


@runtime_checkable
class Reading(Protocol):
    """A network in the form that one kind of proof is about."""

    @property
    def symmetric(self) -> bool:
        """Whether permuting its tokens permutes its results, by its form alone."""
        ...

    @property
    def by_cells(self) -> bool:
        """Whether its proof sums over cells, and can be about other sets than the box."""
        ...

    def examined(self, grid: Grid, *, traced: bool) -> Grid:
        """The cells on which f is looked at.

        Args:
            grid: That of the claim.
            traced: Whether f is known by its expression.
        """
        ...

    def prove(
        self, grid: Grid, cells: Cells, known: Known, p: Fraction | None, work: Work
    ) -> Proof:
        """Bound d_p(f, g) from the weights; what stops a bound is said in the proof.

        Args:
            grid: That of the claim.
            cells: The cells on which f is known.
            known: What is known of f.
            p: The exponent; None for the supremum.
            work: How the proof is made.

        Raises:
            CertificateError: If shards cannot be run.
        """
        ...


Read = Callable[[Weights], Reading | None]
"""A network in one form; None for one that is not of that form."""
