"""An attention layer of your own.

Judge it: `everyformer check-module examples/my_attention.py:MyAttention`.

Its logits know all positions, and yet equal tokens stay equal: REFUTED.
"""

import torch
from torch import nn


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
