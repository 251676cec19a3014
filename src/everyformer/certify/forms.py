"""All forms of network that are read: the one place that knows them."""

from everyformer.certify.averaging import form as averaging
from everyformer.certify.partition import form as partition
from everyformer.certify.reading import Read, Reading
from everyformer.certify.shifts import form as shifts
from everyformer.certify.weights import Weights

FORMS: list[Read] = [partition.read, averaging.read, shifts.read]
"""Each tells by the weights alone whether a network is of its form."""


def form_of(weights: Weights) -> Reading:
    """The network in the first form that fits; there is one for every network."""
    found = (read(weights) for read in FORMS)
    return next(reading for reading in found if reading is not None)
