"""Encodings by name, with their usual settings."""

import torch

from everyformer.errors import InputError
from everyformer.layers.encodings.alibi import Alibi
from everyformer.layers.encodings.deberta import Deberta
from everyformer.layers.encodings.encoding import Encoding
from everyformer.layers.encodings.rotary import Rotary
from everyformer.layers.encodings.shaw import Shaw
from everyformer.layers.encodings.t5 import T5
from everyformer.layers.encodings.transformer_xl import TransformerXL
from everyformer.layers.offsets import T5Buckets
from everyformer.layers.torch_options import TorchOptions

NAMES = (
    "none", "t5", "t5-buckets", "alibi", "rotary", "shaw", "shaw-values", "deberta", "xl",
)  # fmt: skip
"""What `encoding_by_name` knows."""


def encoding_by_name(
    name: str,
    *,
    embed_dim: int,
    num_heads: int,
    max_len: int,
    clamp: bool = False,
    causal: bool = False,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> Encoding | None:
    """The encoding of that name for a layer of these sizes.

    Raises:
        InputError: If there is none, or it needs more than the sizes of a layer.
    """
    head_dim = embed_dim // num_heads
    if name == "none":
        return None
    made: TorchOptions = {"device": device, "dtype": dtype}
    if name == "t5":
        return T5(num_heads, max_len, clamp=clamp, **made)
    if name == "t5-buckets":
        return T5(num_heads, buckets=T5Buckets(bidirectional=not causal), **made)
    if name == "alibi":
        return Alibi(num_heads)
    if name == "rotary":
        return Rotary()
    if name in ("shaw", "shaw-values"):
        return Shaw(head_dim, max_len, values=name != "shaw", clamp=clamp, **made)
    if name == "deberta":
        return Deberta(num_heads, head_dim, max_len, clamp=clamp, **made)
    if name == "xl":
        return TransformerXL(embed_dim, num_heads, head_dim, **made)
    msg = (
        f"encoding={name!r} is not an encoding known by name. Known are: "
        f"{', '.join(NAMES)}. "
        "Pass an object for the others: Swin(...) needs its window, Graphormer(...) its "
        "largest distance."
    )
    raise InputError(msg)
