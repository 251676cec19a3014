"""How large the models of `urpe-wikitext` are, and how they are trained.

The paper's size is that of the released `run_wt103_base.sh` of Transformer-XL.
"""

from dataclasses import dataclass, replace

from everyformer.data.streams import Reading
from everyformer.experiments.cell import Size
from everyformer.layers.models.transformer_xl import TransformerXLConfig
from everyformer.train.config import TrainConfig


@dataclass(frozen=True)
class Scale:
    """Everything that a size decides.

    Attributes:
        model: Sizes; vocabulary, gain and max_len are set by the cell.
        multiple: Idle words fill the vocabulary up to a multiple of this: tensor cores
            multiply 33,280 columns faster than 33,278.
        length: Tokens of a training segment.
        places: Tokens of the memory in training.
        train: How.
        readings: Of evaluations: as in training, and with a longer memory.
        most: Tokens of an evaluation, if not all.
    """

    model: TransformerXLConfig
    multiple: int
    length: int
    places: int
    train: TrainConfig
    readings: tuple[Reading, ...]
    most: int | None = None


_SMOKE = Scale(
    model=TransformerXLConfig(
        vocab_size=1, dim=32, layers=2, heads=2, head_dim=16, ffn=64, dropout=0.0
    ),
    multiple=1, length=16, places=16,
    train=TrainConfig(
        steps=10, batch=4, lr=1e-3, warmup=2, decay="cosine", clip=0.25, log_every=5,
        evaluate_every=5, checkpoint_every=5,
    ),
    readings=(Reading("nats", 16, 16), Reading("long", 256, 32, 31, same_length=True)),
    most=512,
)  # fmt: skip
_SMALL = Scale(
    model=TransformerXLConfig(
        vocab_size=1, dim=64, layers=2, heads=2, head_dim=32, ffn=128, dropout=0.0
    ),
    multiple=1, length=32, places=32,
    train=TrainConfig(
        steps=1500, batch=16, lr=1e-3, warmup=100, decay="cosine",
        clip=0.25, log_every=50, evaluate_every=500, checkpoint_every=500,
    ),
    readings=(Reading("nats", 32, 32), Reading("long", 512, 64, 63, same_length=True)),
)  # fmt: skip
_EXCERPT = replace(
    _SMALL,
    train=replace(
        _SMALL.train, steps=240, warmup=40, log_every=20, evaluate_every=40,
        checkpoint_every=120,
    ),

)  # fmt: skip
"""Its training text has 20,000 words: more updates learn it by heart."""

_REDUCED = Scale(
    model=TransformerXLConfig(
        vocab_size=1, dim=384, layers=8, heads=6, head_dim=64, ffn=1920, dropout=0.1
    ),
    multiple=64, length=128, places=128,
    train=TrainConfig(
        steps=8000, batch=64, lr=5e-4, warmup=500, decay="cosine",
        clip=0.25, precision="bf16", compile=True, record=True, log_every=50,
        evaluate_every=1000, checkpoint_every=4000,
    ),
    readings=(
        Reading("nats", 128, 128), Reading("long", 1024, 512, 255, same_length=True),
    ),
)  # fmt: skip
_WIKITEXT_2 = replace(
    _REDUCED,
    model=TransformerXLConfig(
        vocab_size=1, dim=256, layers=6, heads=4, head_dim=64, ffn=1280, dropout=0.3
    ),
    length=70, places=70,
    train=replace(_REDUCED.train, steps=12_000, batch=32, evaluate_every=2000),
    readings=(
        Reading("nats", 70, 70), Reading("long", 1024, 280, 139, same_length=True),
    ),
)  # fmt: skip
_PAPER = Scale(
    model=TransformerXLConfig(vocab_size=1, cutoffs=(20_000, 40_000, 200_000)),
    multiple=1, length=150, places=150,
    train=TrainConfig(
        steps=200_000, batch=60, lr=2.5e-4, decay="cosine", clip=0.25, precision="bf16",
        compile=True, log_every=200, evaluate_every=4000, checkpoint_every=4000,
    ),
    readings=(Reading("nats", 64, 640, 299, same_length=True),),
)  # fmt: skip

SCALES: dict[Size, dict[str, Scale]] = {
    "smoke": {"excerpt": _SMOKE, "wikitext-2": _SMOKE},
    "small": {"excerpt": _EXCERPT, "wikitext-2": _SMALL},
    "reduced": {"enwiki-words": _REDUCED, "wikitext-2": _WIKITEXT_2},
    "paper": {"wikitext-103": _PAPER},
}
"""By size and text."""
