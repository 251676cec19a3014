"""The two conditions of Theorem 3 of Luo et al. 2022, as weights that somebody shows.

Their theorem asks of an attention A, for all X, that A(X) = softmax((X u - c 1)(X u)^T) for
some weights, whatever u and c are (*attentive*), and that A(X) 1 = v with distinct entries
for some weights (*position-aware*). Of the first the construction here uses u = 0, where
every token hears every token alike; or any layers that copy one token after the other,
which comes to the same. So an attention that is not a softmax at all may do.

A witness hands out layers with weights. What a layer adds is then *found*, not believed:
the layer is exported and run on affine functions of the tokens (`affine_run`), so that

    layer(X)_i = x_i + sum_j P_ij M x_j + v_i c      for all X, in real arithmetic

with P, M, v, c read off the result. A layer whose weights move with the tokens is not of
this form and is refused.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from everyformer.checks.following.exporting import export_honestly
from everyformer.checks.own_attention.affine_run import run_affine
from everyformer.checks.own_attention.forms import Forms, NotAffine
from everyformer.errors import InputError

PROBES = 16
"""Sequences in the batches that a layer is run on, beside each alone."""

TOLERANCE = 1e-9
"""Relative to the largest number: what float64 may round."""


@runtime_checkable
class Witness(Protocol):
    """An attention of your own, with the weights for which it meets the two conditions.

    Layers map float64 tokens (batch, n, width) to the same shape, skip connection included.
    """

    def attentive(self, width: int, seq_len: int, M: Tensor) -> Sequence[nn.Module]:
        """Layers that one after the other add M sum_j x_j to every token.

        Args:
            width: Numbers in a token.
            seq_len: n.
            M: Shape (width, width); no register that M writes is one that it reads.
        """
        ...

    def position_aware(self, width: int, seq_len: int, c: Tensor) -> nn.Module:
        """A layer that adds v_i c to token i, the entries of v being distinct.

        Args:
            width: Numbers in a token.
            seq_len: n.
            c: Shape (width,).
        """
        ...


def handed_out(
    witness: Witness, seq_len: int, M: Tensor, c: Tensor
) -> tuple[nn.Module, list[nn.Module]]:
    """The layer that tells positions, and those that add the sum, as the witness has them.

    Raises:
        InputError: If it is no witness: a class instead of an object, a layer, or something
            else without the two methods; or layers do not come as a list.
    """
    if isinstance(witness, type) or not isinstance(witness, Witness):
        given = f"A {type(witness).__name__} object"
        if isinstance(witness, type):
            given = f"The class {witness.__name__}"
        msg = (
            f"{given} is not a witness: an object is needed with the methods attentive("
            "width, seq_len, M) and position_aware(width, seq_len, c), which hand out "
            "layers of your attention with weights. Two are in examples/my_attention.py."
        )
        raise InputError(msg)
    width = len(c)
    telling = witness.position_aware(width, seq_len, c.clone())
    hearing = witness.attentive(width, seq_len, M.clone())
    if not isinstance(hearing, Sequence | nn.ModuleList):
        msg = (
            f"attentive() of {type(witness).__name__} gave a {type(hearing).__name__}, and "
            "layers are used one after the other. Give a list of layers, also of one."
        )
        raise InputError(msg)
    return telling, list(hearing)


@dataclass(frozen=True)
class Added:
    """What a layer adds to its tokens, for all tokens.

    Attributes:
        linear: The coefficient of x_jb in what is added to entry a of token i, at
            [i, a, j, b]; Fractions.
        constant: What is added besides, [i, a].
        linear_off: How far the true coefficients may be from these.
        constant_off: The same.
    """

    linear: np.ndarray
    constant: np.ndarray
    linear_off: np.ndarray
    constant_off: np.ndarray


def what_it_adds(layer: nn.Module, width: int, seq_len: int) -> Added:
    """What a layer adds to its tokens, found by following its operations exactly.

    Raises:
        NotAffine: If it cannot be followed, or is not affine in the tokens.
        InputError: If it is not a layer of this shape, or depends on the batch.
    """
    check_layer(layer, width, seq_len)
    return added_by(exported(layer, width, seq_len), seq_len, width)


def exported(layer: nn.Module, width: int, seq_len: int) -> ExportedProgram:
    """The operations of a layer.

    Raises:
        NotAffine: If it cannot be exported, or does something else when it is.
    """
    x = torch.zeros(1, seq_len, width, dtype=torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.export warns of its own workings
            return export_honestly(layer, x)
    except Exception as error:  # whatever a user's module does
        first = (str(error).strip().splitlines() or [""])[0]
        raise NotAffine(f"export: {type(error).__name__}: {first[:200]}") from error


def added_by(program: ExportedProgram, n: int, w: int) -> Added:
    """What an exported layer adds to its tokens, (1, n, w).

    Raises:
        NotAffine: If it is not affine in the tokens, or an operation is not known.
    """
    added = run_affine(program) + (-Forms.tokens((1, n, w)))
    shape = (n, w, n, w)
    return Added(
        added.centre[0, ..., :-1].reshape(shape),
        added.centre[0, ..., -1],
        added.radius[0, ..., :-1].reshape(shape),
        added.radius[0, ..., -1],
    )


def check_layer(layer: nn.Module, width: int, seq_len: int) -> None:
    """Run a layer on batches, and on each of their sequences alone.

    Raises:
        InputError: If it is not a module in eval mode of float64 numbers that are finite,
            changes the shape, gives NaN, or treats a sequence in a batch differently.
    """
    name = type(layer).__name__
    if not isinstance(layer, nn.Module):
        msg = (
            f"The witness gave a {name}, which is not an nn.Module. Let attentive() give a "
            "list of modules, and position_aware() one module."
        )
        raise InputError(msg)
    if any(one.training for one in layer.modules()):
        layer.eval()
    for label, held in (*layer.named_parameters(), *layer.named_buffers()):
        if held.is_floating_point() and held.dtype != torch.float64:
            msg = f"{name}: {label} is {held.dtype}; ids need float64. Call .double()."
            raise InputError(msg)
        if not bool(torch.isfinite(held).all()):
            raise InputError(f"{name}: {label} has numbers that are not finite.")
    generator = torch.Generator().manual_seed(0)
    shape = (PROBES, seq_len, width)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x[1::2] *= 2.0 ** torch.randint(-20, 20, (PROBES // 2, 1, 1), generator=generator)
    try:
        with torch.no_grad():
            together = layer(x.clone())
            alone = torch.cat([layer(one[None].clone()) for one in x])
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a layer may read numbers: refused below
            graded = layer(x.clone().requires_grad_()).detach()
    except Exception as error:  # whatever a user's module does
        first = (str(error).strip().splitlines() or [""])[0]
        msg = (
            f"{name} failed on tokens of shape {shape}: {type(error).__name__}: "
            f"{first[:200]}. A layer maps (batch, n, width) to the same shape."
        )
        raise InputError(msg) from error
    if together.shape != x.shape or not bool(torch.isfinite(together).all()):
        msg = (
            f"{name} maps tokens of shape {shape} to {tuple(together.shape)}, or to "
            "numbers that are not finite. A layer keeps the shape, and has a skip "
            "connection."
        )
        raise InputError(msg)
    size = 1 + x.abs().amax() + together.abs().amax()
    if not bool((together - alone).abs().amax() <= TOLERANCE * size):
        gap = float((together - alone).abs().amax())
        msg = (
            f"{name} gives another output for a sequence in a batch than for it alone, by "
            f"{gap:.3g}: it is not a function of the sequence. Make it treat every "
            "sequence of a batch alike."
        )
        raise InputError(msg)
    if not bool((together - graded).abs().amax() <= TOLERANCE * size):
        msg = (
            f"{name} gives another output where gradients are wanted: it is not a function "
            "of the sequence. Make it ignore requires_grad and the grad mode."
        )
        raise InputError(msg)


def as_fractions(values: Tensor) -> np.ndarray:
    """float64 numbers as the rationals that they are."""
    held = values.detach().numpy()
    exact = np.empty(held.size, dtype=object)
    exact[:] = [Fraction(v) for v in held.reshape(-1).tolist()]
    return exact.reshape(held.shape)


def what_it_seems_to_add(layer: nn.Module, width: int, seq_len: int) -> Added:
    """The same, measured at unit tokens and held against random ones; this proves nothing.

    Raises:
        InputError: At tokens where the layer is not affine.
    """
    check_layer(layer, width, seq_len)
    n, w = seq_len, width
    N = n * w
    units = torch.eye(N, dtype=torch.float64).reshape(N, n, w)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(256, n, w, generator=generator, dtype=torch.float64)
    x *= 2.0 ** torch.randint(-8, 8, (256, 1, 1), generator=generator)
    with torch.no_grad():
        zero = layer(torch.zeros(1, n, w, dtype=torch.float64))[0]
        linear = (layer(units) - zero - units).reshape(N, N).T  # [output, input]
        wanted = x + (x.reshape(-1, N) @ linear.T).reshape(x.shape) + zero
        gap = (layer(x) - wanted).abs().amax(dim=(1, 2))
    size = 1 + x.abs().amax(dim=(1, 2))
    worst = int((gap / size).argmax())
    if bool((gap > TOLERANCE * size).any()):
        msg = (
            f"{type(layer).__name__} does not add a fixed combination of its tokens: at "
            f"X = {x[worst].tolist()} it is off by {float(gap[worst]):.3g}. Give weights "
            "for which scores do not move with the tokens (W_Q = 0)."
        )
        raise InputError(msg)
    zeros = np.full((n, w, n, w), Fraction(0), dtype=object)
    constant = _snapped(zero)
    off = np.asarray(constant != 0).astype(object) * SNAP
    return Added(_snapped(linear.reshape(n, w, n, w)), constant, zeros, off)


SNAP = Fraction(1, 2**24)
"""To multiples of this, measured numbers are rounded."""


def _snapped(values: Tensor) -> np.ndarray:
    exact = as_fractions(values)
    rounded = np.empty(exact.size, dtype=object)
    rounded[:] = [round(v / SNAP) * SNAP for v in exact.flat]
    return rounded.reshape(exact.shape)


def positions_told(
    name: str, added: Added, c: Tensor
) -> tuple[tuple[Fraction, Fraction], ...]:
    """v of a layer that adds v_i c to token i: an interval for each entry.

    Raises:
        InputError: If it adds something else, or two entries are not distinct.
    """
    w = int(torch.nonzero(c)[0, 0])
    if (added.linear != 0).any() or (added.linear_off != 0).any():
        i, a, j, b = _first((added.linear != 0) | (added.linear_off != 0))
        msg = (
            f"{name} does not tell positions alone: what it adds to number {a + 1} of "
            f"token {i + 1} depends on number {b + 1} of token {j + 1}, by the factor "
            f"{float(added.linear[i, a, j, b]):.3g}. For the position-aware condition set "
            "the weights of the values to 0, and their bias to c."
        )
        raise InputError(msg)
    others = np.delete(np.abs(added.constant) + added.constant_off, w, axis=1)
    if (others != 0).any():
        msg = (
            f"{name} adds to numbers of a token where c is 0. For the position-aware "
            "condition it must add v_i c to token i, and nothing else."
        )
        raise InputError(msg)
    ends = [
        (centre - off, centre + off)
        for centre, off in zip(added.constant[:, w], added.constant_off[:, w], strict=True)
    ]
    order = sorted(range(len(ends)), key=lambda i: ends[i][0])
    for i, j in pairwise(order):
        if ends[j][0] <= ends[i][1]:
            v_i, v_j = (float(sum(ends[k]) / 2) for k in (i, j))
            msg = (
                f"{name} does not tell positions {i + 1} and {j + 1} apart: v = {v_i:.6g} "
                f"and {v_j:.6g}. Rows of weights that sum to 1 never do (Luo et al. 2022, "
                "Theorem 2). Give weights for which A(X) 1 has distinct entries: a gain "
                "after the softmax, or no denominator."
            )
            raise InputError(msg)
    return tuple(ends)


def tokens_heard(layers: Sequence[Added], M: Tensor) -> Fraction:
    """How far layers are from adding M sum_j x_j: max over tokens of sum_j |e_ij|.

    M reads registers that it does not write, so that what the layers add, adds up.

    Raises:
        InputError: If they read or write anything else, or a token does not hear another.
    """
    if not layers:
        msg = (
            "The witness gave no layers for the attentive condition, so no token hears "
            "another. Let attentive() give one layer or more that add M sum_j x_j."
        )
        raise InputError(msg)
    wanted = as_fractions(M)[None, :, None, :]  # [1, a, 1, b]
    total = np.asarray(sum(one.linear for one in layers))
    off = np.asarray(sum(one.linear_off for one in layers))
    besides = np.broadcast_to(np.asarray(wanted == 0, dtype=bool), total.shape)
    for one in layers:
        strange = ((one.linear != 0) | (one.linear_off != 0)) & besides
        if strange.any() or (one.constant != 0).any() or (one.constant_off != 0).any():
            msg = (
                "A layer for the attentive condition adds more than a multiple of M x_j: "
                "it reads or writes where M is 0, or adds a constant. Set the weights of "
                "the values to M (or a multiple), and all biases of values to 0."
            )
            raise InputError(msg)
    wrong = (abs(total - wanted) + off) * ~besides
    relative = wrong / (abs(wanted) + besides)
    if (relative >= 1).any():
        i, a, j, b = _first(relative >= 1)
        share = float(total[i, a, j, b] / wanted[0, a, 0, b])
        msg = (
            f"The layers for the attentive condition do not select: token {i + 1} gets "
            f"{share:.6g} of token {j + 1} instead of 1. Every token must hear every "
            "token; a causal mask, or a copy of some tokens to some, is not enough."
        )
        raise InputError(msg)
    return max(wrong.sum(axis=(1, 2, 3)).flat, default=Fraction(0))


def _first(where: np.ndarray) -> tuple[int, int, int, int]:
    i, a, j, b = (int(k) for k in np.argwhere(where)[0])
    return i, a, j, b
