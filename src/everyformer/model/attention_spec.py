"""What an attention layer can do, as data: layers describe themselves, checks judge."""

from dataclasses import dataclass
from typing import Any


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
            linear form of the key: what the attentive condition needs.
        value_bias: Whether the value or the output has a bias.
        feed_forward_bias: Whether feed-forward layers have biases.
        fixed_bias: Whether b_ij holds numbers that no parameter can make vanish (ALiBi).
        rotary: Whether queries and keys are rotated by their positions.
        num_heads: Number of heads.
        relative_to: What b_ij and c_ij depend on: "offset", i - j, or "graph", a distance
            of nodes.
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

    @property
    def ignores_positions(self) -> bool:
        """Whether nothing tells positions apart."""
        logits = self.bias or self.fixed_bias or self.rotary
        positional = logits or self.gain or self.value_term or self.absolute
        return not (positional or self.causal)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return dict(vars(self))


def spec_of(layer: object) -> AttentionSpec | None:
    """What a layer says of itself, if it has a method `spec` that gives one."""
    describe = getattr(layer, "spec", None)
    try:
        found = describe() if callable(describe) else None
    except TypeError:  # a method of that name for something else
        return None
    return found if isinstance(found, AttentionSpec) else None
