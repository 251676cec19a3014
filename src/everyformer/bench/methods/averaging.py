"""Settings of averaging that the benchmarks build with."""

from everyformer.construct.averaging.method import Averaging

NAME = "averaging"
WIDE = Averaging()
NARROW = Averaging("narrow")
TWO_STEP = Averaging("two-step")
