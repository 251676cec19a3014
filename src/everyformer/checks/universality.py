"""From properties to universality, in a distance that is named.

L^p and the sup norm differ: Theorem 2 of Luo et al. 2022 is about the sup norm, the
theorems that prove universality are about L^p. Constant sequences have measure zero.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everyformer.checks.finding import Finding, apart
from everyformer.model.attention_spec import AttentionSpec
from everyformer.papers import LUO2022, YUN2020, YUN2020B, Citation, implements
from everyformer.verdict import Verdict

Findings = Mapping[str, Finding]

(
    PERMUTATIONS,
    EQUAL,
    ATTENTIVE,
    POSITION_AWARE,
    ZERO,
    APART,
    REVERSAL,
    AFFINE,
    AFFINE_ON_EQUAL,
) = (
    "EF001",
    "EF003",
    "EF004",
    "EF005",
    "EF007",
    "EF009",
    "EF010",
    "EF011",
    "EF012",
)
WAYS_OUT = (
    "a gain after the softmax (URPE), relative terms in the values, absolute positions, a "
    "special token with an encoding or a causal mask, or no denominator"
)


@dataclass(frozen=True)
class Universality:
    """Whether stacks of the layer approximate all continuous functions, in one distance.

    Attributes:
        distance: "L^p" or "sup norm".
        verdict: PROVED, REFUTED or UNKNOWN.
        reason: In words.
        source: The theorem.
        target: For REFUTED: a function that cannot be approximated.
        lower_bound: For REFUTED: what its distance is at least, whatever the weights, in
            L^2 over the unit cube or in the sup norm of the Frobenius norm.
        way_out: For REFUTED: what would help.
    """

    distance: str
    verdict: Verdict
    reason: str
    source: str = ""
    target: str = ""
    lower_bound: float | None = None
    way_out: str = ""

    @property
    def where(self) -> str:
        """The distance, in a sentence."""
        return "in the sup norm" if self.distance == "sup norm" else f"in {self.distance}"

    def claim(self, subject: str) -> str:
        """The claim that is judged: what follows is the verdict."""
        return f"{subject} is universal {self.where}"

    def __str__(self) -> str:
        """In the distance, with the reason."""
        return f"{self.where}: {self.why}"

    @property
    def why(self) -> str:
        """By which theorem, and with the target that refutes it."""
        text = self.reason
        if self.source:
            text += f" [{self.source}]"
        if self.target:
            where = "L^2" if self.distance == "L^p" else "the sup norm"
            text += f". Target: {self.target}; the distance in {where} is at least "
            text += f"{self.lower_bound:.4g}, whatever the weights"
        if self.way_out:
            text += f". Ways out: {self.way_out}"
        return text

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**vars(self), "verdict": str(self.verdict)}


def verdict_of(lp: Universality, sup: Universality) -> Verdict:
    """PROVED in L^p, REFUTED in one of the distances, or UNKNOWN."""
    if lp.verdict is Verdict.PROVED:
        return Verdict.PROVED
    if Verdict.REFUTED in (lp.verdict, sup.verdict):
        return Verdict.REFUTED
    return Verdict.UNKNOWN


@implements(YUN2020B, "Assumption 1")
def never_hears(distance: str, pair: tuple[int, int], more: str = "") -> Universality:
    """REFUTED: token k never hears token j, whatever the depth.

    For f(X)_k = x_j, g(X)_k does not depend on x_j. So on [0, 1]^(n x d) the L^2 distance
    is at least that of x_j from its mean, 1/sqrt(12), and that in the sup norm 1/2.

    Args:
        distance: "L^p" or "sup norm".
        pair: k and j, 0-based.
        more: Further ways out.
    """
    k, j = (token + 1 for token in pair)
    return Universality(
        distance,
        Verdict.REFUTED,
        apart(*pair),
        str(Citation(YUN2020B, "Assumption 1")),
        f"f(X)_{k} = x_{j}",
        12**-0.5 if distance == "L^p" else 0.5,
        f"a connection through which token {j} reaches token {k}{more}",
    )


def affine_alone(distance: str) -> Universality:
    """REFUTED: a stack of affine layers, without feed-forward layers, is affine.

    For f(X)_11 = |x_11 - 1/2| on [0, 1]^(n x d): the mean of an affine g(X)_11 over all
    other coordinates is a + b x_11, and not farther from f. By symmetry b = 0 is best, and
    int (|x - 1/2| - 1/4)^2 dx = 1/12 - 1/16 = 1/48. In the sup norm f - a - b x is
    at least 1/4 at one of 0, 1/2, 1, where f - 1/4 alternates.
    """
    return Universality(
        distance,
        Verdict.REFUTED,
        "the layer is affine, and so is every stack of it",
        "docs/rules.md, EF011",
        "f(X)_11 = |x_11 - 1/2|",
        48**-0.5 if distance == "L^p" else 0.25,
        "feed-forward layers, a gate, or weights that move with the tokens",
    )


def affine_on_equal_tokens(n: int) -> Universality:
    """REFUTED in the sup norm: stacks without feed-forward layers are affine at 1 v^T.

    For f(X)_i1 = |x_i1 - 1/2| at X = 1 (t, 0, .., 0), t in [0, 1]: the first column of g(X)
    is a + b t in all n rows, at least 1/4 away from f at one of t = 0, 1/2, 1. Permutations
    of the tokens commute with f.
    """
    return Universality(
        "sup norm",
        Verdict.REFUTED,
        "on equal tokens the layer is affine, and so is every stack of it",
        "docs/rules.md, EF012",
        "f(X)_i1 = |x_i1 - 1/2|, at equal tokens",
        n**0.5 / 4,
        "feed-forward layers; a gate, or what parts equal tokens",
    )


def mixers_in_lp(spec: AttentionSpec) -> Universality:
    """Universal in L^p, for layers that add tokens with weights that do not move.

    PROVED (docs/mixers.md, "Universal without attention") for free matrices of positions,
    filters of length 3 or more, and for means with a skip connection and positions. Filters
    that tokens make are covered where these can be the same for all tokens.
    """

    def unknown(reason: str) -> Universality:
        return Universality("L^p", Verdict.UNKNOWN, reason)

    if not spec.feed_forward_bias:
        return unknown("the proof needs biases of the feed-forward layers")
    if spec.special_token or spec.causal:
        return unknown("special tokens and causal masks are not covered")
    if spec.fixed:
        return unknown(f"these are not free, and the proof needs all weights: {spec.fixed}")
    if not spec.query_bias:
        return unknown("filters made from tokens need a bias to be the same for all tokens")
    free = {
        "positions": True,
        "offsets": spec.filter_length >= 3,
        "average": spec.absolute and spec.skip,
    }
    if not free.get(spec.mixing):
        return unknown("no theorem covers it")
    how = {
        "positions": "a free matrix of positions numbers all sequences and tokens",
        "offsets": "filters number what a token sees, and stacks of them see everything",
        "average": "a mean numbers all sequences, and positions are added to the tokens",
    }
    return Universality("L^p", Verdict.PROVED, how[spec.mixing], "docs/mixers.md")


def _proved(findings: Findings, code: str) -> bool:
    return findings[code].verdict is Verdict.PROVED


@implements(YUN2020, "Theorem 3")
def in_lp(
    spec: AttentionSpec | None,
    findings: Findings,
    n: int,
    doubt: str = "",
    *,
    alone: bool = False,
) -> Universality:
    """Universal in L^p, 1 <= p < infinity, on a box in R^(n x d)?

    REFUTED if some token never hears some other, such as a later one: `never_hears`.

    REFUTED for permutation equivariant layers: f = (1, 0, .., 0) in the first coordinate;
    the mean over all permutations of P^-1 f(P X) is 1/n in each row, so the L^2 distance is
    at least sqrt((n-1)/n).

    REFUTED where reversing the tokens reverses the output: the mean of f and its mirror
    image is what comes nearest to both, at sqrt(1/2) (EF010).

    PROVED with absolute positions (Yun et al. 2020, Theorem 3), or where both conditions of
    Luo et al. 2022, Theorem 3, hold; feed-forward layers and values need biases.

    Args:
        spec: What is known of the layer by its structure; None for a black box.
        findings: One for each rule, by code.
        n: The length.
        doubt: Why a spec that there is does not count.
        alone: Whether stacks are without feed-forward layers.
    """
    pair = findings[APART].pair
    if pair is not None:
        return never_hears("L^p", pair)
    if _proved(findings, PERMUTATIONS):
        return Universality(
            "L^p",
            Verdict.REFUTED,
            "permutations of the tokens commute with every such network",
            str(Citation(YUN2020, "Claim 1")),
            "f(X) = (1, 0, .., 0)",
            ((n - 1) / n) ** 0.5,
            "positions, absolute or relative with a gain after the softmax",
        )
    if _proved(findings, REVERSAL):
        return Universality(
            "L^p",
            Verdict.REFUTED,
            "reversing the tokens reverses the output of every such network",
            "docs/rules.md, EF010",
            "f(X) = (1, 0, .., 0)",
            0.5**0.5,
            "entries of their own for offsets i - j and j - i, in the gain or the bias",
        )
    if alone and _proved(findings, AFFINE):
        return affine_alone("L^p")
    if alone:
        reason = "the theorems have feed-forward layers"
        if _proved(findings, AFFINE_ON_EQUAL):
            reason += "; equal tokens, on which it is affine, have measure zero"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    if spec is None and doubt:
        reason = f"its spec() proves nothing: {doubt}"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    if spec is None:
        nearly = findings[APART].nearly
        reason = nearly or "a black box is not proved by trials"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    if spec.mixing != "attention":
        return mixers_in_lp(spec)
    if spec.num_heads < 2:
        reason = "the theorems have two heads with keys and values of their own"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    if not (spec.feed_forward_bias and spec.value_bias):
        return Universality(
            "L^p",
            Verdict.UNKNOWN,
            "the proofs need biases of values and feed-forward layers",
        )
    if not _proved(findings, ATTENTIVE):
        reason = f"not attentive: {findings[ATTENTIVE].reason}"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    if spec.fixed:
        reason = f"these are not free, and theorems need all weights: {spec.fixed}"
        return Universality("L^p", Verdict.UNKNOWN, reason)
    if spec.absolute:
        return Universality(
            "L^p",
            Verdict.PROVED,
            "attentive, and positions are added to the tokens",
            str(Citation(YUN2020, "Theorem 3")),
        )
    if _proved(findings, POSITION_AWARE):
        return Universality(
            "L^p",
            Verdict.PROVED,
            "attentive and position-aware",
            str(Citation(LUO2022, "Proposition 4")),
        )
    return Universality("L^p", Verdict.UNKNOWN, "no theorem covers it")


def keeps_zero(spec: AttentionSpec | None, *, alone: bool = False) -> bool:
    """Whether g(0) = 0 for the layer says so of its stacks: no other layer has a bias.

    Feed-forward layers have biases, unless a spec says that they are like the layer: with
    W_2 = 0 and b_2 = 1 one of them makes 1 of 0.

    Args:
        spec: What is known of the layer by its structure; None for a black box.
        alone: Whether stacks are without feed-forward layers.
    """
    return alone or (spec is not None and not spec.feed_forward_bias)


@implements(LUO2022, "Theorem 2")
def in_sup(
    lp: Universality,
    findings: Findings,
    n: int,
    *,
    zero_stays: bool,
    alone: bool = False,
) -> Universality:
    """Universal in the sup norm?

    REFUTED where equal tokens stay equal: for the constant T with T_11 = a, else 0, and any
    y, ||T - 1 y^T||_F^2 >= a^2 (n-1)/n, by the mean over the rows of the first column. And
    where zero goes to zero in stacks, too (`keeps_zero`): the constant 1. And where L^p is
    refuted, unless the distance at equal tokens is larger. Without feed-forward layers
    (`alone`), what is affine on equal tokens is refuted by that, with a target that needs
    no positions.
    """
    pair = findings[APART].pair
    if pair is not None:
        return never_hears("sup norm", pair)
    at_equal_tokens = ((n - 1) / n) ** 0.5 if _proved(findings, EQUAL) else 0.0
    if lp == affine_alone("L^p") and not at_equal_tokens:
        return affine_alone("sup norm")
    if alone and _proved(findings, AFFINE_ON_EQUAL):
        return affine_on_equal_tokens(n)
    if lp.verdict is Verdict.REFUTED and (lp.lower_bound or 0.0) >= at_equal_tokens:
        return Universality(
            "sup norm",
            Verdict.REFUTED,
            lp.reason,
            lp.source,
            lp.target,
            lp.lower_bound,
            lp.way_out,
        )
    if at_equal_tokens:
        return Universality(
            "sup norm",
            Verdict.REFUTED,
            "equal tokens stay equal",
            str(Citation(LUO2022, "Theorem 2")),
            "f(X)_11 = 1, else 0, at equal tokens",
            at_equal_tokens,
            WAYS_OUT,
        )
    if zero_stays and _proved(findings, ZERO):
        return Universality(
            "sup norm",
            Verdict.REFUTED,
            "zero goes to zero: biases are missing",
            findings[ZERO].source,
            "f(X) = 1, at X = 0",
            1.0,
            "biases of the values or of the feed-forward layers",
        )
    return Universality("sup norm", Verdict.UNKNOWN, "the theorems are about L^p")
