"""The shape of a Transformer of T, Omega_U or ST^{h,m,r}, before any weight."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from everyformer.numerics.limits import LONG, format_count
from everyformer.papers import YUN2020, implements
from everyformer.patterns.pattern import Pattern

AttentionKind = Literal["dense", "urpe"]
"""Plain attention, or weights times a Toeplitz matrix C (Luo et al. 2022)."""

Normaliser = Literal["softmax", "hardmax"]
Activation = Literal["relu", "piecewise-linear"]


@implements(YUN2020, "Equation 3")
@dataclass(frozen=True)
class ArchitectureSpec:
    """Sizes and kinds of layer of T^{h,m,r}, T_P^{h,m,r}, Omega_U^{h,m,r} or ST^{h,m,r}.

    Attributes:
        seq_len: n, the number of tokens.
        d_model: d, the width of a token.
        num_heads: h.
        d_head: m.
        d_ff: r, the hidden width of the feed-forward layer.
        normaliser: "softmax", or "hardmax" in the modified class.
        activation: "relu", or "piecewise-linear" (the set Phi) in the modified class.
        positional: True when an encoding E is added to the input (T_P).
        attention: "urpe" when every head has a gain and a bias of the value (Omega_U).
        width: w, the registers of a token inside the network, where there is a read-in and
            a read-out; None for d_model and neither of them.
        num_prefix: P, constant tokens that stand before the sequence.
        pattern: A^1, .., A^p of a sparse Transformer (ST): in block b every token attends
            to the tokens of A^((b - 1) mod p + 1). None where it attends to all.
    """

    seq_len: int
    d_model: int
    num_heads: int
    d_head: int
    d_ff: int
    normaliser: Normaliser = "softmax"
    activation: Activation = "relu"
    positional: bool = False
    attention: AttentionKind = "dense"
    width: int | None = None
    num_prefix: int = 0
    pattern: Pattern | None = None

    @property
    def inner_width(self) -> int:
        """The width of the blocks: w, or d."""
        return self.d_model if self.width is None else self.width

    @property
    def attention_parameters(self) -> int:
        """Numbers in one attention layer: W_Q, W_K, W_V, W_O, b_Q; with URPE b_V and C."""
        d, h, m = self.inner_width, self.num_heads, self.d_head
        return h * (4 * m * d + m) + self.urpe_parameters

    @property
    def urpe_parameters(self) -> int:
        """Of these, what only URPE has: the biases b_V and the 2n - 1 entries of each C."""
        if self.attention == "dense":
            return 0
        return self.num_heads * (self.d_head + 2 * self.seq_len - 1)

    @property
    def feed_forward_parameters(self) -> int:
        """Numbers in one feed-forward layer: W_1, b_1, W_2, b_2."""
        d, r = self.inner_width, self.d_ff
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
        name = "Omega_U" if self.attention == "urpe" else "T"
        mark = "_P" if self.positional else ""
        if self.pattern is not None:
            name, mark = "ST", ""  # X -> g(X + E) by definition
        bar = "" if self.normaliser == "softmax" else "modified "
        inside = "" if self.width is None else f" of width {self.width}"
        sizes = map(_short, (self.num_heads, self.d_head, self.d_ff))
        return f"{bar}{name}{mark}^{{{','.join(sizes)}}}{inside}"

    @property
    def class_in_words(self) -> str:
        """What the name of the class means.

        Example:
            >>> ArchitectureSpec(3, 1, 2, 1, 4, "softmax", "relu", False).class_in_words
            'Transformers with 2 heads of size 1 and 4 hidden units in each block'
        """
        kind = "sparse Transformers" if self.pattern is not None else "Transformers"
        heads, units = _short(self.num_heads), _short(self.d_ff)
        heads = f"{heads} head{'s' * (self.num_heads > 1)} of size {self.d_head}"
        parts = [f"{heads} and {units} hidden unit{'s' * (self.d_ff > 1)} in each block"]
        if self.attention == "urpe":
            parts.append("attention weights times a gain of the offset (URPE)")
        if self.positional:
            parts.append("positions E added to the input")
        if self.width is not None:
            parts.append(f"{self.width} registers for each token")
        if self.normaliser == "hardmax":
            parts.append("hardmax for softmax, three-piece activations for ReLU")
        return f"{kind} with {'; '.join(parts)}"

    def to_json(self) -> dict[str, Any]:
        """A JSON object; without what is as in files written before it existed."""
        values = asdict(replace(self, pattern=None))
        del values["pattern"]
        if self.pattern is not None:
            values["pattern"] = self.pattern.to_json()
        if self.attention == "dense":
            del values["attention"]
        if self.width is None:
            del values["width"], values["num_prefix"]
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "ArchitectureSpec":
        """The inverse of `to_json`."""
        read = dict(values)
        if "pattern" in read:
            read["pattern"] = Pattern.from_json(read["pattern"])
        return cls(**read)


def _short(size: int) -> str:
    """A size without separators, or a power of ten."""
    return str(size) if size < LONG else format_count(size)
