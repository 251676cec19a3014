"""Settings of the selective shifts that the benchmarks build with."""

from everyformer import patterns
from everyformer.construct.shifts.method import SelectiveShifts, SparseShifts, UrpeShifts

PLAIN = SelectiveShifts()
EQUIVARIANT = SelectiveShifts(positional=False)
EXACT = SelectiveShifts(softened=False)
URPE = UrpeShifts()
STAR = SparseShifts(patterns.star(3))
