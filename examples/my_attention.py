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
