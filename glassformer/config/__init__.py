"""The config of a model: frozen, nested dataclasses that describe everything but the weights.

Its values are called *facts*, and each has a path, such as ``decoder.attention.heads``. The *type* of a fact selects a
mechanism (``score_bias=Alibi()``); ``None`` means that there is none. The *family* of a model is encoder, decoder or
encoder-decoder, by the stacks that it has. ``to_dict`` and ``from_dict`` convert facts to JSON and back. Standard
library only: reading a config must not import a tensor library.
"""

from glassformer.config.course import EncoderConfig as EncoderConfig
from glassformer.config.facts import change as change
from glassformer.config.facts import from_dict as from_dict
from glassformer.config.facts import get_fact as get_fact
from glassformer.config.facts import leaves as leaves
from glassformer.config.facts import merge as merge
from glassformer.config.facts import to_dict as to_dict
from glassformer.config.model import Init as Init
from glassformer.config.model import ModelConfig as ModelConfig
from glassformer.config.model import Tokens as Tokens
from glassformer.config.parts import Attention as Attention
from glassformer.config.parts import Convolution as Convolution
from glassformer.config.parts import Embed as Embed
from glassformer.config.parts import EmbeddingHead as EmbeddingHead
from glassformer.config.parts import FeedForward as FeedForward
from glassformer.config.parts import Head as Head
from glassformer.config.parts import LMHead as LMHead
from glassformer.config.parts import MaskDecoder as MaskDecoder
from glassformer.config.parts import Norm as Norm
from glassformer.config.parts import PretrainingHead as PretrainingHead
from glassformer.config.parts import Stack as Stack
from glassformer.config.parts import TaskHead as TaskHead
from glassformer.config.positions import Alibi as Alibi
from glassformer.config.positions import BlockSparse as BlockSparse
from glassformer.config.positions import BucketBias as BucketBias
from glassformer.config.positions import Disentangled as Disentangled
from glassformer.config.positions import InputPosition as InputPosition
from glassformer.config.positions import Rotary as Rotary
from glassformer.config.positions import RotaryScaling as RotaryScaling
from glassformer.config.shapes import buffers as buffers
from glassformer.config.shapes import count as count
from glassformer.config.shapes import shapes as shapes
