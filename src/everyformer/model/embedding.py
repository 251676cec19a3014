"""The same function in a richer class: T^{h,m,r} holds every T^{h',m',r'} below it.

Heads, head coordinates and hidden units of zeros are appended. A head of zeros has scores
0 and values 0, a coordinate of zeros adds 0 to every score, a hidden unit of zeros writes
0: the function stays the same, and so does every float64 sum whose terms are added in
order, since its last terms are 0.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from everyformer.errors import InputError
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.stacks import AttentionStack, FeedForwardStack
from everyformer.papers import YUN2020, implements

if TYPE_CHECKING:
    from everyformer.model.network import Network


@implements(YUN2020, "Theorem 2", "Theorem 3")
def embed(network: "Network", h: int, m: int, r: int) -> "Network":
    """The network as a member of the class with h heads of size m and r hidden units.

    Yun et al. state their theorems for T^{2,1,4}; they hold for every h >= 2, m >= 1 and
    r >= 4 because the smaller class lies in the larger one.

    Raises:
        InputError: If a size is not an integer or below the network's own.
    """
    spec = network.architecture
    own = {"h": spec.num_heads, "m": spec.d_head, "r": spec.d_ff}
    _check_sizes(own, {"h": h, "m": m, "r": r}, spec.class_name)
    stages = tuple(
        replace(
            stage,
            attention=stage.attention and _wider_attention(stage.attention, h, m),
            feed_forward=stage.feed_forward and _wider_layers(stage.feed_forward, r),
        )
        for stage in network.stages
    )
    wider = replace(spec, num_heads=h, d_head=m, d_ff=r)
    return replace(network, architecture=wider, stages=stages)


def _check_sizes(own: dict[str, int], given: dict[str, int], name: str) -> None:
    odd = [
        f"{key}={value!r}"
        for key, value in given.items()
        if isinstance(value, bool) or not isinstance(value, int)
    ]
    if odd:
        msg = f"{', '.join(odd)}: sizes of a class are integers. Give h, m and r as ints."
        raise InputError(msg)
    small = [
        f"{key}={value} is below {own[key]}"
        for key, value in given.items()
        if value < own[key]
    ]
    if small:
        least = ", ".join(f"{key} >= {value}" for key, value in own.items())
        msg = (
            f"{'; '.join(small)}: this network of {name} has heads or units that a smaller "
            f"class cannot hold. Give {least}."
        )
        raise InputError(msg)


def _padded(array: np.ndarray, sizes: dict[int, int], fill: int = 0) -> np.ndarray:
    """The array with axes made as long as said, by entries of one number at their end."""
    wanted: list[int] = [
        sizes.get(axis, int(length)) for axis, length in enumerate(array.shape)
    ]
    grown = np.full(wanted, fill, dtype=array.dtype)
    grown[tuple(slice(length) for length in array.shape)] = array
    return grown


def _wider_attention(stack: AttentionStack, h: int, m: int) -> AttentionStack:
    rows = {1: h, 2: m}
    return AttentionStack(
        W_Q=_padded(stack.W_Q, rows),
        b_Q=_padded(stack.b_Q, rows),
        W_K=_padded(stack.W_K, rows),
        W_V=_padded(stack.W_V, rows),
        W_O=_padded(stack.W_O, {1: h, 3: m}),
        b_V=None if stack.b_V is None else _padded(stack.b_V, rows),
        gain=None if stack.gain is None else _padded(stack.gain, {1: h}, fill=1),
        mask=stack.mask,
    )


def _wider_layers(stack: FeedForwardStack, r: int) -> FeedForwardStack:
    return FeedForwardStack(
        W_1=_padded(stack.W_1, {1: r}),
        b_1=_padded(stack.b_1, {1: r}),
        W_2=_padded(stack.W_2, {2: r}),
        b_2=stack.b_2,
        phi=stack.phi and _more_functions(stack.phi, r),
    )


def _more_functions(phi: PiecewiseLinear, r: int) -> PiecewiseLinear:
    """Functions of Phi for r units; those of new ones are 0, with breaks at 0 and 1."""
    breaks = _padded(phi.breaks, {1: r})
    breaks[:, phi.breaks.shape[1] :, 1] = 1
    return PiecewiseLinear(
        breaks=breaks,
        closed=_padded(phi.closed, {1: r}),
        slopes=_padded(phi.slopes, {1: r}),
        intercepts=_padded(phi.intercepts, {1: r}),
    )
