"""Training objectives: what a model learns from, each a frozen value with the paper it comes from.

``prepare`` turns tokenised examples into a batch, noise included; ``loss`` asks a model about it (see ``base``).

| objective | learns | examples |
|---|---|---|
| ``NextToken`` | the next token | ids, ``Document``, ``PackedDocuments`` |
| ``Masked`` | hidden words | ids, ``Text`` |
| ``TranslationMasked`` | hidden words beside a translation | ``Translation`` |
| ``MaskedPairs`` | hidden words, and how two sentences follow | ``SentencePair``, made by ``sentences`` |
| ``ReplacedTokens`` | which tokens are not the original's | ids, ``Text`` |
| ``SequenceToSequence`` | one text from another | ``SourceTarget`` |
| ``SpanCorruption`` | spans that were cut out | ids |
| ``Denoising`` | a text from its spoiled self | lists of sentences |
| ``Distillation`` | what a teacher says | those of its objective |
| ``Classify`` | the label of a text | ``Labelled`` |
| ``Tag`` | the label of each word | ``TaggedWords`` |
| ``Answer`` | where an answer stands | ``Question`` |
"""

from glassformer.data.objectives.answers import Answer as Answer
from glassformer.data.objectives.answers import Question as Question
from glassformer.data.objectives.base import IGNORE as IGNORE
from glassformer.data.objectives.base import Batch as Batch
from glassformer.data.objectives.base import Loss as Loss
from glassformer.data.objectives.base import Objective as Objective
from glassformer.data.objectives.base import Term as Term
from glassformer.data.objectives.base import add_counts as add_counts
from glassformer.data.objectives.cross_entropy import chunked_token_loss as chunked_token_loss
from glassformer.data.objectives.cross_entropy import token_losses as token_losses
from glassformer.data.objectives.denoising import Denoising as Denoising
from glassformer.data.objectives.denoising import Noise as Noise
from glassformer.data.objectives.distillation import Distillation as Distillation
from glassformer.data.objectives.labels import Classify as Classify
from glassformer.data.objectives.labels import Labelled as Labelled
from glassformer.data.objectives.labels import Tag as Tag
from glassformer.data.objectives.labels import TaggedWords as TaggedWords
from glassformer.data.objectives.masked import Masked as Masked
from glassformer.data.objectives.masked import Translation as Translation
from glassformer.data.objectives.masked import TranslationMasked as TranslationMasked
from glassformer.data.objectives.masking import Masking as Masking
from glassformer.data.objectives.masking import Vocabulary as Vocabulary
from glassformer.data.objectives.next_token import Document as Document
from glassformer.data.objectives.next_token import NextToken as NextToken
from glassformer.data.objectives.next_token import PackedDocuments as PackedDocuments
from glassformer.data.objectives.next_token import with_code as with_code
from glassformer.data.objectives.paired import MaskedPairs as MaskedPairs
from glassformer.data.objectives.replaced import GeneratorAndDiscriminator as GeneratorAndDiscriminator
from glassformer.data.objectives.replaced import ReplacedTokens as ReplacedTokens
from glassformer.data.objectives.rows import Padding as Padding
from glassformer.data.objectives.rows import Text as Text
from glassformer.data.objectives.sentences import Rows as Rows
from glassformer.data.objectives.sentences import SentencePair as SentencePair
from glassformer.data.objectives.sentences import next_sentence_pairs as next_sentence_pairs
from glassformer.data.objectives.sentences import sentence_order_pairs as sentence_order_pairs
from glassformer.data.objectives.sequence_to_sequence import SequenceToSequence as SequenceToSequence
from glassformer.data.objectives.sequence_to_sequence import SourceTarget as SourceTarget
from glassformer.data.objectives.sequence_to_sequence import with_languages as with_languages
from glassformer.data.objectives.spans import SpanCorruption as SpanCorruption
from glassformer.data.objectives.spans import Spans as Spans
