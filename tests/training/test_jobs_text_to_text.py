"""One text from another: rows are letters, whatever they look like, and the model is asked as it was trained."""

from pathlib import Path
from typing import Any

import pytest
import torch

from glassformer.data.records import Pair
from glassformer.generation.text import generate_text
from glassformer.text.special_tokens import style
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import train_tokenizer
from glassformer.training.build_model import make_model
from glassformer.training.objectives.job import Job, RunContext, as_loaded, job_of
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
    Pair("one <s>two</s> three", "red </s> green", "en", "de"),
    Pair("__de__ four [five] <pad>", "__en__blue</s>", "en", "de"),
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = style("bart").with_further("__de__", "__en__")
    return train_tokenizer([NUMBERS, COLOURS], kind="bpe", vocab_size=320, special=special, min_frequency=1)


def job_and_kit(tokenizer: Tokenizer, folder: Path, **objective: Any) -> tuple[Job[Any], RunContext]:
    model = {"lineage": "bart", "sizes": SIZES}
    return ready(recipe_of("text-to-text", model, length=64, objective=objective), tokenizer, folder)


def read(job: Job[Any], kit: RunContext, monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the encoder is given when the job judges a model."""
    given: list[list[int]] = []

    def listening(loaded: Any, prompts: Any, **options: Any) -> Any:
        given.extend(prompts)
        return generate_text(loaded, prompts, **options)

    monkeypatch.setattr("glassformer.training.objectives.seq2seq.generate_text", listening)
    torch.manual_seed(0)
    loaded = as_loaded(job.shown(make_model(kit, job, None)), kit.tokenizer, kit.folder)
    assert set(job.figures(kit, loaded, ROWS)) == {"bleu", "chrf"}
    return given


@pytest.mark.parametrize("languages", [False, True])
@pytest.mark.parametrize("prefix", ["", "say </s>: "])
def test_letters_of_special_tokens_are_letters(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, languages: bool, prefix: str
) -> None:
    """A target with ``</s>`` in it would teach to stop in the middle of a sentence."""
    job, kit = job_and_kit(tokenizer, tmp_path, languages=languages, prefix=prefix, max_new_tokens=2)
    examples = job.examples(kit, {"train": records(ROWS)})["train"]
    own = {tokenizer.id_of(token) for token in ("<s>", "</s>", "<pad>", "__de__", "__en__")}
    for number, row in enumerate(ROWS):
        for ids, text in ((examples[number].source, prefix + row.source), (examples[number].target, row.target)):
            first, *inside, last = ids.tolist()
            assert first in own
            assert last == tokenizer.eos
            assert own.isdisjoint(inside)
            assert tokenizer.decode(inside) == text
    assert read(job, kit, monkeypatch) == [examples[number].source.tolist() for number in range(len(ROWS))]


def test_letters_are_tokens_for_whoever_wants_them(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, kit = job_and_kit(tokenizer, tmp_path, special=True, max_new_tokens=2)
    examples = job.examples(kit, {"train": records(ROWS)})["train"]
    assert examples[0].target.tolist() == tokenizer.encode("red </s> green")
    assert examples[0].target.tolist().count(tokenizer.eos) == 2
    assert read(job, kit, monkeypatch) == [tokenizer.encode(row.source) for row in ROWS]


def test_the_option_is_told_among_the_others() -> None:
    recipe = recipe_of("text-to-text", {"lineage": "bart"}, objective={"specials": True})
    with pytest.raises(ValueError, match="Did you mean 'special'"):
        job_of(recipe)
