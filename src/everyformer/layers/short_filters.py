"""The sum of all tokens by separable convolutions whose filters are short.

A filter of length K meets l = (K - 1) // 2 tokens on the left of a token, and at least as
many on the right. So a token hears from afar in steps: two registers carry x_c from token
to token to the right, l tokens a layer, and two carry it to the left.

    layer 0        x_j += W x_j in registers that W reads; L_j = L'_j = R_j = R'_j := x_jc
    layer t >= 1   x_j += W_c (sum_{k <= l} L_{j-k} + sum_{k <= l} R_{j+k})
                   L_j, L'_j := L'_{j-l};    R_j, R'_j := R'_{j+l}    (new registers)

**Lemma.** After layers 0 .. m, m = ceil((n - 1)/l), x_j is x_j + W sum_i x_i.

Proof. By induction L_j of layer t is x_{j-(t-1)l, c}, or 0 where there is no such token: a
filter that looks to the left meets zeros before the first token, and what it makes of them
are zeros. So layer t adds W_c x_{j-k,c} for the distances k = (t-1) l + 1 .. tl, and all
layers those for k = 1 .. ml; ml >= n - 1 reaches the first token from the last one. The
right is the same, and layer 0 adds the token itself: each token once. ∎

Registers are new in each layer, so that a skip connection adds to 0: copies are exact, and
in float64 nothing rounds but the terms of the sum, as in an averaging head.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from everyformer.errors import InputError
from everyformer.layers.mixers import SeparableConvolution
from everyformer.layers.residual import Residual
from everyformer.papers import YUN2020, implements

CARRIERS = 4
"""Registers that carry a coordinate in one layer: L, L', R, R'."""


@implements(YUN2020, "Equation 6")
class ShortFilters(nn.Module):
    """x_j + W sum_i x_i for every token j, by a stack of separable convolutions.

    Every layer has a skip connection. The registers that carry tokens are there inside
    alone, zeros at first, and are dropped at the end.

    Args:
        weight: W.
        seq_len: n.
        filter_length: K, at least 3.

    Raises:
        InputError: If the filters are too short for tokens to hear both ends.

    Example:
        >>> x = torch.arange(8.0, dtype=torch.float64).reshape(1, 4, 2)
        >>> sums = ShortFilters(torch.eye(2, dtype=torch.float64), 4, filter_length=3)
        >>> torch.equal(sums(x), x + x.sum(-2, keepdim=True))
        True
        >>> len(sums.layers)
        4
    """

    def __init__(
        self, weight: Float[Tensor, "w w"], seq_len: int, filter_length: int
    ) -> None:
        super().__init__()
        if filter_length < 3:
            msg = (
                f"filter_length={filter_length}: such a filter meets no token on the left, "
                "so the last token never hears the first, whatever the depth. Use 3 or "
                f"more; from {2 * seq_len - 1} on one layer is enough."
            )
            raise InputError(msg)
        self.seq_len, self.filter_length = seq_len, filter_length
        self.width = len(weight)
        reach = (filter_length - 1) // 2
        moves = -(-(seq_len - 1) // reach)
        read = [int(c) for c in weight.any(0).nonzero()]
        inner = self.width + CARRIERS * len(read) * moves
        self.inner = inner
        self.layers = nn.ModuleList()

        def carriers(layer: int, place: int) -> list[int]:
            """L, L', R, R' of a register, those that a layer reads."""
            first = self.width + CARRIERS * (len(read) * (layer - 1) + place)
            return list(range(first, first + CARRIERS))

        for layer in range(moves + 1):
            taps = torch.zeros(inner, filter_length, dtype=weight.dtype)
            W_O = torch.zeros(inner, inner, dtype=weight.dtype)
            for place, c in enumerate(read):
                after = carriers(layer + 1, place) if layer < moves else []
                if layer == 0:
                    taps[c, reach] = 1
                    W_O[: self.width, c] = weight[:, c]
                    W_O[after, c] = 1
                    continue
                left, left_copy, right, right_copy = carriers(layer, place)
                taps[left, :reach] = 1
                taps[right, reach + 1 : 2 * reach + 1] = 1
                taps[left_copy, 0] = taps[right_copy, 2 * reach] = 1
                W_O[: self.width, left] = W_O[: self.width, right] = weight[:, c]
                W_O[after[:2], left_copy] = 1
                W_O[after[2:], right_copy] = 1
            mixer = SeparableConvolution(
                inner, filter_length, bias=False, dtype=weight.dtype
            )
            with torch.no_grad():
                mixer.filters.copy_(taps)
                mixer.out_proj.weight.copy_(W_O)
            self.layers.append(Residual(mixer))

    def forward(self, x: Float[Tensor, "*batch n w"]) -> Float[Tensor, "*batch n w"]:
        """The stack, with registers that carry beside those of x."""
        wide = nn.functional.pad(x, (0, self.inner - self.width))
        for layer in self.layers:
            wide = layer(wide)
        return wide[..., : self.width]
