"""Plans of all methods, by name."""

from fractions import Fraction
from typing import Literal, get_args

from everyformer.construct.averaging import Variant
from everyformer.construct.averaging_plan import plan_averaging
from everyformer.construct.budget import check_exponent
from everyformer.construct.plan import Plan, make_plan
from everyformer.errors import AttentionError, GridError
from everyformer.model.architecture import AttentionKind
from everyformer.targets.target import Target

Method = Literal["selective-shift", "averaging"]
"""The contextual map: n or more selective shifts (Yun et al. 2020), or one plain mean."""


def plan(
    target: Target,
    grid: int,
    *,
    p: int | float | Fraction = 2,
    softened: bool = True,
    positional: bool | None = None,
    spacing: int | None = None,
    attention: AttentionKind = "dense",
    method: Method = "selective-shift",
    variant: Variant = "wide",
) -> Plan:
    """Count the layers and parameters of a construction; nothing is built.

    Args:
        target: The function.
        grid: K, cells per axis.
        p: The exponent of d_p; it decides how narrow the ramps of averaging attention are.
        softened: The real network (softmax, ReLU), or the modified one.
        positional: With positions; by default unless the target is equivariant.
        spacing: Distance of positions in units of delta: K + 1, or K as in the paper.
        attention: "dense", or "urpe": a layer makes the positions.
        method: "selective-shift" (Yun et al. 2020), or "averaging".
        variant: Of averaging attention: "wide", "narrow" or "two-step".

    Raises:
        GridError: If the grid is no integer >= 2, or there is no such method or variant.
        AttentionError: If there is no such attention, or it cannot do without positions.
    """
    return make_any_plan(
        target,
        grid,
        p=check_exponent(p, method),
        softened=softened,
        positional=positional,
        spacing=spacing,
        attention=attention,
        method=method,
        variant=variant,
    )


def make_any_plan(
    target: Target,
    grid: int,
    *,
    p: Fraction,
    softened: bool,
    positional: bool | None,
    spacing: int | None,
    attention: AttentionKind,
    method: Method,
    variant: Variant,
) -> Plan:
    """The plan of a method.

    Raises:
        GridError: If there is no such method, or a setting belongs to another one.
        AttentionError: If there is no such attention, or not with this method.
    """
    if method == "selective-shift":
        if variant != "wide":
            msg = (
                f"variant={variant!r} is one of averaging attention, not of "
                "method='selective-shift'. Leave it out, or use method='averaging'."
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
    if attention != "dense":
        msg = (
            f"attention={attention!r} with method='averaging': all scores are 0 there, and "
            "positions are read in. Use attention='dense'."
        )
        raise AttentionError(msg)
    if not softened or spacing is not None:
        given = "softened=False (--exact)" if not softened else f"spacing={spacing!r}"
        msg = (
            f"{given} with method='averaging': that is a setting of the proof of Yun et "
            "al. 2020. Leave it out; network.exact(x) runs the averaging network in "
            "rationals."
        )
        raise GridError(msg)
    return plan_averaging(target, grid, p=p, positional=positional, variant=variant)
