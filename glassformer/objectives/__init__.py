"""Training objectives, one module each: its examples, its batches (with noise), its loss and its job in recipes.

An objective (see ``base``) is a frozen value: ``prepare`` turns tokenised examples into a batch, ``loss`` runs a model
on it. A job (see ``job``) connects an objective to a recipe: from the rows of files to examples, and from a trained
model to metrics and samples.

| module | objective | learns | job in recipes |
|---|---|---|---|
| ``causal_lm`` | ``NextToken`` | the next token | ``language``, ``controlled`` |
| ``masked_lm`` | ``MaskedLM``, ``TranslationMaskedLM`` | masked words | ``masked``, ``masked-translation`` |
| ``sentence_pairs`` | ``MaskedPairs`` | masked words, and how two sentences follow | ``masked-pairs`` |
| ``replaced_tokens`` | ``ReplacedTokens`` | which tokens were replaced | ``replaced`` |
| ``seq2seq`` | ``SequenceToSequence`` | one text from another | ``text-to-text``, ``toy`` |
| ``span_corruption`` | ``SpanCorruption`` | spans that were cut out | ``spans`` |
| ``denoising`` | ``Denoising`` | a text from its corrupted copy | ``denoising`` |
| ``distillation`` | ``Distillation`` | the predictions of a teacher | ``distillation`` |
| ``classification`` | ``Classification`` | the label of a text | ``classify`` |
| ``tagging`` | ``Tagging`` | the label of each word | ``tag`` |
| ``question_answering`` | ``QuestionAnswering`` | where an answer starts and ends | ``answer`` |

Shared: ``base`` (batches, padding, losses, cross-entropy), ``masking`` (masked rows), ``examples``
(rows of files as tokens), ``job``.
"""
