"""The network in PyTorch's own layers: heads concatenated, one W_O, linear layers.

Yun et al. sum over heads, sum_i W_O^i W_V^i X softmax[..]; PyTorch concatenates them and
multiplies by one matrix. With W_O = [W_O^1 .. W_O^h] that is the same.

`nn.MultiheadAttention` wants tokens of width D = h m. Tokens get zeros up to that width
first, which stay zeros and are cut off at the end; heads get coordinates of zeros. It also
divides queries by sqrt(m), so W_K is multiplied by it: m is a power of 4, for which that is
free of rounding.
"""

import math
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import MemoryLimitError, NumberKindError
from everyformer.model.stacks import AttentionStack, FeedForwardStack
from everyformer.model.torch_module import UNROLL_LIMIT, check_input

if TYPE_CHECKING:
    from everyformer.model.network import Network


class StandardBlock(nn.Module):
    """x + MHA(x), then x + W_2 relu(W_1 x + b_1) + b_2; either half may be missing."""

    def __init__(self, attention: nn.Module | None, feed_forward: nn.Module | None) -> None:
        """Take the two halves."""
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.mask: Tensor | None
        self.register_buffer("mask", None)

    def forward(self, x: Float[Tensor, "batch n width"]) -> Float[Tensor, "batch n width"]:
        """Run both halves."""
        if self.attention is not None:
            # With the shares, as formulas have it: softmax of a matrix, times the values.
            added, _ = self.attention(x, x, x, attn_mask=self.mask, need_weights=True)
            x = x + added
        return x if self.feed_forward is None else x + self.feed_forward(x)


class StandardTransformer(nn.Module):
    """A network of T^{h,m,r} made of `nn.MultiheadAttention` and `nn.Linear`, float64.

    Attributes:
        blocks: One `StandardBlock` for each block.
        width: D, the width of tokens inside.
    """

    def __init__(self, network: "Network") -> None:
        """Copy the weights of a network.

        Raises:
            NumberKindError: If PyTorch has no such layer: hardmax, Phi, or a gain.
            MemoryLimitError: If there are too many blocks for a module each.
        """
        super().__init__()
        _check_standard(network)
        spec = network.architecture
        self.architecture = spec
        h = spec.num_heads
        least = max(spec.d_head, -(-spec.inner_width // h))
        self.d_head = 1
        while self.d_head < least:
            self.d_head *= 4
        self.width = h * self.d_head
        self.before, self.start, self.prefix, self.after = self._around(network)
        self.blocks = nn.ModuleList(
            self._block(stage.attention, stage.feed_forward, k)
            for stage in network.stages
            for k in range(stage.blocks)
        )

    def _around(
        self, network: "Network"
    ) -> tuple[nn.Linear, nn.Parameter, nn.Parameter, nn.Linear]:
        """The read-in with its start, the prefix tokens, and the read-out."""
        spec, held = network.architecture, network.registers
        n, d, D = spec.seq_len, spec.d_model, self.width
        W_in, W_out, start = np.eye(D, d), np.eye(d, D), np.zeros((n, D))
        prefix = np.zeros((spec.num_prefix, D))
        if network.positions is not None:
            start[:, :d] = network.positions
        if held is not None:
            w = held.width
            W_in[:], W_out[:] = 0, 0
            W_in[:w], W_out[:, :w], start[:, :w] = held.W_in, held.W_out, held.start
            if held.prefix is not None:
                prefix[:, :w] = held.prefix
        return (
            _linear(W_in, None),
            nn.Parameter(torch.from_numpy(start)),
            nn.Parameter(torch.from_numpy(prefix)),
            _linear(W_out, None),
        )

    def _block(
        self, attention: AttentionStack | None, layers: FeedForwardStack | None, k: int
    ) -> StandardBlock:
        block = StandardBlock(
            None if attention is None else self._attention(attention, k),
            None if layers is None else self._feed_forward(layers, k),
        )
        if attention is not None and attention.mask is not None:
            block.mask = torch.from_numpy(~attention.mask[k])  # True: not attended to
        return block

    def _attention(self, stack: AttentionStack, k: int) -> nn.MultiheadAttention:
        D, size, h = self.width, self.d_head, self.architecture.num_heads
        _, own_heads, m, w = stack.W_Q.shape
        rows = np.zeros((3, h, size, D))  # W_Q, W_K, W_V of all heads, one below the other
        biases = np.zeros((3, h, size))
        out = np.zeros((D, h, size))
        rows[0, :own_heads, :m, :w] = stack.W_Q[k]
        rows[1, :own_heads, :m, :w] = stack.W_K[k] * math.isqrt(size)
        rows[2, :own_heads, :m, :w] = stack.W_V[k]
        biases[0, :own_heads, :m] = -stack.b_Q[k]
        if stack.b_V is not None:
            biases[2, :own_heads, :m] = stack.b_V[k]
        out[:w, :own_heads, :m] = np.moveaxis(stack.W_O[k], 0, 1)
        layer = nn.MultiheadAttention(D, h, batch_first=True, dtype=torch.float64)
        layer.in_proj_weight = nn.Parameter(torch.from_numpy(rows.reshape(3 * D, D)))
        layer.in_proj_bias = nn.Parameter(torch.from_numpy(biases.reshape(3 * D)))
        layer.out_proj.weight = nn.Parameter(torch.from_numpy(out.reshape(D, D)))
        layer.out_proj.bias = nn.Parameter(torch.zeros(D, dtype=torch.float64))
        return layer

    def _feed_forward(self, stack: FeedForwardStack, k: int) -> nn.Sequential:
        _, r, w = stack.W_1.shape
        W_1, W_2 = np.zeros((r, self.width)), np.zeros((self.width, r))
        W_1[:, :w], W_2[:w] = stack.W_1[k], stack.W_2[k]
        b_2 = np.zeros(self.width)
        b_2[:w] = stack.b_2[k]
        return nn.Sequential(_linear(W_1, stack.b_1[k]), nn.ReLU(), _linear(W_2, b_2))

    def forward(self, x: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Evaluate; x must be float64 of shape (*batch, n, d).

        Raises:
            NumberKindError: If x or the weights are not float64.
            ValueError: If the shape is wrong.
        """
        check_input(x, self.start, self.architecture)
        tokens = x.reshape(-1, *x.shape[-2:])
        state = self.before(tokens) + self.start  # [batch, n, D]
        first = self.prefix.expand(len(state), -1, -1)
        state = torch.cat([first, state], dim=-2)
        for block in self.blocks:
            state = block(state)
        return self.after(state[:, len(self.prefix) :]).reshape(x.shape)


def _linear(weight: np.ndarray, bias: np.ndarray | None) -> nn.Linear:
    outputs, inputs = weight.shape
    layer = nn.Linear(inputs, outputs, bias=bias is not None, dtype=torch.float64)
    layer.weight = nn.Parameter(torch.tensor(np.asarray(weight)))
    if bias is not None:
        layer.bias = nn.Parameter(torch.tensor(np.asarray(bias)))
    return layer


def _check_standard(network: "Network") -> None:
    spec = network.architecture
    wrong: list[str] = []
    if spec.normaliser != "softmax":
        wrong.append("its attention is hardmax")
    if spec.activation != "relu":
        wrong.append("its feed-forward layers have functions of Phi")
    gains = [s.attention.gain for s in network.stages if s.attention is not None]
    if any(gain is not None and (gain != 1).any() for gain in gains):
        wrong.append("its attention weights are multiplied by a gain (URPE)")
    if wrong:
        msg = (
            f"nn.MultiheadAttention and nn.Linear cannot hold this network of "
            f"{spec.class_name}: {'; '.join(wrong)}. Leave standard=False, or construct "
            "with softmax, ReLU and dense attention."
        )
        raise NumberKindError(msg)
    if network.blocks > UNROLL_LIMIT:
        msg = (
            f"standard=True would make {network.blocks:,} modules, and the limit is "
            f"{UNROLL_LIMIT:,}. Leave standard=False, whose module has the same weights."
        )
        raise MemoryLimitError(msg)
