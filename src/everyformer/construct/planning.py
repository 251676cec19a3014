"""Plans of all methods, by name."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal, get_args

from everyformer.construct.averaging import Variant
from everyformer.construct.averaging_plan import plan_averaging
from everyformer.construct.budget import check_exponent, check_tolerance
from everyformer.construct.certificates import Knowledge
from everyformer.construct.partition_plan import plan_partition
from everyformer.construct.plan import Plan, make_plan
from everyformer.construct.sparse_constants import SparseVariant
from everyformer.construct.sparse_plan import check_settings, plan_sparse
from everyformer.errors import AttentionError, GridError, PatternError
from everyformer.model.architecture import AttentionKind
from everyformer.patterns.pattern import Pattern
from everyformer.targets.target import Target

Method = Literal["selective-shift", "averaging", "partition", "auto"]
"""The contextual map: n or more selective shifts (Yun et al. 2020), or one plain mean; or
none, and a softmax over anchors; or whichever meets a tolerance with the fewest parameters.
"""


def plan(
    target: Target,
    grid: int | None = None,
    *,
    tol: int | float | None = None,
    p: int | float | Fraction = 2,
    softened: bool = True,
    positional: bool | None = None,
    spacing: int | None = None,
    attention: AttentionKind = "dense",
    method: Method = "selective-shift",
    variant: Variant | SparseVariant = "wide",
    pattern: Pattern | None = None,
    gamma: Sequence[int] | None = None,
    decay: int | float | Fraction | None = None,
    margin: int | None = None,
    knowledge: Knowledge = "auto",
) -> Plan:
    """Count the layers and parameters of a construction; nothing is built.

    Args:
        target: The function.
        grid: K, cells per axis; or, with method="partition",
        tol: the distance d_p(f, g) allowed: a bound is proved before anything is built.
        p: The exponent of d_p; it decides how narrow the ramps of averaging attention are.
            math.inf, the supremum, with method="partition".
        softened: The real network (softmax, ReLU), or the modified one.
        positional: With positions; by default unless the target is equivariant.
        spacing: Distance of positions in units of delta: K + 1, or K as in the paper.
        attention: "dense", or "urpe": a layer makes the positions.
        method: "selective-shift" (Yun et al. 2020), "averaging" or "partition".
        variant: Of averaging attention: "wide", "narrow" or "two-step"; with a pattern:
            "wide" or "sweep".
        pattern: A family of sparse attention patterns (`everyformer.patterns`).
        gamma: With a pattern: a Hamiltonian path, 0-based; by default one is looked for.
        decay: Of method="partition": D, weights fall as e^(-D r^2) at r steps of the grid.
        margin: Of method="partition": m, steps of the grid beyond the domain.
        knowledge: Of method="partition": f by its expression, by its declared modulus, or
            whichever there is.

    Raises:
        GridError: If the grid is no integer >= 2, or there is no such method or variant.
        AttentionError: If there is no such attention, or it cannot do without positions.
        PatternError: If the pattern does not satisfy Assumption 1, naming the clause.
    """
    return make_any_plan(
        target,
        grid,
        tol=tol,
        p=exponent_of(p, method),
        softened=softened,
        positional=positional,
        spacing=spacing,
        attention=attention,
        method=method,
        variant=variant,
        pattern=pattern,
        gamma=gamma,
        decay=decay,
        margin=margin,
        knowledge=knowledge,
    )


def exponent_of(p: int | float | Fraction, method: Method) -> Fraction | None:
    """p of d_p; None for the supremum, which the partition of unity alone has.

    Raises:
        ToleranceError: If p is no exponent of this method.
    """
    if method in ("partition", "auto") and p == math.inf:
        return None
    return check_exponent(p, method)


def make_any_plan(
    target: Target,
    grid: int | None,
    *,
    p: Fraction | None,
    softened: bool,
    positional: bool | None,
    spacing: int | None,
    attention: AttentionKind,
    method: Method,
    variant: Variant | SparseVariant,
    pattern: Pattern | None = None,
    gamma: Sequence[int] | None = None,
    tol: int | float | None = None,
    decay: int | float | Fraction | None = None,
    margin: int | None = None,
    knowledge: Knowledge = "auto",
) -> Plan:
    """The plan of a method.

    Raises:
        GridError: If there is no such method, or a setting belongs to another one.
        AttentionError: If there is no such attention, or not with this method.
        PatternError: If the pattern does not satisfy Assumption 1, naming the clause.
    """
    if method == "auto":
        msg = (
            "method='auto' compares methods for a tolerance. Use construct(target, "
            "tol=...), or compare(target, tol) (plan --compare) for the table."
        )
        raise GridError(msg)
    if pattern is not None:
        check_settings(attention=attention, method=method, positional=positional)
    if method == "partition" and pattern is None and gamma is None:
        _check_settings(attention, method, softened, spacing, variant)
        return plan_partition(
            target,
            grid,
            tol=None if tol is None else check_tolerance(target, tol),
            p=p,
            positional=positional,
            decay=decay,
            margin=margin,
            knowledge=knowledge,
        )
    if grid is None or tol is not None or decay is not None or margin is not None:
        msg = (
            f"Got grid={grid!r}, tol={tol!r}, decay={decay!r}, margin={margin!r} with "
            f"method={method!r}. Give grid alone: the others plan method='partition' (for "
            "a tolerance, construct(tol=...) looks for the grid)."
        )
        raise GridError(msg)
    assert p is not None, "the supremum belongs to the partition of unity"  # noqa: S101
    if pattern is not None:
        return plan_sparse(
            target,
            grid,
            pattern,
            gamma=None if gamma is None else tuple(gamma),
            variant=variant,
            softened=softened,
            spacing=spacing,
        )
    if gamma is not None:
        msg = f"gamma={gamma!r} is a path through a pattern. Give pattern=... too."
        raise PatternError(msg)
    if method == "selective-shift":
        if variant != "wide":
            msg = (
                f"variant={variant!r} is one of averaging attention or of a pattern, not "
                "of method='selective-shift'. Leave it out, use method='averaging', or "
                "give pattern=..."
            )
            raise GridError(msg)
        return make_plan(
            target,
            grid,
            softened=softened,
            positional=positional,
            spacing=spacing,
            attention=attention,
        )
    if method not in get_args(Method):
        known = " and ".join(repr(name) for name in get_args(Method))
        msg = f"method={method!r} does not exist. There are {known}."
        raise GridError(msg)
    _check_settings(attention, method, softened, spacing)
    if variant == "sweep":
        msg = "variant='sweep' is one of a pattern, not of averaging. Give pattern=..."
        raise GridError(msg)
    return plan_averaging(target, grid, p=p, positional=positional, variant=variant)


def _check_settings(
    attention: AttentionKind,
    method: Method,
    softened: bool,
    spacing: int | None,
    variant: Variant | SparseVariant = "wide",
) -> None:
    """Refuse settings of the proof of Yun et al. 2020 with another method.

    Raises:
        AttentionError: If the attention is not dense.
        GridError: If a setting belongs to another method.
    """
    if attention != "dense":
        msg = (
            f"attention={attention!r} with method={method!r}: positions are read in there. "
            "Use attention='dense'."
        )
        raise AttentionError(msg)
    if not softened or spacing is not None:
        given = "softened=False (--exact)" if not softened else f"spacing={spacing!r}"
        msg = (
            f"{given} with method={method!r}: that is a setting of the proof of Yun et "
            "al. 2020. Leave it out"
        )
        exact = "; network.exact(x) runs the averaging network in rationals."
        raise GridError(msg + (exact if method == "averaging" else "."))
    if variant != "wide":
        msg = f"variant={variant!r} with method={method!r}: it has none. Leave it out."
        raise GridError(msg)
