"""From the modified class to the real one (Lemma 9): softmax, four ReLUs for each phi."""

from dataclasses import replace

import numpy as np

from everyformer.construct.shifts.step import ProofStep
from everyformer.model.activation import PiecewiseLinear
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.papers import YUN2020, implements


@implements(YUN2020, "Lemma 9")
def soften(step: ProofStep, sharpness: int) -> Stage:
    """The stage with softmax for hardmax and four ReLUs for each phi, in float64.

    Args:
        step: A stage of the modified class with float64 weights, r = 1, and the width of
            the ramps that replace its jumps.
        sharpness: lambda, the factor on the scores.
    """
    stage = step.stage
    return replace(
        stage,
        attention=None if stage.attention is None else sharpen(stage.attention, sharpness),
        feed_forward=None
        if stage.feed_forward is None
        else four_relus(stage.feed_forward, float(step.ramp)),
    )


@implements(YUN2020, "Lemma 9")
def sharpen(stack: AttentionStack, sharpness: int) -> AttentionStack:
    """Multiply the scores by lambda, through the keys: softmax[lambda A] -> hardmax[A]."""
    return replace(stack, W_K=stack.W_K * float(sharpness))


@implements(YUN2020, "Lemma 9")
def four_relus(stack: FeedForwardStack, ramp: float) -> FeedForwardStack:
    """Replace every phi of a stack by four ReLUs that agree with it off its ramps.

        phi~(t) = const + sum_i w_i ReLU(+-(t - k_i))

    A jump at c becomes a ramp: [c - ramp, c] if c belongs to the piece on its right (as in
    the paper), [c, c + ramp] if it belongs to the left one; so phi~(c) = phi(c) in both
    cases. A break without a jump needs no ramp. The formula starts from a constant piece:
    ReLU(t - k) for breaks on its right, ReLU(k - t) for those on its left. The first
    constant piece is taken, as in the paper, so that inputs far to the left of all breaks
    are touched by none of the four.
    """
    phi = stack.phi
    assert phi is not None, "stacks of the modified class have a phi"  # noqa: S101
    knots, weights, signs, constant = relu_coefficients(phi, ramp)
    W_1 = stack.W_1 * signs[..., None]  # [layers, 4, d]; r = 1 broadcasts
    b_1 = stack.b_1 * signs - knots * signs
    return FeedForwardStack(
        W_1=W_1,
        b_1=b_1,
        W_2=stack.W_2 * weights[:, None, :],
        b_2=stack.b_2 + (stack.W_2 * constant[:, None, :])[..., 0],
    )


def relu_coefficients(
    phi: PiecewiseLinear, ramp: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Knots k_i, weights w_i, signs (all (layers, 4)) and the constant (layers, 1)."""
    a, b = phi.slopes[:, 0], phi.intercepts[:, 0]  # [layers, 3]
    anchor = np.argmax(a == 0, axis=-1)  # first constant piece
    knots, weights, signs = [], [], []
    for side in range(2):
        c, closed = phi.breaks[:, 0, side], phi.closed[:, 0, side]
        a_L, b_L = a[:, side], b[:, side]
        a_R, b_R = a[:, side + 1], b[:, side + 1]
        jump = a_L * c + b_L != a_R * c + b_R
        width = np.where(jump, ramp, 0.0)
        start = np.where(closed, c, c - width)
        end = np.where(closed, c + width, c)
        rise = (a_R * end + b_R) - (a_L * start + b_L)
        slope = np.where(jump, rise / np.where(jump, ramp, 1.0), a_L)
        rightwards = side >= anchor
        # Slopes change by slope - a_L at the start of a ramp and by a_R - slope at its end.
        knots += [start, end]
        weights += [slope - a_L, a_R - slope]
        signs += [np.where(rightwards, 1.0, -1.0)] * 2
    constant = np.take_along_axis(b, anchor[:, None], axis=-1)
    return (
        np.stack(knots, axis=-1),
        np.stack(weights, axis=-1),
        np.stack(signs, axis=-1),
        constant,
    )
