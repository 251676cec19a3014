"""What an attention layer can do, as data: layers describe themselves, checks judge."""

import inspect
from dataclasses import dataclass
from typing import Any, Literal

Mixing = Literal["attention", "average", "positions", "offsets"]
"""What the weights of a sum over tokens depend on."""


@dataclass(frozen=True)
class AttentionSpec:
    """A family of attention layers: everything but the learned numbers.

        o_i = sum_j c_ij softmax_j(q_i k_j + b_ij) (v_j + r_ij)

    A statement about a spec is a statement about all parameters of the layer.

    Attributes:
        name: The encoding, as the command line names it.
        bias: Whether the logits have a term b_ij that depends on positions (or a product
            q_i k_j that does, as with rotary encodings).
        gain: Whether the weights are multiplied by learnable numbers c_{i-j}.
        value_term: Whether learnable vectors r_{i-j} are added to the values.
        absolute: Whether learnable positions are added to the tokens.
        special_token: Whether a learnable token is put before the others.
        normalised: Whether the weights of a row sum to 1 before the gain.
        causal: Whether a token sees only itself and earlier ones.
        query_bias: Whether the query has a bias, or the logits a learnable multiple of a
            linear form of the key: what the attentive condition needs. Of a mixer, whether
            its filters can be the same for all tokens.
        value_bias: Whether the value or the output has a bias.
        feed_forward_bias: Whether feed-forward layers have biases.
        fixed_bias: Whether b_ij holds numbers that no parameter can make vanish (ALiBi).
        rotary: Whether queries and keys are rotated by their positions.
        num_heads: Number of heads with keys and values of their own.
        relative_to: What b_ij and c_ij depend on: "offset", i - j, or "graph", a distance
            of nodes.
        content: Whether products of queries and keys enter the logits: the scale is a
            number whose inverse is one, and not 0.
        gain_rows: How many rows of C, at the length in question, differ in the shares of
            the entries they hold; None for all of them, as where every offset has an entry
            of its own; 0 where this is not known.
        fixed: Parameters that are frozen, or not free for another reason; then nothing is
            said of the kind "there are weights".
        mixing: "attention", or a mixer, y_i = sum_j a_ij x_j: "average", all weights are
            1/n; "positions", a_ij are learnable; "offsets", a_ij = w_{j-i} for the offsets
            of a filter, learnable or made from token i, and 0 elsewhere.
        filter_length: K of a filter: (K - 1) // 2 tokens on the left, the rest right.
        gated: Whether a mixer multiplies the tokens by a gate first.
        skip: Whether a mixer's input is added to its output.
    """

    name: str
    bias: bool = False
    gain: bool = False
    value_term: bool = False
    absolute: bool = False
    special_token: bool = False
    normalised: bool = True
    causal: bool = False
    query_bias: bool = True
    value_bias: bool = True
    feed_forward_bias: bool = True
    fixed_bias: bool = False
    rotary: bool = False
    num_heads: int = 2
    relative_to: str = "offset"
    content: bool = True
    gain_rows: int | None = None
    fixed: tuple[str, ...] = ()
    mixing: Mixing = "attention"
    filter_length: int = 0
    gated: bool = False
    skip: bool = False

    @property
    def ignores_positions(self) -> bool:
        """Whether nothing tells positions apart.

        A mean forgets the positions of its tokens; with a skip connection, those that
        were added to the tokens stay. A filter of length 1 sees one token.
        """
        if self.mixing == "average":
            return not (self.absolute and self.skip)
        if self.mixing == "positions":
            return False
        if self.mixing == "offsets":
            return self.filter_length == 1 and not self.absolute
        logits = self.bias or self.fixed_bias or self.rotary
        positional = logits or self.gain or self.value_term or self.absolute
        return not (positional or self.causal)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dict(vars(self))


def spec_of(layer: object, seq_len: int | None = None) -> AttentionSpec | None:
    """What a layer says of itself, if its class has a method `spec` that gives one.

    Args:
        layer: Any object.
        seq_len: The length in question, for layers that ask for it.
    """
    describe = getattr(type(layer), "spec", None)
    if not inspect.isfunction(describe):
        return None
    asks = "seq_len" in inspect.signature(describe).parameters
    try:
        found = describe(layer, seq_len) if asks else describe(layer)
    except TypeError:  # a method of that name for something else
        return None
    return found if isinstance(found, AttentionSpec) else None
