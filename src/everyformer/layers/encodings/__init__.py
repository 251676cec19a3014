"""Encodings of relative positions, one file each."""

from everyformer.layers.encodings.alibi import Alibi as Alibi
from everyformer.layers.encodings.alibi import alibi_slopes as alibi_slopes
from everyformer.layers.encodings.deberta import Deberta as Deberta
from everyformer.layers.encodings.encoding import Encoding as Encoding
from everyformer.layers.encodings.graphormer import Graphormer as Graphormer
from everyformer.layers.encodings.named import encoding_by_name as encoding_by_name
from everyformer.layers.encodings.rotary import Rotary as Rotary
from everyformer.layers.encodings.shaw import Shaw as Shaw
from everyformer.layers.encodings.swin import Swin as Swin
from everyformer.layers.encodings.t5 import T5 as T5
from everyformer.layers.encodings.transformer_xl import TransformerXL as TransformerXL
