"""Metrics of generated texts, labels, spans and probabilities. Plain values in, a frozen value out.

| function | compares | metrics | scale |
|---|---|---|---|
| ``bleu`` | translations with references | bleu | 0 to 100 |
| ``chrf`` | the same, by characters | chrf (chrf++ with words) | 0 to 100 |
| ``rouge`` | summaries with references | rouge-1, rouge-2, rouge-l, rouge-lsum | 0 to 1 |
| ``score_labels`` | one label for each text | accuracy, macro f1 | 0 to 1 |
| ``score_entities`` | one tag for each word, by entities | entity precision, recall, f1; f1 of each kind | 0 to 1 |
| ``score_answers`` | answers with gold answers | exact match, answer f1 | 0 to 1 |
| ``perplexity`` | a sum of −ln p with a count of tokens | perplexity, bits per token, bits per byte | from 1; from 0 |

Predictions come first, references second. Every result has ``metrics()``, its numbers by name for a log, and more:
signatures, counts, precision and recall of each class. Higher is better in all but the last row. Metrics are of all
texts together, which is not the mean over batches. ``bleu`` and ``chrf`` need the package sacrebleu, ``rouge`` with
stemming needs nltk, the rest nothing.
"""

from glassformer.metrics.base import F1Score as F1Score
from glassformer.metrics.base import Metric as Metric
from glassformer.metrics.tasks import AnswerScores as AnswerScores
from glassformer.metrics.tasks import EntityScores as EntityScores
from glassformer.metrics.tasks import LabelScores as LabelScores
from glassformer.metrics.tasks import score_answers as score_answers
from glassformer.metrics.tasks import score_entities as score_entities
from glassformer.metrics.tasks import score_labels as score_labels
from glassformer.metrics.text import Bleu as Bleu
from glassformer.metrics.text import Chrf as Chrf
from glassformer.metrics.text import Perplexity as Perplexity
from glassformer.metrics.text import Rouge as Rouge
from glassformer.metrics.text import bleu as bleu
from glassformer.metrics.text import chrf as chrf
from glassformer.metrics.text import perplexity as perplexity
from glassformer.metrics.text import rouge as rouge
