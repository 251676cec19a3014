"""Attention with the terms of DeBERTa between contents and relative positions."""

from everyformer.ops.disentangled_attention.operator import (
    disentangled_attention as disentangled_attention,
)
