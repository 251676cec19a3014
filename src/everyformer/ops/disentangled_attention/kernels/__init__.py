"""Triton kernels: forward, dQ with d c2p, dK and dV with d p2c.

Shapes in comments: M queries and N keys of a tile, D the head size, R the number of
buckets. Scores are in base 2. `TABLE` holds four numbers, the last offset of the first
bucket, the first offset of the last bucket and these two buckets; then the bucket of each
offset, repeated `LEAD` times at both ends, so that a tile may read beyond the last token.
`EDGES` holds where each bucket begins.

Tiles whose offsets all lie in the first or the last bucket are far: their terms are one
number for each query and one for each key. Near tiles gather theirs, and store dS, which
another kernel adds up by bucket. No atomics.
"""

from everyformer.ops.disentangled_attention.kernels.backward import (
    dkv_kernel as dkv_kernel,
)
from everyformer.ops.disentangled_attention.kernels.backward import dq_kernel as dq_kernel
from everyformer.ops.disentangled_attention.kernels.forward import (
    forward_kernel as forward_kernel,
)
from everyformer.ops.disentangled_attention.kernels.sums import sums_kernel as sums_kernel
