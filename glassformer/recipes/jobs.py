"""The jobs that recipes can name (``job: classify``): the type of their rows, and the class in ``objectives``."""

from typing import NamedTuple

from glassformer.config.checks import check_choice
from glassformer.data.records import AnyRecord, LabelledRecord, PairRecord, QuestionRecord, TaggedRecord, TextRecord


class JobEntry(NamedTuple):
    """A job as recipes know it."""

    rows: type[AnyRecord]
    implementation: str  # module and class in ``objectives``, imported when the job is used


JOBS = {
    "language": JobEntry(TextRecord, "causal_lm.LanguageJob"),
    "controlled": JobEntry(LabelledRecord, "causal_lm.ControlledJob"),
    "text-to-text": JobEntry(PairRecord, "seq2seq.TextToTextJob"),
    "toy": JobEntry(PairRecord, "seq2seq.ToyJob"),
    "masked": JobEntry(TextRecord, "masked_lm.MaskedLMJob"),
    "masked-pairs": JobEntry(TextRecord, "sentence_pairs.SentencePairsJob"),
    "masked-translation": JobEntry(PairRecord, "masked_lm.MaskedTranslationJob"),
    "replaced": JobEntry(TextRecord, "replaced_tokens.ReplacedTokensJob"),
    "distillation": JobEntry(TextRecord, "distillation.DistillationJob"),
    "spans": JobEntry(TextRecord, "span_corruption.SpanCorruptionJob"),
    "denoising": JobEntry(TextRecord, "denoising.DenoisingJob"),
    "classify": JobEntry(LabelledRecord, "classification.ClassificationJob"),
    "tag": JobEntry(TaggedRecord, "tagging.TaggingJob"),
    "answer": JobEntry(QuestionRecord, "question_answering.QuestionAnsweringJob"),
}


def job_entry(job: str) -> JobEntry:
    """Return the entry of a job; raise if no job has this name."""
    check_choice("job", job, JOBS)
    return JOBS[job]
