"""Attention layers with relative positions, and URPE on top of any of them."""

from everyformer.layers.add_urpe import add_urpe as add_urpe
from everyformer.layers.attention import RelativeAttention as RelativeAttention
from everyformer.layers.decay import no_decay_parameters as no_decay_parameters
from everyformer.layers.decay import parameter_groups as parameter_groups
from everyformer.layers.encodings import T5 as T5
from everyformer.layers.encodings import Alibi as Alibi
from everyformer.layers.encodings import Deberta as Deberta
from everyformer.layers.encodings import Encoding as Encoding
from everyformer.layers.encodings import Graphormer as Graphormer
from everyformer.layers.encodings import Rotary as Rotary
from everyformer.layers.encodings import Shaw as Shaw
from everyformer.layers.encodings import Swin as Swin
from everyformer.layers.encodings import TransformerXL as TransformerXL
from everyformer.layers.gains import Gain as Gain
from everyformer.layers.gains import GraphGain as GraphGain
from everyformer.layers.gains import ToeplitzGain as ToeplitzGain
from everyformer.layers.gains import WindowGain as WindowGain
from everyformer.layers.gains import load_official_gain as load_official_gain
from everyformer.layers.graph import UNREACHABLE as UNREACHABLE
from everyformer.layers.graph import VIRTUAL as VIRTUAL
from everyformer.layers.graph import Graph as Graph
from everyformer.layers.graph import shortest_paths as shortest_paths
from everyformer.layers.offsets import Exact as Exact
from everyformer.layers.offsets import LogBuckets as LogBuckets
from everyformer.layers.offsets import T5Buckets as T5Buckets
