"""Triton kernels: forward, dQ, dK and dV, block diagonals, and bias and gain around them.

Shapes in comments: M queries and N keys of a tile, D the head size. Scores are in base 2:
scale and bias carry a factor log2(e). bias and gain come padded by PAD zeros at both ends,
so that a tile may read beyond the last token, as pairs (bias, gain); offset i - j is pair
i - j + n_k - 1 + PAD.

What a call does not use is compiled away: HAS_MASK and ADDS (a mask, whose numbers are
added), PACKED (several sequences), DROPS (dropout), SHIFTED (causal by another offset
than 0), GROUP (heads of queries for each head of keys). The offset grows with each token
that a cache takes in: kernels are not compiled for its values.
"""

from everyformer.ops.toeplitz_attention.kernels.backward import (
    dkv_kernel as dkv_kernel,
)
from everyformer.ops.toeplitz_attention.kernels.backward import dq_kernel as dq_kernel
from everyformer.ops.toeplitz_attention.kernels.diagonal import (
    diagonal_kernel as diagonal_kernel,
)
from everyformer.ops.toeplitz_attention.kernels.forward import (
    forward_kernel as forward_kernel,
)
from everyformer.ops.toeplitz_attention.kernels.vectors import (
    fold_kernel as fold_kernel,
)
from everyformer.ops.toeplitz_attention.kernels.vectors import (
    table_kernel as table_kernel,
)
