"""Rows as tokens for a task head: rows are letters, and what cannot be read is told."""

from pathlib import Path
from typing import Any

import pytest

from glassformer.data.records import Labelled, Origin, Question, Tagged
from glassformer.models.transformer import Transformer
from glassformer.tasks.answer import answer
from glassformer.tasks.classify import classify
from glassformer.tasks.tag import tag
from glassformer.tasks.texts import Framed, frame
from glassformer.training.objectives.examples import as_trained, frame_row
from glassformer.training.objectives.job import as_loaded
from tests.training.test_jobs_labels import job_and_kit, records

LABELLED = [Labelled("the film", "no"), Labelled("good", "yes")]
ODD = "good [SEP] film [CLS]"
# what is asked, and a row that makes a model for it
ASKED: dict[str, tuple[Any, list[Any], Any]] = {
    "classify": (classify, LABELLED, (ODD, "and")),
    "tag": (tag, [Tagged(("Ann", "saw"), ("B-PER", "O"))], ODD.split()),
    "answer": (answer, [Question("1", "sun", "good film", (("film", 5),))], (ODD, ODD)),
}


@pytest.mark.parametrize("family", ["encoder", "encoder without segments"])
def test_letters_of_special_tokens_are_letters_in_rows(family: str) -> None:
    _, kit = job_and_kit("classify", LABELLED, family=family)
    text = " ".join(["the", *kit.tokenizer.special.values(), "film"])
    framed = frame_row(kit, Origin("a", 1), text, text)
    own = {kit.tokenizer.id_of(token) for token in kit.tokenizer.special.values()} - {kit.tokenizer.unk}
    assert own.isdisjoint(token.id for token in framed.first + framed.second)
    assert own >= {token.id for token in framed.before + framed.between + framed.after}
    assert [token.id for token in framed.second] == kit.tokenizer.encode(text, special=False, allow_special=False)


@pytest.mark.parametrize("name", ASKED)
def test_a_model_is_asked_as_it_was_trained(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked as it is, it reads letters of special tokens as these tokens, as Hugging Face's tokenizers do."""
    ask, rows, asked = ASKED[name]
    _, kit = job_and_kit(name, rows)
    found: list[Framed] = []

    def listening(*given: Any, **named: Any) -> Framed:
        found.append(frame(*given, **named))
        return found[-1]

    monkeypatch.setattr(f"glassformer.tasks.{name}.frame", listening)
    loaded = as_loaded(Transformer(kit.facts), kit.tokenizer, Path())
    ask(as_trained(loaded), [asked])
    ask(loaded, [asked])
    trained = frame_row(kit, Origin("a", 1), *([" ".join(asked)] if name == "tag" else asked))
    assert [one.tokens == trained.tokens for one in found] == [True, False]


def test_if_no_row_can_be_read_it_is_told_why() -> None:
    job, kit = job_and_kit("classify", [], skip=True, kind="number")
    rows = [Labelled("the film", "many", origin=Origin("a.csv", number)) for number in (2, 3)]
    with pytest.raises(ValueError, match=r"no examples are left: 0 rows; left out 2: 2 × no number\n.*a\.csv:2"):
        job.examples(kit, {"train": records(rows)})
