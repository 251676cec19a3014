"""Sparse attention over short sequences: all pairs, with the pattern as a mask.

At a few hundred tokens the kernels of `SparseAttention` are not faster than dense ones.
Here the pattern is data: layers with other patterns run the same code, so that
`torch.compile` compiles one block for a whole comparison of patterns.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from everyformer.errors import InputError
from everyformer.layers.key_cache import KeyCache, check_cache
from everyformer.layers.models.token_input import check_tokens
from everyformer.layers.self_attention import SelfAttention
from everyformer.layers.sparse_attention import Configuration, SparseAttention
from everyformer.patterns import Part, Pattern

KERNELS = [
    SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH,
]  # fmt: skip
"""All of PyTorch's but cuDNN's.

On an H100 or H200 its gradient of a query is NaN if there is a mask, n mod 128 is 64, and
the logarithm of the sum of the query's exponentials is below -88 (PyTorch 2.11 to 2.13,
issue 196678): nothing holds the only score of a token that hears itself alone.
"""


class MaskedAttention(SelfAttention):
    """What `SparseAttention` computes, by PyTorch's dense attention with a mask.

    Time and memory follow n^2. A sequence shorter than the pattern is given the leading
    part of the pattern: as if it were padded to the full length and the padding hidden.

    Args:
        embed_dim: Size of a token.
        num_heads: Number of heads.
        pattern: For the longest sequence; all its tokens attend to themselves.
        configuration: How several patterns are used, as in `SparseAttention`.
        layer_index: Which layer of a network this is, from 0 on; for "sequential".
        device: As in torch.
        dtype: As in torch.

    Raises:
        InputError: If the settings do not fit, or some token does not attend to itself.

    Example:
        >>> from everyformer import patterns
        >>> layer = MaskedAttention(8, 2, patterns.strided(9, 3), configuration="multihead")
        >>> layer(torch.ones(4, 9, 8)).shape, layer(torch.ones(5, 8)).shape
        (torch.Size([4, 9, 8]), torch.Size([5, 8]))
    """

    least_tokens = 1
    allowed: Bool[Tensor, "h n n"]

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        pattern: Pattern,
        *,
        configuration: Configuration = "sequential",
        layer_index: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(pattern, Pattern):
            msg = (
                f"MaskedAttention cannot be made: pattern={pattern!r} is not a pattern. "
                "Give that of the longest sequence: shorter ones are its first tokens."
            )
            raise InputError(msg)
        sparse = SparseAttention(
            embed_dim, num_heads, pattern, configuration=configuration,
            layer_index=layer_index, device="meta",
        )  # fmt: skip
        super().__init__(
            embed_dim, num_heads, kv_heads=None, bias=True, dropout=0.0,
            scale=1 / math.sqrt(embed_dim // num_heads), implementation="auto",
            device=device, dtype=dtype,
        )  # fmt: skip
        self.parts: tuple[Part, ...] = sparse.for_length(pattern.n)
        _check_self_loops(pattern.name, self.parts)
        masks = torch.stack([torch.from_numpy(part.mask()) for part in self.parts])
        masks = masks.repeat_interleave(num_heads // len(self.parts), 0)
        self.register_buffer("allowed", masks.to(device), persistent=False)

    def forward(
        self,
        x: Float[Tensor, "*batch n d"],
        *,
        key_padding_mask: Bool[Tensor, "*batch n"] | None = None,
        cache: KeyCache | None = None,
    ) -> Float[Tensor, "*batch n d"]:
        """Attend from every token to those of its set.

        Args:
            x: Tokens.
            cache: Of this layer, whose pattern must be causal: x follows the tokens held.
            key_padding_mask: True for tokens that nobody else sees. Padding sees itself:
                its own states say nothing, and are numbers.

        Raises:
            InputError: If the sequence is longer than the pattern, or shapes do not fit.
        """
        check_cache(cache)
        check_tokens(self, x, self.embed_dim, None, self.least_tokens)
        past = self._past(cache)
        n, most = past + x.shape[-2], self.allowed.shape[-1]
        if n > most:
            msg = (
                f"MaskedAttention cannot run: there are {n} tokens, and the pattern is for "
                f"at most n={most}. Cut the sequence, or give the pattern of {n} tokens."
            )
            raise InputError(msg)
        heads = self._project(x, key_padding_mask, cache=cache)
        allowed = self.allowed[None, :, past:n, :n]
        if heads.padding is not None:
            own = torch.eye(n, dtype=torch.bool, device=x.device)[past:]
            allowed = allowed & (~heads.padding[:, None, None, :] | own)
        with sdpa_kernel(KERNELS):
            mixed = scaled_dot_product_attention(
                heads.q, heads.k, heads.v, attn_mask=allowed, scale=self.scale
            )
        if cache is not None:
            cache.keep()
        out = self._output(mixed, None, x)
        if not isinstance(out, Tensor):
            raise AssertionError("outputs without weights are one tensor")
        return out

    def _past(self, cache: KeyCache | None) -> int:
        """Tokens before the first of a call.

        Raises:
            InputError: If later tokens would change earlier outputs.
        """
        if cache is None:
            return 0
        if not all(part.is_causal for part in self.parts):
            msg = (
                "MaskedAttention cannot run: with a cache, tokens attend to earlier ones, "
                "but in the pattern some attend to later ones. Take pattern.causal_part()."
            )
            raise InputError(msg)
        return cache.length

    def extra_repr(self) -> str:
        """The settings."""
        kinds = ", ".join(part.kind for part in self.parts)
        return f"{self.embed_dim}, {self.num_heads}, n={self.allowed.shape[-1]}, {kinds}"


def _check_self_loops(name: str, parts: tuple[Part, ...]) -> None:
    for part in parts:
        token = part.without_self_loop()
        if token is not None:
            msg = (
                f"MaskedAttention cannot be made: in {name!r} token {token + 1} (1-based) "
                "does not attend to itself, so that padding may leave it nobody. Add the "
                "own token to every set, or use SparseAttention."
            )
            raise InputError(msg)
