"""Rows as tokens for a task head: rows are letters, and what cannot be read is told."""

from pathlib import Path
from typing import Any

import pytest

from glassformer.data.records import LabelledRecord, Origin, QuestionRecord, TaggedRecord
from glassformer.models.transformer import Transformer
from glassformer.objectives.examples import as_trained, row_tokens
from glassformer.objectives.job import as_loaded
from glassformer.tasks.answer import answer
from glassformer.tasks.batches import TextTokens, all_text_tokens
from glassformer.tasks.classify import classify
from glassformer.tasks.tag import tag
from tests.training.test_jobs_labels import job_and_kit, records

LABELLED = [LabelledRecord("the film", "no"), LabelledRecord("good", "yes")]
ODD = "good [SEP] film [CLS]"
# what is asked, and a row that makes a model for it
ASKED: dict[str, tuple[Any, list[Any], Any]] = {
    "classify": (classify, LABELLED, (ODD, "and")),
    "tag": (tag, [TaggedRecord(("Ann", "saw"), ("B-PER", "O"))], ODD.split()),
    "answer": (answer, [QuestionRecord("1", "sun", "good film", (("film", 5),))], (ODD, ODD)),
}


@pytest.mark.parametrize("family", ["encoder", "encoder without segments"])
def test_letters_of_special_tokens_are_letters_in_rows(family: str) -> None:
    _, context = job_and_kit("classify", LABELLED, family=family)
    text = " ".join(["the", *context.tokenizer.special.values(), "film"])
    encoded = row_tokens(context, Origin("a", 1), text, text)
    own = {context.tokenizer.id_of(token) for token in context.tokenizer.special.values()} - {context.tokenizer.unk}
    assert own.isdisjoint(token.id for token in encoded.first + encoded.second)
    assert own >= {token.id for token in encoded.before + encoded.between + encoded.after}
    assert [token.id for token in encoded.second] == context.tokenizer.encode(text, special=False, allow_special=False)


@pytest.mark.parametrize("name", ASKED)
def test_a_model_is_asked_as_it_was_trained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked as it is, it reads letters of special tokens as these tokens, as Hugging Face's tokenizers do."""
    ask, rows, asked = ASKED[name]
    _, context = job_and_kit(name, rows)
    result: list[TextTokens] = []

    def listening(*inputs: Any, **named: Any) -> list[TextTokens]:
        encoded = all_text_tokens(*inputs, **named)
        result.extend(encoded)
        return encoded

    monkeypatch.setattr(f"glassformer.tasks.{name}.all_text_tokens", listening)
    loaded = as_loaded(Transformer(context.facts), context.tokenizer, Path())
    ask(as_trained(loaded), [asked])
    ask(loaded, [asked])
    trained = row_tokens(context, Origin("a", 1), *([" ".join(asked)] if name == "tag" else asked))
    assert [item.tokens == trained.tokens for item in result] == [True, False]


def test_if_no_row_can_be_read_it_is_told_why() -> None:
    job, context = job_and_kit("classify", [], skip=True, kind="number")
    rows = [LabelledRecord("the film", "many", origin=Origin("a.csv", number)) for number in (2, 3)]
    with pytest.raises(ValueError, match=r"no examples are left: 0 rows; left out 2: 2 × no number\n.*a\.csv:2"):
        job.examples(context, {"train": records(rows)})
