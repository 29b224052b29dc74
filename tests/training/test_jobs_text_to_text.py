"""One text from another: rows are letters, whatever they look like, and the model is asked as it was trained."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from glassformer.data.records import PairRecord
from glassformer.generation.text import generate_text
from glassformer.objectives.job import Job, RunContext, as_loaded, job_of
from glassformer.objectives.seq2seq import END, _table
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import style, train_tokenizer
from glassformer.training.build_model import make_model
from tests.helpers import types_unchecked
from tests.training.small_runs import COLOURS, NUMBERS, ready, recipe_of, records

SIZES = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 16,
    "decoder_ffn_dim": 16,
    "max_position_embeddings": 64,
}
ROWS = (
    PairRecord("one <s>two</s> three", "red </s> green", "en", "de"),
    PairRecord("__de__ four [five] <pad>", "__en__blue</s>", "en", "de"),
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = style("bart").with_further("__de__", "__en__")
    return train_tokenizer([NUMBERS, COLOURS], kind="bpe", vocab_size=320, special=special, min_frequency=1)


def job_and_kit(tokenizer: Tokenizer, folder: Path, **objective: Any) -> tuple[Job[Any], RunContext]:
    model = {"lineage": "bart", "sizes": SIZES}
    return ready(recipe_of("text-to-text", model, length=64, objective=objective), tokenizer, folder)


def read(job: Job[Any], context: RunContext, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the encoder reads when the job evaluates a model."""
    inputs: list[list[int]] = []

    def listening(loaded: Any, prompts: Any, **options: Any) -> Any:
        inputs.extend(prompts)
        return generate_text(loaded, prompts, **options)

    monkeypatch.setattr("glassformer.objectives.seq2seq.generate_text", listening)
    torch.manual_seed(0)
    loaded = as_loaded(job.saved_model(make_model(context, job, None)), context.tokenizer, context.folder)
    assert set(job.metrics(context, loaded, ROWS)) == {"bleu", "chrf"}
    return inputs


@pytest.mark.parametrize("languages", [False, True])
@pytest.mark.parametrize("prefix", ["", "say </s>: "])
def test_letters_of_special_tokens_are_letters(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, languages: bool, prefix: str
) -> None:
    """A target with ``</s>`` in it would teach to stop in the middle of a sentence."""
    job, context = job_and_kit(tokenizer, tmp_path, languages=languages, prefix=prefix, max_new_tokens=2)
    examples = job.examples(context, {"train": records(ROWS)})["train"]
    own = {tokenizer.id_of(token) for token in ("<s>", "</s>", "<pad>", "__de__", "__en__")}
    for number, row in enumerate(ROWS):
        for ids, text in ((examples[number].source, prefix + row.source), (examples[number].target, row.target)):
            first, *inside, last = ids.tolist()
            assert first in own
            assert last == tokenizer.eos
            assert own.isdisjoint(inside)
            assert tokenizer.decode(inside) == text
    assert read(job, context, monkeypatch) == [examples[number].source.tolist() for number in range(len(ROWS))]


def test_letters_are_tokens_for_whoever_wants_them(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, context = job_and_kit(tokenizer, tmp_path, special=True, max_new_tokens=2)
    examples = job.examples(context, {"train": records(ROWS)})["train"]
    assert examples[0].target.tolist() == tokenizer.encode("red </s> green")
    assert examples[0].target.tolist().count(tokenizer.eos) == 2
    assert read(job, context, monkeypatch) == [tokenizer.encode(row.source) for row in ROWS]


def test_the_option_is_told_among_the_others() -> None:
    recipe = recipe_of("text-to-text", {"lineage": "bart"}, objective={"specials": True})
    with pytest.raises(ValueError, match="Did you mean 'special'"):
        job_of(recipe)


def test_the_columns_of_a_toy_table_are_aligned_under_their_words() -> None:
    context: Any = SimpleNamespace(tokenizer=SimpleNamespace(id_of=lambda word: {"a": 0, "b": 1, END: 2}[word]))
    probs = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.5, 0.5]])
    with types_unchecked():  # a stand-in for the context
        _, header, *lines = _table(context, PairRecord("x", "a"), probs, ["a", "b", END]).splitlines()
    assert header.split() == ["target", "a", "b", END, "others"]
    assert {len(line) for line in lines} == {len(header)}
    assert lines[1].split()[:3] == [END, "0.0", "%"]
