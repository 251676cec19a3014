"""What is known of f: its expression, or what is declared of it."""

import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.hypotheses import VALUES, Hypothesis, modulus
from everyformer.errors import CertificateError
from everyformer.numerics.expression import Expression


@dataclass(frozen=True)
class Declared:
    """What is known of f by declaration.

    Attributes:
        values: f at the centre of every representative, as computed, (count, n, d).
        omega: Bound on |f(x) - f(c)| on a cell.
        lipschitz: The constant, if that is what was declared.
        radius: Half a cell: omega = omega(radius).
    """

    values: np.ndarray
    omega: Fraction
    lipschitz: Fraction | None
    radius: Fraction

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """What a proof that uses it rests on."""
        declared = modulus(self.omega, self.radius, lipschitz=self.lipschitz)
        return (declared, VALUES)

    def __post_init__(self) -> None:
        """See that f has values.

        Raises:
            CertificateError: If one is not finite.
        """
        if not np.isfinite(self.values).all():
            at = [int(k) for k in np.argwhere(~np.isfinite(self.values))[0]]
            msg = (
                f"f has the value {self.values[tuple(at)]} at the centre of cell {at[0]}: "
                "nothing is proved of functions that are not finite. Restrict the domain."
            )
            raise CertificateError(msg)

    @property
    def sha256(self) -> str:
        """A hash of all of it."""
        digest = hashlib.sha256(np.ascontiguousarray(self.values).tobytes())
        known = (self.values.shape, self.omega, self.lipschitz, self.radius)
        digest.update(repr(known).encode())
        return digest.hexdigest()


Known = Expression | Declared
"""A traced function, or a declared one."""
