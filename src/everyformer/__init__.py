"""Turns a function into Transformer weights; the theory of expressivity, executable."""

from everyformer import targets as targets
from everyformer.certify.bound import Bound as Bound
from everyformer.construct.pipeline import Built as Built
from everyformer.construct.pipeline import construct as construct
from everyformer.construct.plan import Plan as Plan
from everyformer.construct.plan import make_plan as plan
from everyformer.model.network import Network as Network
from everyformer.model.network import load as load
from everyformer.targets.target import Target as Target
