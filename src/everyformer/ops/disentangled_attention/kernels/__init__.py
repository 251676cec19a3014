"""Triton kernels: forward, dQ with d c2p, dK and dV with d p2c.

Shapes in comments: M queries and N keys of a tile, D the head size, R the number of
buckets. Scores are in base 2. `TABLE` holds four numbers, the last offset of the first
bucket, the first offset of the last bucket and these two buckets, and then the bucket of
each offset, repeated `LEAD` times at both ends, so that a tile may read beyond the last
token.

Tiles whose offsets all lie in the first or the last bucket are far: their terms are one
number for each query and one for each key. Near tiles gather theirs. Along a row of queries
or keys buckets do not decrease, so each is a run: its sum is finished where the run ends,
and stored there, once. No atomics, and no zeros to add to but those of empty buckets.
"""

from everyformer.ops.disentangled_attention.kernels.backward import (
    dkv_kernel as dkv_kernel,
)
from everyformer.ops.disentangled_attention.kernels.backward import dq_kernel as dq_kernel
from everyformer.ops.disentangled_attention.kernels.forward import (
    forward_kernel as forward_kernel,
)
