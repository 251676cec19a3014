"""Causal encoders that differ in their positions alone, and run at any length."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from everyformer.layers.attention import RelativeAttention
from everyformer.layers.encodings import T5, Alibi, Encoding, Rotary
from everyformer.layers.gains import Gain, ToeplitzGain
from everyformer.layers.models.encoder import Encoder
from everyformer.layers.models.encoder_config import EncoderConfig
from everyformer.layers.offsets import T5Buckets

BUCKETS = 32
"""As in T5; the last one begins within the length of training, so that all are trained."""

Parts = tuple[Encoding | None, Gain | None]


def _t5(heads: int, n: int) -> T5:
    return T5(heads, buckets=buckets(n))


def buckets(n: int) -> T5Buckets:
    """The buckets of T5 for offsets to the past, those from n on in the last one."""
    return T5Buckets(min(BUCKETS, n), n, bidirectional=False)


ARMS: dict[str, Callable[[int, int], Parts]] = {
    "ape": lambda heads, n: (None, None),
    "t5": lambda heads, n: (_t5(heads, n), None),
    "alibi": lambda heads, n: (Alibi(heads), None),
    "rotary": lambda heads, n: (Rotary(), None),
    "urpe-clamped": lambda heads, n: (_t5(heads, n), ToeplitzGain(heads, n, clamp=True)),
    "urpe-bucketed": lambda heads, n: (
        _t5(heads, n),
        ToeplitzGain(heads, buckets=buckets(n)),
    ),
}
"""Absolute positions; relative ones; T5 with a gain whose offsets beyond the length of
training are clipped to it, or fall into the last bucket."""

RELATIVE = ("t5", "alibi", "rotary")
UNIVERSAL = ("urpe-clamped", "urpe-bucketed")


def encoder_of(config: EncoderConfig, arm: str, n: int) -> Encoder:
    """The encoder of an arm: all layers share their tables, made for sequences of n.

    Absolute positions have a row for every position up to config.max_len; those beyond n
    are never trained, which is what the slides hold against them.
    """
    encoding, gain = ARMS[arm](config.heads, n)
    mixers = [
        RelativeAttention(
            config.dim, config.heads, encoding=encoding, gain=gain, causal=True
        )
        for _ in range(config.layers)
    ]
    absolute = "ape" if arm == "ape" else "none"
    return Encoder(replace(config, encoding=absolute), mixers=mixers)


def described(config: EncoderConfig, arm: str, n: int) -> dict[str, Any]:
    """What the model is, as JSON holds it; arms are told apart by `arm` alone."""
    told = {**config.to_json(), "encoding": "by arm", "causal": True, "tables_for": n}
    return {**told, "mixers": arm}
