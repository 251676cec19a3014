"""Functions on tensors, fast: one folder for each, with its derivation."""

from everyformer.ops.toeplitz_attention import toeplitz_attention as toeplitz_attention
