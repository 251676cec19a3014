"""A constructed network without attention: mixers take the sums of its averaging heads.

A head whose scores are 0 adds M mean_j x_j to every token, M = W_O W_V. Three layers of
Section 6 of Yun et al. 2020 do the same, for every x in R^(n x w), in real arithmetic:

    average attention       W_O = M
    bi-linear projection    W_P = 1 1^T,              W_O = M / n
    separable convolution   w_k = 1, k < 2n - 1,      W_O = M / n

With filters that are shorter, a stack of separable convolutions does (`short_filters`).

Proof. Average attention is W_O mean_j x_j. Row i of (1 1^T) X is sum_j x_j = n mean_j x_j.
With K = 2n - 1 and l = (K - 1) // 2 = n - 1, token i of the convolution is sum_k x_{i+k-l}
over the offsets -(n-1) .. n-1, of which those that stay inside the sequence are each token
once; the others are zeros. ∎

So the network with a mixer is the function that the certificate is about. In float64 the
terms are those of the head, added in some order and with fewer roundings, for W_P and w are
ones: the error of the head that `certify` bounds is at least theirs.
"""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from torch import nn

from everyformer.errors import InputError
from everyformer.layers.mixers import (
    AverageAttention,
    BilinearProjection,
    SeparableConvolution,
)
from everyformer.layers.mixers.mixer import Mixer
from everyformer.layers.residual import Residual
from everyformer.layers.short_filters import ShortFilters
from everyformer.model.mixing import MIXER_KINDS, MixerName
from everyformer.model.stacks import AttentionStack, Stage
from everyformer.model.torch_module import BlockRun, TransformerModule
from everyformer.numerics.rationals import exact_array, to_float
from everyformer.papers import YUN2020, implements

if TYPE_CHECKING:
    from everyformer.model.network import Network


@implements(YUN2020, "Equation 5", "Equation 6")
def without_attention(
    network: "Network",
    mixer: MixerName | None = None,
    *,
    filter_length: int | None = None,
) -> TransformerModule:
    """The network as a module whose tokens are mixed by a layer that is not attention.

    Args:
        network: One whose heads have scores 0, as `Averaging` builds them.
        mixer: "average", "bilinear" or "separable"; by default the one that the network was
            built for, `Averaging(mixer=...)`.
        filter_length: K of separable convolutions, by default 2n - 1. With less, from 3 on,
            ceil((n - 1)/((K - 1)//2)) + 1 of them take the sum together.

    Raises:
        InputError: If there is no such mixer, the network names none, some head is not a
            plain mean, a weight of the mixer would be rounded, or a filter is too short or
            given for a mixer that has none.

    Example:
        >>> import everyformer as ef
        >>> f = ef.targets.sort(seq_len=2)
        >>> built = ef.construct(f, grid=2, method=ef.Averaging(mixer="bilinear"))
        >>> module = without_attention(built.network)
        >>> [type(one.layer).__name__ for one in module.blocks if hasattr(one, "layer")]
        ['BilinearProjection']
    """
    if mixer is not None and mixer not in get_args(MixerName):
        known = ", ".join(repr(name) for name in get_args(MixerName))
        raise InputError(f"mixer={mixer!r} does not exist. Choose one of {known}.")
    network = network.in_float64()
    tokens = network.architecture.seq_len + network.architecture.num_prefix
    module = TransformerModule(network)
    module.blocks = nn.ModuleList(
        block
        for stage in network.stages
        for block in _blocks(stage, tokens, mixer or _named(stage), filter_length)
    )
    return module


def _named(stage: Stage) -> MixerName | None:
    """The mixer that a stage was built for."""
    return next((name for name, kind in MIXER_KINDS.items() if kind == stage.kind), None)


def _blocks(
    stage: Stage, tokens: int, mixer: MixerName | None, filter_length: int | None
) -> Iterator[nn.Module]:
    """The layers of a stage, one after the other."""
    heads = stage.attention
    if heads is None:
        yield BlockRun(stage, hard=False)
        return
    means = [mean_matrix(stage.name, heads, block) for block in range(stage.blocks)]
    if mixer is None:
        msg = (
            f"The stage {stage.name!r} does not say which mixer is to take its sum. Give "
            "mixer='average', 'bilinear' or 'separable', here or to the method that builds "
            "the network."
        )
        raise InputError(msg)
    for block, M in enumerate(means):
        yield _summing(stage.name, mixer, M, tokens, filter_length)
        if stage.feed_forward is not None:
            yield BlockRun(replace(stage, attention=None), hard=False, block=block)


def mean_matrix(name: str, heads: AttentionStack, block: int) -> np.ndarray:
    """M = sum over heads of W_O W_V, in rationals: attention is x_i + M mean_j x_j.

    Raises:
        InputError: If a head is not a plain mean.
    """
    what = [
        f"a {kind}"
        for kind, held in (
            ("mask", heads.mask),
            ("gain", heads.gain),
            ("bias of the value", heads.b_V),
        )
        if held is not None
    ]
    scored = heads.W_K[block].any(axis=(-2, -1)) & (
        heads.W_Q[block].any(axis=(-2, -1)) | heads.b_Q[block].any(axis=-1)
    )
    if scored.any():
        what.append(f"{int(scored.sum())} heads with scores that are not 0")
    if what:
        msg = (
            f"The stage {name!r} has {', '.join(what)}: its attention is not a plain mean, "
            "and a mixer cannot take its place. Build the network with method='averaging'."
        )
        raise InputError(msg)
    W_O, W_V = exact_array(heads.W_O[block]), exact_array(heads.W_V[block])
    parts = [one @ other for one, other in zip(W_O, W_V, strict=True)]
    return np.asarray(sum(parts[1:], start=parts[0]))


def _summing(
    name: str, mixer: MixerName, M: np.ndarray, n: int, filter_length: int | None
) -> nn.Module:
    """The module that adds M mean_j x_j to every token.

    Raises:
        InputError: If M, or M / n, is not made of float64 numbers, or the filters do not
            fit.
    """
    if filter_length is not None and mixer != "separable":
        msg = (
            f"filter_length={filter_length} is given for mixer={mixer!r}, which has no "
            "filter. Leave it out, or use mixer='separable'."
        )
        raise InputError(msg)
    weight = _weight(name, mixer, M, n)
    if filter_length is not None and filter_length < 2 * n - 1:
        return ShortFilters(torch.tensor(weight), n, filter_length)
    return Residual(_mixer(mixer, weight, n, filter_length or 2 * n - 1))


def _weight(name: str, mixer: MixerName, M: np.ndarray, n: int) -> np.ndarray:
    """W_O of the mixer: M for a mean, M / n for a sum."""
    weight = M if mixer == "average" else M * Fraction(1, n)
    rounded = to_float(weight)
    if (exact_array(rounded) != weight).any():
        msg = (
            f"The stage {name!r} needs W_O = W_O W_V{'' if mixer == 'average' else f'/{n}'}"
            " of its heads, which float64 would round: the network would be another one. "
            "Use mixer='average', or weights that are multiples of the number of tokens."
        )
        raise InputError(msg)
    return rounded


def _mixer(mixer: MixerName, weight: np.ndarray, n: int, filter_length: int) -> Mixer:
    """The layer with mixer(x)_i = M mean_j x_j; filters of 2n - 1 ones or more."""
    width = len(weight)
    made: Mixer
    if mixer == "average":
        made = AverageAttention(width, bias=False, dtype=torch.float64)
    elif mixer == "bilinear":
        made = BilinearProjection(width, n, bias=False, dtype=torch.float64)
        nn.init.ones_(made.position_weight)
    else:
        made = SeparableConvolution(width, filter_length, bias=False, dtype=torch.float64)
        nn.init.ones_(made.filters)
    with torch.no_grad():
        made.out_proj.weight.copy_(torch.tensor(weight))
    return made
