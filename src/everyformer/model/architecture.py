"""The shape of a Transformer of the class T^{h,m,r}, before any weight is known."""

from dataclasses import dataclass
from typing import Literal

from everyformer.papers import YUN2020, implements

Normaliser = Literal["softmax", "hardmax"]
Activation = Literal["relu", "piecewise-linear"]


@implements(YUN2020, "Equation 3")
@dataclass(frozen=True)
class ArchitectureSpec:
    """Sizes and kinds of layer of T^{h,m,r} (or T_P^{h,m,r}).

    Attributes:
        seq_len: n, the number of tokens.
        d_model: d, the width of a token.
        num_heads: h.
        d_head: m.
        d_ff: r, the hidden width of the feed-forward layer.
        normaliser: "softmax", or "hardmax" in the modified class.
        activation: "relu", or "piecewise-linear" (the set Phi) in the modified class.
        positional: True when an encoding E is added to the input (T_P).
    """

    seq_len: int
    d_model: int
    num_heads: int
    d_head: int
    d_ff: int
    normaliser: Normaliser
    activation: Activation
    positional: bool

    @property
    def attention_parameters(self) -> int:
        """Numbers in one attention layer: W_Q, W_K, W_V, W_O and b_Q of every head."""
        d, h, m = self.d_model, self.num_heads, self.d_head
        return h * (4 * m * d + m)

    @property
    def feed_forward_parameters(self) -> int:
        """Numbers in one feed-forward layer: W_1, b_1, W_2, b_2."""
        d, r = self.d_model, self.d_ff
        return 2 * r * d + r + d

    @property
    def block_parameters(self) -> int:
        """Numbers in one block; O(d), as Section 5.4 of Yun et al. 2020 counts them."""
        return self.attention_parameters + self.feed_forward_parameters

    @property
    def class_name(self) -> str:
        """The name of the class in the paper's notation.

        Example:
            >>> ArchitectureSpec(3, 1, 2, 1, 4, "softmax", "relu", False).class_name
            'T^{2,1,4}'
        """
        mark = "_P" if self.positional else ""
        bar = "" if self.normaliser == "softmax" else "modified "
        return f"{bar}T{mark}^{{{self.num_heads},{self.d_head},{self.d_ff}}}"
