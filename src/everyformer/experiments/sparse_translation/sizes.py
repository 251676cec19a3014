"""How large the models of `sparse-translation` are, and how they are trained."""

from collections.abc import Mapping
from dataclasses import dataclass

from everyformer.experiments.cell import Size
from everyformer.layers.models.encoder_decoder import EncoderDecoderConfig
from everyformer.train.config import TrainConfig

DENSE = "100"


@dataclass(frozen=True)
class Scale:
    """Everything that a size decides.

    Attributes:
        model: Sizes; the vocabulary is set by the cell. A batch counts tokens, source and
            target together.
        lengths: Of the buckets; the last is n of the patterns.
        train: How.
        density: Of the sparse arms, in per cent of pairs at full length.
        widths: w of each arm; of random that of the strided union it is as dense as.
        translated: Test pairs that are translated, and of another domain.
        smoothing: Of labels.
        multiple: Idle words fill the vocabulary up to a multiple of this.
        pieces: Of the vocabulary, where it is made from raw files.
        evaluated: Test pairs that are scored; all by default.
    """

    model: EncoderDecoderConfig
    lengths: tuple[int, ...]
    train: TrainConfig
    density: str
    widths: Mapping[str, int]
    translated: int
    smoothing: float = 0.1
    multiple: int = 1
    pieces: int = 0
    evaluated: int | None = None


_WIDTHS = {
    "strided-union": 16, "fixed-union": 16, "star": 15, "random": 16,
    "strided-multihead": 64, "strided-sequential": 64, "fixed-multihead": 64,
    "fixed-sequential": 64,
}  # fmt: skip

SCALES: dict[Size, Scale] = {
    "smoke": Scale(
        EncoderDecoderConfig(
            vocab_size=2, max_len=32, dim=16, encoder_layers=1, decoder_layers=1, heads=2,
            ffn=32,
        ),
        lengths=(16, 32),
        train=TrainConfig(
            steps=6, batch=512, lr=1e-3, warmup=2, decay="inverse-sqrt", betas=(0.9, 0.98),
            clip=1.0, log_every=2, evaluate_every=3, checkpoint_every=3,
            evaluation_batch=1024,
        ),
        density="25",
        widths={"strided-multihead": 8, "fixed-union": 6, "star": 3, "random": 6},
        translated=6,
        evaluated=24,
    ),
    "small": Scale(
        EncoderDecoderConfig(
            vocab_size=2, max_len=64, dim=64, encoder_layers=2, decoder_layers=2, heads=4,
            ffn=256,
        ),
        lengths=(16, 32, 64),
        train=TrainConfig(
            steps=600, batch=2048, lr=2e-3, warmup=100, decay="inverse-sqrt",
            betas=(0.9, 0.98), clip=1.0, log_every=20, evaluate_every=200,
            checkpoint_every=300, evaluation_batch=4096,
        ),
        density="25",
        widths={"strided-union": 8, "fixed-union": 8, "star": 7, "random": 8},
        translated=200,
    ),
    "reduced": Scale(
        EncoderDecoderConfig(vocab_size=2),
        lengths=(64, 128, 192, 256),
        train=TrainConfig(
            steps=6000, batch=24_576, lr=1e-3, warmup=1000, decay="inverse-sqrt",
            betas=(0.9, 0.98), clip=1.0, precision="bf16", compile=True, record=True,
            log_every=50, evaluate_every=500, checkpoint_every=1000,
            evaluation_batch=49_152,
        ),
        density="13",
        widths=_WIDTHS,
        translated=1000,
        multiple=64,
    ),
    "paper": Scale(
        EncoderDecoderConfig(vocab_size=2, dim=512, ffn=2048),
        lengths=(32, 64, 128, 256),
        train=TrainConfig(
            steps=250_000, batch=65_536, lr=7e-4, warmup=8000, decay="inverse-sqrt",
            betas=(0.9, 0.98), eps=1e-9, clip=1.0, precision="bf16", compile=True,
            record=True, log_every=200, evaluate_every=5000, checkpoint_every=5000,
            evaluation_batch=65_536,
        ),
        density="13",
        widths=_WIDTHS,
        translated=3000,
        multiple=64,
        pieces=32_000,
    ),
}  # fmt: skip
