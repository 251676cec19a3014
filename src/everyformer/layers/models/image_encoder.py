"""An encoder for images: patches, blocks with shifted windows, the mean, a class."""

from dataclasses import asdict, dataclass
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn

from everyformer.errors import InputError, refuse
from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings import Swin
from everyformer.layers.encodings.encoding import TABLE_STD, table
from everyformer.layers.gains import Gain, HeadGain, WindowGain
from everyformer.layers.models.encoder_block import EncoderBlock
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.offsets import check_positive
from everyformer.layers.shifted_windows import ShiftedWindows

IMAGE_ENCODINGS = ("none", "ape", "swin", "swin+urpe", "swin+c1")
"""No positions; one for each patch, added once; a bias by offset in a window; a gain by
offset beside it; the control, a gain that is one number for each head."""


@dataclass(frozen=True)
class ImageConfig:
    """An encoder for square images, complete but for its numbers.

    Attributes:
        side: Pixels of a row.
        channels: Numbers of a pixel.
        levels: The largest number of a pixel; the smallest is 0.
        patch: Pixels of the side of a patch.
        window: Patches of the side of a window.
        classes: Outputs.
        dim: Width of a token, d.
        layers: Blocks; every second one has windows shifted by half a window.
        heads: Heads of attention.
        ffn: Hidden width of the feed-forward layers.
        encoding: One of `IMAGE_ENCODINGS`.

    Raises:
        InputError: If the settings do not fit; all reasons at once.
    """

    side: int
    channels: int
    levels: int
    patch: int
    window: int
    classes: int
    dim: int = 48
    layers: int = 2
    heads: int = 4
    ffn: int = 96
    encoding: str = "swin+urpe"

    def __post_init__(self) -> None:
        """Refuse settings that do not fit."""
        sizes = {name: value for name, value in asdict(self).items() if name != "encoding"}
        check_positive(**sizes)
        wrong: list[str] = []
        if self.side % self.patch:
            wrong.append(
                f"{self.side} pixels are not a multiple of patches of {self.patch}"
            )
        if self.encoding not in IMAGE_ENCODINGS:
            wrong.append(
                f"encoding={self.encoding!r} is unknown; use one of "
                f"{', '.join(IMAGE_ENCODINGS)}"
            )
        if self.dim % self.heads:
            wrong.append(f"dim={self.dim} is not a multiple of heads={self.heads}")
        refuse("Such an image encoder cannot be made", wrong)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.side // self.patch, self.side // self.patch

    def to_json(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)


class ImageEncoder(nn.Module):
    """Patches, blocks with attention in shifted windows, and the class of an image.

        states = LN(blocks(E patch + P[place])),        logits = W mean(states) + b

    P is there for "ape" alone. All blocks share the tables B and C.

    Args:
        config: All settings.

    Example:
        >>> import torch
        >>> encoder = ImageEncoder(ImageConfig(8, 1, 16, patch=1, window=4, classes=10))
        >>> encoder(torch.zeros(3, 64, dtype=torch.long)).shape
        torch.Size([3, 10])
    """

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        self.config = config
        count = config.patch**2 * config.channels
        self.patches = nn.Linear(count, config.dim)
        rows, columns = config.grid
        absolute = config.encoding == "ape"
        self.positions = table(rows * columns, config.dim) if absolute else None
        relative = config.encoding.startswith("swin")
        encoding = Swin(config.heads, config.window) if relative else None
        gain = _gain(config)
        sizes = EncoderConfig(
            2, 2, dim=config.dim, layers=config.layers, heads=config.heads,
            ffn=config.ffn, norm="pre",
        )  # fmt: skip
        self.blocks = nn.ModuleList(
            EncoderBlock(
                sizes,
                ShiftedWindows(
                    RelativeAttention(
                        config.dim, config.heads, encoding=encoding, gain=gain
                    ),
                    config.grid,
                    config.window,
                    config.window // 2 if layer % 2 else 0,
                ),
                {"device": None, "dtype": None},
            )
            for layer in range(config.layers)
        )
        self.last_norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.classes)
        nn.init.normal_(self.head.weight, std=TABLE_STD)
        nn.init.zeros_(self.head.bias)

    def forward(self, pixels: Int[Tensor, "*batch p"]) -> Float[Tensor, "*batch classes"]:
        """The logits of the classes.

        Args:
            pixels: From 0 to `levels`, row by row, the channels of a pixel together.

        Raises:
            InputError: If their number does not fit.
        """
        return self.head(self.states(pixels).mean(-2))

    def states(self, pixels: Int[Tensor, "*batch p"]) -> Float[Tensor, "*batch n d"]:
        """The state of every patch, row by row."""
        x = self.patches(self._cut(pixels))
        if self.positions is not None:
            x = x + self.positions
        for block in self.blocks:
            x = block(x)
        return self.last_norm(x)

    def _cut(self, pixels: Int[Tensor, "*batch p"]) -> Float[Tensor, "*batch n q"]:
        """Patches (*batch, n, patch patch channels), from -1 to 1."""
        config = self.config
        side, channels = config.side, config.channels
        if pixels.shape[-1] != side * side * channels:
            msg = (
                f"An image has {pixels.shape[-1]} numbers, and {side} x {side} pixels of "
                f"{channels} channels have {side * side * channels}."
            )
            raise InputError(msg)
        scaled = pixels.to(self.patches.weight.dtype) * (2 / config.levels) - 1
        rows, columns = config.grid
        image = scaled.unflatten(-1, (rows, config.patch, columns, config.patch, channels))
        return image.movedim(-4, -3).flatten(-3).flatten(-3, -2)


def _gain(config: ImageConfig) -> Gain | None:
    if config.encoding == "swin+urpe":
        return WindowGain(config.heads, config.window)
    return HeadGain(config.heads) if config.encoding == "swin+c1" else None
