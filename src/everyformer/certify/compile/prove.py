"""sup |f - g| of a compiled network, from its weights, its claims and f's own program.

    follow     what every register holds, with its error          (V1 to V7)
    defined    f is defined on the box                             (V8)
    compare    the ideal program is f: equal normal forms          (V9)

A network that computes another function than f is not refuted: the proof stops.
"""

from fractions import Fraction

from everyformer.certify.bound import Bound
from everyformer.certify.compile.algebra.normal_forms import Algebra
from everyformer.certify.compile.claims import read_claims
from everyformer.certify.compile.defined import check_defined
from everyformer.certify.compile.follow import Followed, follow
from everyformer.certify.compile.values import Terms
from everyformer.certify.hypotheses import EXP, FLOAT64
from everyformer.certify.proof import Proof, obstacle_of
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import Weights
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import power_up
from everyformer.targets.box import Box

SOURCE = "docs/constructions/compile.md"


def prove_program(weights: Weights, box: Box, f: Expression, p: Fraction | None) -> Proof:
    """Bound d_p(f, g) of a compiled network.

    Args:
        weights: The network, with its claims.
        box: The domain of a token.
        f: The function.
        p: The exponent; None for the supremum.
    """
    try:
        check_defined(f, box)
        algebra = Algebra(box=box)
        found = read_program(weights, box, algebra)
        compare(found, f, algebra)
    except (Undecided, OverflowError, RecursionError) as error:
        known = error if isinstance(error, Undecided) else OverflowError(str(error))
        return Proof(obstacles=(obstacle_of(known, weights),))
    real, run = (error_of(found, run=run) for run in (False, True))
    volume = box.volume(weights.seq_len)
    return Proof(
        _bound(real, "every step, in real arithmetic", weights, volume, p),
        _bound(run, "every step, as float64 runs it", weights, volume, p),
        hypotheses=(FLOAT64, EXP),
        summary={"blocks": weights.blocks, "results": len(found.results)},
    )


def read_program(weights: Weights, box: Box, algebra: Terms) -> Followed:
    """Every register of a network that has claims.

    Raises:
        Undecided: If it is not what it claims to be.
    """
    held = weights.registers
    if weights.program is None or held is None:
        raise Undecided("program", "the network has no program beside its weights")
    claims = read_claims(weights.program, weights.seq_len, len(held.W_in))
    return follow(weights, claims, box, algebra)


def error_of(found: Followed, *, run: bool) -> Fraction:
    """The largest error of all results."""
    return max(one.e + (one.r if run else 0) for one in found.results)


def compare(found: Followed, f: Expression, algebra: Algebra) -> None:
    """See that the ideal results are f, by normal forms.

    Raises:
        Undecided: Naming the first result that is not seen to be f's.
    """
    expected = algebra.run_sorted(f, found.sorted_lines)
    for j, row in enumerate(expected):
        for i, term in enumerate(row):
            if found.results[i].terms[j] is not term:
                why = (
                    f"output {i + 1} of token {j + 1} is not f: the program computes "
                    "another function, or one that is not seen to be the same"
                )
                raise Undecided("program", why)


def _bound(
    error: Fraction, reason: str, weights: Weights, volume: Fraction, p: Fraction | None
) -> Bound:
    """sup |f - g|, or d_p <= (n d vol)^(1/p) sup."""
    if p is None:
        return Bound(error, reason, SOURCE)
    entries = weights.seq_len * weights.d_model
    return Bound(error * power_up(entries * volume, 1 / p), f"{reason}, everywhere", SOURCE)
