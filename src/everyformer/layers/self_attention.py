"""What all layers of self-attention share: projections, heads, how they begin, refusals."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.offsets import check_positive
from everyformer.layers.token_input import check_tokens

Implementation = Literal["auto", "reference"]

IMPLEMENTATIONS = ("auto", "reference")


class SelfAttention(nn.Module):
    """Queries, keys and values of each head, and the output of all heads together.

        [q_i k_i v_i] = x_i W_in^T + b_in,        y_i = [o_i^1 .. o_i^h] W_out^T + b_out

    A subclass says how a head makes o of q, k and v. The names in the state dict are those
    of `torch.nn.MultiheadAttention`.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads; a head has embed_dim / num_heads coordinates.
        bias: Whether queries, keys, values and the output have biases.
        dropout: Probability of dropping a weight in training.
        scale: Of q . k.
        implementation: "auto", or "reference" for plain torch always.
        device: As in torch.
        dtype: As in torch.
    """

    least_tokens = 0
    """The shortest sequence."""

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        bias: bool,
        dropout: float,
        scale: float,
        implementation: Implementation,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        """Make the projections; `check_settings` has seen the settings."""
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.dropout = float(dropout)
        self.scale = float(scale)
        self.implementation = implementation
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **made))
        biases = nn.Parameter(torch.empty(3 * embed_dim, **made)) if bias else None
        self.in_proj_bias = biases
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, **made)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The projections as in `torch.nn.MultiheadAttention`; all else stays."""
        nn.init.xavier_uniform_(self.in_proj_weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)

    def _project(
        self, x: Float[Tensor, "*batch n d"], mask: Bool[Tensor, "*batch n"] | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values, each [b, h, n, d], and which keys are padding, [b, n].

        Raises:
            InputError: If shapes or dtypes do not fit.
        """
        check_tokens(self, x, self.embed_dim, mask, self.least_tokens)
        batch, n = x.shape[:-2].numel(), x.shape[-2]
        projected = nn.functional.linear(x, self.in_proj_weight, self.in_proj_bias)
        packed = projected.reshape(batch, n, 3, self.num_heads, self.head_dim)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        return q, k, v, None if mask is None else mask.reshape(batch, n)

    def _output(
        self, mixed: Float[Tensor, "b h n d"], weights: Tensor | None, like: Tensor
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output of all heads, with the batch of the input; and the weights, if any."""
        out = self.out_proj(mixed.transpose(1, 2).reshape(like.shape))
        if weights is None:
            return out
        return out, weights.reshape(*like.shape[:-2], *weights.shape[1:])

    def _drops(self) -> bool:
        """Whether weights are dropped now."""
        return self.training and self.dropout > 0.0


def check_settings(
    layer: object,
    embed_dim: int,
    num_heads: int,
    dropout: float,
    implementation: str,
    others: Sequence[str] = (),
) -> None:
    """Refuse settings that no layer of self-attention can have.

    Args:
        layer: What they are for.
        embed_dim: Size of a token.
        num_heads: Number of heads.
        dropout: Probability of dropping a weight.
        implementation: Which one is asked for.
        others: What is wrong besides.

    Raises:
        InputError: With all reasons at once.
    """
    check_positive(embed_dim=embed_dim, num_heads=num_heads)
    wrong: list[str] = []
    if embed_dim % num_heads:
        multiple = num_heads * -(-embed_dim // num_heads)
        wrong.append(
            f"embed_dim={embed_dim} is not a multiple of num_heads={num_heads}, so heads "
            f"would have unequal sizes; the next multiple is {multiple}"
        )
    if not 0.0 <= dropout < 1.0:
        wrong.append(
            f"dropout={dropout} is not a probability below 1; give a number in [0, 1)"
        )
    if implementation not in IMPLEMENTATIONS:
        wrong.append(
            f"implementation={implementation!r} is unknown; use 'auto' or 'reference'"
        )
    wrong += others
    if wrong:
        msg = f"{type(layer).__name__} cannot be made: {'; '.join(wrong)}."
        raise InputError(msg)
