"""Models for the viewer's tests: the shipped ones, and tiny ones of any lineage with the stories' vocabulary."""

from functools import cache
from typing import Any

import pytest

import glassformer
from glassformer import pretrained
from glassformer.families import lineages
from glassformer.loaded import Loaded, LoadReport
from glassformer.models.transformer import Transformer
from glassformer.viewer import queries, subject
from glassformer.viewer.contents import Contents
from glassformer.viewer.subject import Subject
from tests.helpers import randomise

TEXT = {
    "en-zh": "The animal didn't cross the street because it was too tired.",
    "stories": "Once upon a time, there was a little girl",
    "mlm-en": "There was a little [MASK] named Lily.",
    "ner-en": "Marie Curie was born in Warsaw.",
}


@cache
def shipped(name: str) -> Subject:
    """A shipped model."""
    return Subject(glassformer.load(name, dtype="float32"), name)


def tiny(lineage: str, config: dict[str, Any], kind: str = "lm", *, seed: int = 0) -> Subject:
    """A model with random weights and the vocabulary of the shipped stories."""
    facts = lineages()[lineage].facts({"vocab_size": 4096, **config}, kind)
    model = Transformer(facts).eval()
    randomise(model, seed)
    folder = pretrained.path("stories")
    return Subject(Loaded(model, facts, lineage, LoadReport(), folder, tokenizer_path=folder), lineage)


def ask(shown: Subject, query: str, text: str | None = None, /, **params: Any) -> dict[str, Any]:
    """The answer to a query."""
    given = params.pop("input", {})
    body = {"input": {"text": TEXT.get(shown.name, "") if text is None else text, **given}, **params}
    return queries.answer(Contents([shown]), queries.parse(query, body))


@pytest.fixture(autouse=True)
def _short_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model never ends its text by itself."""
    monkeypatch.setattr(subject, "TRANSLATION", 20)
