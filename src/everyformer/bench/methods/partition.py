"""Settings of the partition of unity that the benchmarks build with."""

from everyformer.construct.partition.method import Partition

NAME = "partition"
PLAIN = Partition()
SOFT = Partition(decay=1, margin=4)
SHARP = Partition(decay=200, margin=1)
"""With a decay so large that softmax is nearly hardmax."""
