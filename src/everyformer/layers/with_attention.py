"""The network that a module without attention computes, so that it can be certified.

The verifier knows averaging heads. A mixer whose matrix of positions is c 1 1^T adds
W_O c sum_j x_j = (c n W_O) mean_j x_j to every token: one head with W_Q = W_K = 0, W_V = 1
and W_O := c n W_O. So does a stack of short filters, if its numbers are those of
`ShortFilters` for the W that it holds. Whatever is not of this form is refused; all numbers
are those that the module has now, not those it was made with.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.mixers import (
    AverageAttention,
    BilinearProjection,
    SeparableConvolution,
)
from everyformer.layers.mixers.mixer import Mixer
from everyformer.layers.residual import Residual
from everyformer.layers.short_filters import ShortFilters
from everyformer.model.network import Network
from everyformer.model.own_classes import unchanged
from everyformer.model.registers import PREFIX, Registers
from everyformer.model.stacks import AttentionStack, FeedForwardStack, Stage
from everyformer.model.torch_module import BlockRun, TransformerModule
from everyformer.numerics.rationals import exact_array, to_float

SOURCE = "everyformer, docs/mixers.md"


def with_attention(module: TransformerModule, network: Network) -> Network:
    """The network with averaging heads that equals a module of `without_attention`.

    Args:
        module: The module, with the weights it has now.
        network: What it was made from: the construction is taken from it, no weights are.

    Raises:
        InputError: If a part is not one that `without_attention` makes, or its mixer does
            not take the same multiple of the sum for every token.

    Example:
        >>> import everyformer as ef
        >>> from everyformer.layers import without_attention
        >>> f = ef.targets.sort(seq_len=2)
        >>> built = ef.construct(f, grid=2, method=ef.Averaging(mixer="separable"))
        >>> again = with_attention(without_attention(built.network), built.network)
        >>> x = [[0.1], [0.7]]
        >>> bool((again(x) == built.network(x)).all())
        True
    """
    _expect(module, TransformerModule)
    n = module.architecture.seq_len + module.architecture.num_prefix
    stages = tuple(_stage(block, n) for block in module.blocks)
    width = module.architecture.inner_width
    held = {PREFIX + name: _numbers(value) for name, value in module.registers.items()}
    return replace(
        network,
        architecture=replace(module.architecture, num_heads=1, d_head=width),
        stages=stages,
        positions=None if module.positions is None else _numbers(module.positions),
        registers=Registers.from_arrays(held),
        program=None,
    )


def _stage(block: nn.Module, n: int) -> Stage:
    if type(block) is Residual and isinstance(block.layer, Mixer):
        _expect(block, Residual)
        return _averaging(_head(block.layer, n))
    if type(block) is ShortFilters:
        _expect(block, ShortFilters)
        return _averaging(_stacked_head(block, n))
    if type(block) is BlockRun and not block.has_attention:
        _expect(block, BlockRun)
        arrays = {name: _numbers(value) for name, value in block.named_parameters()}
        if not block.stacked:
            arrays = {name: array[None] for name, array in arrays.items()}
        if arrays.keys() == {"W_1", "b_1", "W_2", "b_2"}:
            layers = FeedForwardStack(
                arrays["W_1"], arrays["b_1"], arrays["W_2"], arrays["b_2"]
            )
            return Stage(block.stage_name, SOURCE, feed_forward=layers)
    msg = (
        f"{type(block).__name__} is neither a mixer with a skip connection nor a "
        "feed-forward layer of ReLUs. Give a module that without_attention made."
    )
    raise InputError(msg)


def _averaging(weight: np.ndarray) -> Stage:
    """One head that adds `weight` times the mean."""
    w = len(weight)
    nothing = np.zeros((1, 1, w, w))
    heads = AttentionStack(
        W_Q=nothing,
        b_Q=np.zeros((1, 1, w)),
        W_K=nothing,
        W_V=np.eye(w).reshape(1, 1, w, w),
        W_O=weight.reshape(1, 1, w, w),
    )
    return Stage("sum", SOURCE, attention=heads)


def _stacked_head(stack: ShortFilters, n: int) -> np.ndarray:
    """M with stack(x)_i = x_i + M mean_j x_j for every token i.

    W stands in the first layer. All numbers must be those of the stack that is made for it.

    Raises:
        InputError: If they are not.
    """
    for layer in stack.layers:
        _expect(layer, Residual)
        assert isinstance(layer, Residual)  # noqa: S101
        _expect(layer.layer, SeparableConvolution)
        _expect(layer.layer.get_submodule("out_proj"), nn.Linear)
    held = {name: _numbers(value) for name, value in stack.named_parameters()}
    w = stack.width
    weight = held.get("layers.0.layer.out_proj.weight", np.zeros((w, w)))[:w, :w]
    meant = ShortFilters(torch.tensor(weight), n, stack.filter_length)
    wanted = {name: _numbers(value) for name, value in meant.named_parameters()}
    same = (stack.seq_len, stack.inner) == (n, meant.inner) and held.keys() == wanted.keys()
    if not same or not all(np.array_equal(held[name], wanted[name]) for name in wanted):
        msg = (
            f"These short filters do not add the same multiple of the sum of all {n} "
            "tokens to each of them: their numbers are not those of ShortFilters. Give a "
            "module that without_attention made."
        )
        raise InputError(msg)
    return _times_tokens(exact_array(weight), n, "ShortFilters")


def _times_tokens(weight: np.ndarray, n: int, what: str) -> np.ndarray:
    """The exact numbers n W as float64.

    Raises:
        InputError: If float64 does not hold them.
    """
    exact = weight * n
    rounded = to_float(exact)
    if (exact_array(rounded) != exact).any():
        msg = f"n W_O of this {what} is not a matrix of float64 numbers, n = {n}."
        raise InputError(f"{msg} Choose weights with fewer bits.")
    return rounded


def _head(mixer: Mixer, n: int) -> np.ndarray:
    """M with mixer(x)_i = M mean_j x_j for every token i.

    Raises:
        InputError: If there is none, or float64 does not hold it.
    """
    kind = type(mixer)
    _expect(mixer, AverageAttention, BilinearProjection, SeparableConvolution)
    _expect(mixer.out_proj, nn.Linear)
    weight = exact_array(_numbers(mixer.out_proj.weight))
    bias = dict(mixer.out_proj.named_parameters()).get("bias")
    shares = np.ones(len(weight))  # what each dimension takes of the sum
    equal = True
    if isinstance(mixer, BilinearProjection):
        P = _numbers(mixer.position_weight)
        equal = mixer.seq_len == n and bool((P[0, 0] == P).all())
        shares = shares * P[0, 0]
    elif isinstance(mixer, SeparableConvolution):
        filters = _numbers(mixer.filters)
        left = (filters.shape[1] - 1) // 2
        seen = filters[:, max(left - n + 1, 0) : left + n]
        equal = seen.shape[1] == 2 * n - 1 and bool((seen == seen[:, :1]).all())
        shares = seen[:, 0]
    if not equal or (bias is not None and bool(bias.any())):
        msg = (
            f"This {kind.__name__} does not add the same multiple of the sum of all {n} "
            "tokens to each of them, which an averaging head does: its matrix of positions "
            "must be a multiple of 1 1^T, a filter of 2n - 1 equal numbers or more, and "
            "its bias 0."
        )
        raise InputError(msg)
    exact = weight if kind is AverageAttention else weight * exact_array(shares)
    return _times_tokens(exact, 1 if kind is AverageAttention else n, kind.__name__)


def _expect(part: nn.Module, *classes: type) -> None:
    """Refuse what may compute something else than its class does."""
    if type(part) not in classes or not unchanged(part):
        msg = (
            f"{type(part).__name__} is not, or not any more, a layer of everyformer: its "
            "class differs, or it has hooks or methods of its own. Give a module that "
            "without_attention made."
        )
        raise InputError(msg)


def _numbers(value: Tensor | nn.Parameter) -> np.ndarray:
    if value.dtype != torch.float64:
        msg = f"Weights are {value.dtype}; the certificate is about float64. Call .double()"
        raise InputError(f"{msg} before training, and keep it.")
    return value.detach().cpu().numpy().copy()
