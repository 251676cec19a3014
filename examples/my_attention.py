"""Check your attention.

Can stacks of a layer of your own approximate every continuous function? In the shell:
`everyformer check-module examples/my_attention.py:MyAttention`.
"""


# %% [markdown]
# ## A layer
#
# Its logits know all positions: there is a bias for every pair. And yet equal tokens stay
# equal, since each output is a mean of equal values.

# %%
import torch
from torch import nn

import everyformer as ef
from everyformer.layers import RelativeAttention


class MyAttention(nn.Module):
    """One head with a learnable bias for every pair of positions."""

    def __init__(self, d_model: int, seq_len: int) -> None:
        """Projections, and a bias for each pair."""
        super().__init__()
        self.query = nn.Linear(d_model, d_model)
        self.key = nn.Linear(d_model, d_model)
        self.value = nn.Linear(d_model, d_model)
        self.bias = nn.Parameter(torch.zeros(seq_len, seq_len))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (batch, n, d) to the same shape."""
        logits = self.query(x) @ self.key(x).transpose(-1, -2) + self.bias
        return x + logits.softmax(dim=-1) @ self.value(x)


# %% [markdown]
# ## The way out
#
# URPE (Luo et al. 2022): multiply by a gain after the softmax, so that rows no longer sum
# to 1.


# %%
class WithGain(MyAttention):
    """The same with URPE: the weights are multiplied by a gain after the softmax."""

    def __init__(self, d_model: int, seq_len: int) -> None:
        """One number more for each offset."""
        super().__init__(d_model, seq_len)
        self.gain = nn.Parameter(torch.ones(2 * seq_len - 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (batch, n, d) to the same shape."""
        logits = self.query(x) @ self.key(x).transpose(-1, -2) + self.bias
        i = torch.arange(x.shape[-2])
        C = self.gain[i[:, None] - i + x.shape[-2] - 1]
        return x + (logits.softmax(dim=-1) * C) @ self.value(x)


class WithoutDenominator(MyAttention):
    """The same without a denominator: exp of the logits, and nothing that divides it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens of shape (batch, n, d) to the same shape."""
        logits = self.query(x) @ self.key(x).transpose(-1, -2) + self.bias
        return x + logits.exp() @ self.value(x)


def _with_values(layer: MyAttention, weight: torch.Tensor, bias: torch.Tensor) -> None:
    """Scores that do not move with the tokens, and these values."""
    with torch.no_grad():
        for one in (layer.query, layer.key):
            one.weight.zero_()
            one.bias.zero_()
        layer.value.weight.copy_(weight)
        layer.value.bias.copy_(bias)


class GainWitness:
    """Why stacks of `WithGain` are universal: the weights for both conditions.

    `checks.own_attention.realise.with_own_attention(network, GainWitness())`.
    """

    def attentive(self, width: int, seq_len: int, M: torch.Tensor) -> list[torch.nn.Module]:
        """Softmax of 0 is 1/n: with the values n M x every token gets M sum_j x_j."""
        layer = WithGain(width, seq_len).double()
        _with_values(layer, seq_len * M, torch.zeros(width))
        return [layer]

    def position_aware(self, width: int, seq_len: int, c: torch.Tensor) -> torch.nn.Module:
        """c_k = 1 for k >= 1, else 0: token i gets (i - 1)/n c."""
        layer = WithGain(width, seq_len).double()
        _with_values(layer, torch.zeros(width, width), c)
        with torch.no_grad():
            layer.gain[:seq_len] = 0.0
        return layer


class NoDenominatorWitness:
    """The same for `WithoutDenominator`, which is not a softmax at all."""

    def attentive(self, width: int, seq_len: int, M: torch.Tensor) -> list[torch.nn.Module]:
        """exp(0) = 1: every token gets M sum_j x_j."""
        layer = WithoutDenominator(width, seq_len).double()
        _with_values(layer, M, torch.zeros(width))
        return [layer]

    def position_aware(self, width: int, seq_len: int, c: torch.Tensor) -> torch.nn.Module:
        """A bias of log 2 for all earlier tokens: token i gets (n + i - 1) c, about."""
        layer = WithoutDenominator(width, seq_len).double()
        _with_values(layer, torch.zeros(width, width), c)
        with torch.no_grad():
            layer.bias.copy_(0.6931471805599453 * torch.ones_like(layer.bias).tril(-1))
        return layer


# %% [markdown]
# ## The verdicts
#
# A module is exported, and its operations are followed: what is proved then holds for all
# weights. What is refuted has a counterexample. The rest is UNKNOWN, with measurements.

# %%
if __name__ == "__main__":
    torch.manual_seed(0)
    print(ef.check(MyAttention(d_model=4, seq_len=5), 5, 4))


# %% [markdown]
# With the gain the obstacle is gone. That is not yet a proof of universality: for a layer
# of the library, whose structure is known, there is one.

# %%
if __name__ == "__main__":
    gained = ef.check(WithGain(d_model=4, seq_len=5), 5, 4)
    print(gained.verdict)
    known = RelativeAttention(4, 2, encoding="t5", gain=True, max_len=5)
    print(ef.check(known, 5, 4).lp)
