"""Models of the library transformers on our operator, and with gains.

transformers is imported only for models that come from it. What a user types is in
docs/hugging_face.md.
"""

from everyformer.layers.hugging_face.function import GAINED as IMPLEMENTATION
from everyformer.layers.hugging_face.registering import register
from everyformer.layers.hugging_face.speed import SpeedUp, restore, speed_up
from everyformer.layers.hugging_face.switch import is_hugging_face

__all__ = [
    "IMPLEMENTATION",
    "SpeedUp",
    "is_hugging_face",
    "register",
    "restore",
    "speed_up",
]
