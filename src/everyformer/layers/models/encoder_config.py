"""What an encoder is, as data: sizes, a mixer for each block, positions, head."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal

from everyformer.errors import InputError, refuse
from everyformer.layers.encodings.named import NAMES

MIXERS = ("attention", "average", "bilinear", "separable", "light", "dynamic")
"""What may mix the tokens of a block."""

NORMS = ("post", "pre", "none")
HEADS = ("tied", "untied", "none")
ACTIVATIONS = ("gelu", "gelu-tanh", "relu")


@dataclass(frozen=True)
class Positions:
    """The parts of a name such as "t5+urpe".

    Attributes:
        absolute: Whether learnable positions are added to the embeddings ("ape").
        relative: The encoding inside attention, as `encoding_by_name` knows it.
        gain: Whether attention has a gain after the softmax ("urpe").
    """

    absolute: bool
    relative: str
    gain: bool

    @classmethod
    def of(cls, name: str) -> "Positions":
        """Take a name apart.

        Raises:
            InputError: If a part is unknown, or there is more than one of a kind.
        """
        parts = name.split("+")
        relative = [part for part in parts if part in NAMES and part != "none"]
        unknown = [part for part in parts if part not in (*NAMES, "ape", "urpe")]
        if unknown or len(relative) > 1 or len(set(parts)) < len(parts):
            msg = (
                f"encoding={name!r} is not an encoding of an encoder: "
                f"{', '.join(map(repr, unknown)) or 'parts that exclude each other'}. "
                f"Join at most one of {', '.join(NAMES)} with ape (absolute positions) "
                "and urpe (a gain after the softmax), such as t5+urpe."
            )
            raise InputError(msg)
        return cls("ape" in parts, relative[0] if relative else "none", "urpe" in parts)


@dataclass(frozen=True)
class EncoderConfig:
    """A BERT-style encoder, complete but for its numbers.

    Attributes:
        vocab_size: Number of token ids.
        max_len: Longest sequence; the length of bi-linear projections.
        dim: Width of a token, d.
        layers: Number of blocks.
        heads: Heads of attention; dim must be a multiple.
        ffn: Hidden width of the feed-forward layers.
        mixers: One of `MIXERS` for all blocks, or a name for each: a hybrid is a list.
        encoding: "none", "ape" (absolute positions), or the name of a relative encoding
            ("t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values", "deberta",
            "xl"), each also with "+urpe"; "urpe" alone is a gain without a bias. The
            URPE of Luo et al. 2022 is "t5+urpe".
        share_encoding: Whether all blocks share the tables of the encoding and the gain,
            as T5 and Luo et al. do.
        norm: "post" as in BERT, "pre", or "none" as in the theorems.
        embedding_norm: Whether the embeddings are normalised.
        segments: Number of segment ids; 0 for no segment embedding.
        pooler: Whether there is a dense layer with tanh on the first token.
        head: "tied": dense, activation, norm, and the embeddings as projection; "untied":
            the same with a projection of its own; "none".
        labels: Number of classes of an untied head; vocab_size by default.
        dropout: On the embeddings and on what each layer adds.
        attention_dropout: On the weights of attention; it costs the O(n) memory.
        activation: One of `ACTIVATIONS`.
        filter_length: Of convolutions.
        filters: Of a "light" convolution, or of a token in a "dynamic" one; dim must be a
            multiple.
        normalised_filters: Whether "light" filters pass a softmax (Wu et al. 2019).
        shorter: Whether "bilinear" blocks take shorter sequences, with the leading part
            of their matrix.

    Raises:
        InputError: If the settings do not fit; all reasons at once.

    Example:
        >>> EncoderConfig(100, 16, dim=8, layers=2, heads=2, ffn=16).mixer_names
        ('attention', 'attention')
    """

    vocab_size: int
    max_len: int
    dim: int = 768
    layers: int = 12
    heads: int = 12
    ffn: int = 3072
    mixers: str | tuple[str, ...] = "attention"
    encoding: str = "ape"
    share_encoding: bool = True
    norm: Literal["post", "pre", "none"] = "post"
    embedding_norm: bool = True
    segments: int = 0
    pooler: bool = False
    head: Literal["tied", "untied", "none"] = "tied"
    labels: int | None = None
    dropout: float = 0.0
    attention_dropout: float = 0.0
    activation: str = "gelu"
    filter_length: int = 128
    filters: int = 16
    normalised_filters: bool = False
    shorter: bool = False

    def __post_init__(self) -> None:
        """Refuse settings that do not fit; a list of mixers becomes a tuple."""
        if isinstance(self.mixers, list):
            object.__setattr__(self, "mixers", tuple(self.mixers))
        wrong = wrong_types(self, _KINDS) or [*_wrong_sizes(self), *_wrong_names(self)]
        refuse("Such an encoder cannot be made", wrong)

    @property
    def mixer_names(self) -> tuple[str, ...]:
        """The mixer of each block."""
        return (
            self.mixers if isinstance(self.mixers, tuple) else (self.mixers,) * self.layers
        )

    @property
    def positions(self) -> Positions:
        """The encoding, taken apart."""
        return Positions.of(self.encoding)

    @property
    def outputs(self) -> int:
        """Numbers for each token: classes, or the width without a head."""
        if self.head == "none":
            return self.dim
        return self.labels or self.vocab_size

    def to_json(self) -> dict[str, Any]:
        """A JSON object; `from_json` reads it."""
        return asdict(self) | {"mixers": list(self.mixer_names)}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "EncoderConfig":
        """The config of a JSON object.

        Raises:
            InputError: If names are unknown or missing, or values do not fit.
        """
        names = [field.name for field in fields(cls)]
        wrong = [f"{name!r} is unknown" for name in given if name not in names]
        wrong += [f"{name!r} is missing" for name in names[:2] if name not in given]
        if wrong:
            msg = (
                f"The config of an encoder cannot be read: {'; '.join(wrong)}. Its names "
                f"are: {', '.join(names)}."
            )
            raise InputError(msg)
        return cls(**given)


_KINDS: dict[tuple[type, ...], tuple[str, ...]] = {
    (int,): (
        "vocab_size", "max_len", "dim", "layers", "heads", "ffn", "segments",
        "filter_length", "filters",
    ),
    (int, type(None)): ("labels",),
    (int, float): ("dropout", "attention_dropout"),
    (bool,): (
        "share_encoding", "embedding_norm", "pooler", "normalised_filters", "shorter",
    ),
    (str,): ("encoding", "norm", "head", "activation"),
    (str, tuple): ("mixers",),
}  # fmt: skip


def wrong_types(
    config: object, kinds_of_names: Mapping[tuple[type, ...], tuple[str, ...]]
) -> list[str]:
    """What should be a whole number, a number, a name or a truth value, and is not."""
    wrong: list[str] = []
    for kinds, names in kinds_of_names.items():
        for name in names:
            value = getattr(config, name)
            misread = isinstance(value, bool) and bool not in kinds
            if misread or not isinstance(value, kinds):
                wanted = " or ".join(kind.__name__ for kind in kinds)
                wrong.append(f"{name}={value!r} should be of type {wanted}")
    return wrong


def _wrong_sizes(config: EncoderConfig) -> list[str]:
    """Sizes that are not positive or do not divide each other."""
    names = ("vocab_size", "max_len", "dim", "layers", "heads", "ffn")
    names += ("filter_length", "filters")
    sizes = {name: getattr(config, name) for name in names}
    if config.labels is not None:
        sizes["labels"] = config.labels
    wrong = [f"{name}={size} must be 1 or more" for name, size in sizes.items() if size < 1]
    if wrong:
        return wrong
    used = set(config.mixer_names)
    for name, mixers in (("heads", {"attention"}), ("filters", {"light", "dynamic"})):
        parts = sizes[name]
        if mixers & used and config.dim % parts:
            wrong.append(
                f"dim={config.dim} is not a multiple of {name}={parts}; the next multiple "
                f"is {parts * -(-config.dim // parts)}"
            )
    if len(config.mixer_names) != config.layers:
        wrong.append(
            f"mixers names {len(config.mixer_names)} mixers for layers={config.layers} "
            "blocks; give one name, or one for each block"
        )
    if config.segments < 0:
        wrong.append(f"segments={config.segments} must be 0 or more")
    wrong += [
        f"{name}={share} is not a probability below 1"
        for name, share in (
            ("dropout", config.dropout),
            ("attention_dropout", config.attention_dropout),
        )
        if not 0.0 <= share < 1.0
    ]
    return wrong


def _wrong_names(config: EncoderConfig) -> list[str]:
    """Names that are unknown or exclude each other."""
    if not all(isinstance(name, str) for name in config.mixer_names):
        return [f"mixers={config.mixers!r} should be a name or a list of names"]
    wrong: list[str] = []
    choices = {"norm": NORMS, "head": HEADS, "activation": ACTIVATIONS}
    for name, known in choices.items():
        chosen = getattr(config, name)
        if chosen not in known:
            wrong.append(f"{name}={chosen!r} is unknown; use one of {', '.join(known)}")
    wrong += [
        f"mixer {mixer!r} is unknown; use one of {', '.join(MIXERS)}"
        for mixer in dict.fromkeys(config.mixer_names)
        if mixer not in MIXERS
    ]
    if config.labels is not None and config.head != "untied":
        wrong.append(
            f"labels={config.labels} needs head='untied': a head {config.head!r} has no "
            "classes of its own"
        )
    try:
        positions = config.positions
    except InputError as error:
        return [*wrong, str(error).rstrip(".")]
    inside = positions.gain or positions.relative != "none"
    if inside and "attention" not in config.mixer_names:
        wrong.append(
            f"encoding={config.encoding!r} acts inside attention, and no block has any; "
            "use 'none' or 'ape'"
        )
    return wrong


BERT_BASE = EncoderConfig(vocab_size=30522, max_len=512, segments=2)
"""BERT_BASE with its masked-LM head (Devlin et al. 2018): 109,514,298 parameters."""
