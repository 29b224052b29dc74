"""Jobs that hide words: their rows are what they should be, and each learns within seconds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from glassformer import Transformer, save
from glassformer.config import change
from glassformer.data.records import PairRecord
from glassformer.data.records import TextRecord as Row
from glassformer.families import lineages
from glassformer.objectives.base import IGNORE, TokenRow, as_ids
from glassformer.objectives.distillation import copy_teacher, teacher_layers, without_pair_head
from glassformer.objectives.job import job_of
from glassformer.objectives.masking import WordNumbering
from glassformer.objectives.replaced_tokens import GeneratorAndDiscriminator
from glassformer.objectives.sentence_pairs import SentencePair
from glassformer.recipes.files import read_recipe
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import TokenizerKind
from glassformer.text.vocabularies import Vocabulary
from tests.training.small_runs import (
    COLOURS,
    DOCUMENTS,
    NUMBERS,
    fell,
    ready,
    recipe_of,
    records,
    samples,
    train,
    vocabulary,
)

ROWS = [Row(text) for text in DOCUMENTS]
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "initializer_range": 0.1,
    **NO_DROPOUT,
}
ENCODER = {"lineage": "bert", "sizes": SIZES}
PAIRS = [
    PairRecord("the house is red", "das Haus ist rot", "en", "de"),
    PairRecord("the dog is small", "der Hund ist klein", "en", "de"),
    PairRecord("we eat bread", "wir essen Brot", "en", "de"),
    PairRecord("seven ships came", "sieben Schiffe kamen", "en", "de"),
]
BOTH: dict[str, Any] = {"format": "parallel", "languages": ["en", "de"]}
LANGUAGES = {
    "lineage": "xlm",
    "sizes": {"emb_dim": 32, "n_layers": 1, "n_heads": 4, "n_langs": 2, "max_position_embeddings": 64, "dropout": 0.0,
              "attention_dropout": 0.0, "embed_init_std": 0.1, "init_std": 0.1},
}  # fmt: skip
TWO = {
    "lineage": "electra",
    "sizes": {**SIZES, "embedding_size": 16},
    "helper": {"hidden_size": 16, "intermediate_size": 32},
}
RELATIVE = {
    "relative_attention": True,
    "pos_att_type": ["c2p", "p2c"],
    "position_biased_input": False,
    "position_buckets": 8,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
}


def words() -> Tokenizer:
    return vocabulary("wordpiece", "bert")


def ids_of(text: TokenRow) -> list[int]:
    return as_ids(text.ids).tolist()


def of_pairs() -> Tokenizer:
    return vocabulary("bpe", "roberta", [text for pair in PAIRS for text in (pair.source, pair.target)])


# Rows of plain text


def test_full_rows_run_on_across_documents_with_a_separator_between_them(tmp_path: Path) -> None:
    tokenizer = words()
    job, context = ready(recipe_of("masked", ENCODER, length=10), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records(ROWS[:2])})["train"]
    cls, sep = tokenizer.cls, tokenizer.sep
    stream = [token for text in DOCUMENTS[:2] for token in [*tokenizer.encode(text, special=False), sep]]
    made = [ids_of(rows[number]) for number in range(len(rows))]
    assert all(row[0] == cls and row[-1] == sep for row in made)
    assert all(len(row) == 10 for row in made[:-1])
    assert rows.lengths.tolist()[:-1] == [10] * (len(rows) - 1)
    inner = [token for row in made for token in row[1:-1]]
    assert inner == stream[:-1]  # the last separator is the frame's own
    assert inner.count(sep) == 1
    assert all(len(ids_of(rows[number])) <= rows.lengths[number] for number in range(len(rows)))


def test_a_separator_that_ends_a_row_is_not_doubled(tmp_path: Path) -> None:
    tokenizer = words()
    size = len(tokenizer.encode(NUMBERS, special=False))
    job, context = ready(recipe_of("masked", ENCODER, length=size + 3), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records(ROWS[:2])})["train"]
    assert [ids_of(rows[number]) for number in range(2)] == [tokenizer.encode(text) for text in (NUMBERS, COLOURS)]


def test_a_row_per_document_is_cut_and_counted(tmp_path: Path) -> None:
    tokenizer = words()
    job, context = ready(recipe_of("masked", ENCODER, length=9, objective={"rows": "documents"}), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records([Row("one two"), Row(NUMBERS)])})["train"]
    assert ids_of(rows[0]) == tokenizer.encode("one two")
    assert ids_of(rows[1]) == [tokenizer.cls, *tokenizer.encode(NUMBERS, special=False)[:7], tokenizer.sep]
    assert rows.lengths.tolist() == [4, 9]
    assert rows.cut == 1


def test_all_parts_are_made_and_recognised(tmp_path: Path) -> None:
    job, context = ready(recipe_of("masked", ENCODER), words(), tmp_path)
    parts = {"train": records(ROWS[:2]), "valid": records(ROWS[2:3])}
    made, again = job.examples(context, parts), job.examples(context, parts)
    assert list(made) == ["train", "valid"]
    prints = [data.fingerprint for data in made.values()]
    assert prints == [data.fingerprint for data in again.values()]
    assert None not in prints
    assert len(set(prints)) == 2


def test_the_frame_is_never_hidden_and_the_share_is_kept(tmp_path: Path) -> None:
    tokenizer = words()
    job, context = ready(recipe_of("masked", ENCODER, objective={"masking": {"share": 0.25}}), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records(ROWS)})["train"]
    batch = job.objective(context).prepare([rows[0], rows[1]], torch.Generator().manual_seed(0))
    assert batch.inputs["ids"].shape == (2, 32)
    assert batch.counts == {"masked": 16}  # round(0.25 · 32) in each row
    hidden = batch.labels["masked"] != IGNORE
    original = torch.stack([as_ids(rows[n].ids) for n in (0, 1)])
    assert torch.equal(batch.labels["masked"][hidden], original[hidden])
    special = torch.tensor([tokenizer.cls, tokenizer.sep])
    assert not torch.isin(original[hidden], special).any()


def test_text_without_room_for_its_frame_is_refused(tmp_path: Path) -> None:
    job, context = ready(recipe_of("masked", ENCODER, length=2), words(), tmp_path)
    with pytest.raises(ValueError, match=r"batch\.length=2 leaves no space for text between 2 special tokens"):
        job.examples(context, {"train": records(ROWS)})


# Whole words


@pytest.mark.parametrize(
    ("kind", "style"), [("wordpiece", "bert"), ("bpe", "roberta"), ("unigram", "roberta"), ("bytes", "roberta")]
)
def test_words_are_numbered_as_white_space_divides_them(kind: TokenizerKind, style: str) -> None:
    text = "one twothree fourfive six sevenseven"
    tokenizer = vocabulary(
        kind,
        style,
        ["one two three four five six seven seventhreefourfivesixonetwo"],
        size={"bpe": 330, "bytes": None}.get(kind, 50),
    )
    result = tokenizer.analyse(text, special=False)
    expected = [text[:end].count(" ") for _, end in result.offsets]
    assert max(expected) == 4
    assert len(expected) > 5  # some words are several tokens, or nothing is tested
    assert WordNumbering(tokenizer)(torch.tensor(result.ids)).tolist() == expected


def test_a_word_begins_after_a_special_token_and_none_is_one() -> None:
    tokenizer = vocabulary("bpe", "roberta")
    item, sep = tokenizer.encode("one", special=False), tokenizer.sep
    assert sep is not None
    row = torch.tensor([0, *item, sep, *item, sep])  # no piece here begins with white space
    count = len(item)
    assert WordNumbering(tokenizer)(row).tolist() == [-1, *[0] * count, -1, *[1] * count, -1]


def test_a_word_is_hidden_whole_or_not_at_all(tmp_path: Path) -> None:
    tokenizer = vocabulary("wordpiece", "bert", size=50)
    options = {"masking": {"whole_words": True, "share": 0.4}}
    job, context = ready(recipe_of("masked", ENCODER, objective=options), tokenizer, tmp_path)
    rows = job.examples(context, {"train": records(ROWS)})["train"]
    labels = job.objective(context).prepare([rows[0]], torch.Generator().manual_seed(0)).labels["masked"][0]
    numbers = as_ids(rows[0].words)
    hidden = [(labels[numbers == number] != IGNORE) for number in range(int(numbers.max()) + 1)]
    assert all(bool(word.all()) or not bool(word.any()) for word in hidden)
    assert any(bool(word.all()) and len(word) > 1 for word in hidden)


def test_a_vocabulary_that_does_not_mark_words_is_refused() -> None:
    backend = Backend(models.WordLevel({"<mask>": 0, "a": 1}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="does not say which of its pieces begin a word"):
        WordNumbering(Tokenizer(Vocabulary(backend, {"mask": "<mask>"})))


# Learning


def test_masked_words_are_learned(tmp_path: Path) -> None:
    """The loss falls to less than half."""
    job, context = ready(recipe_of("masked", ENCODER), words(), tmp_path)
    model, reports = train(job, context, ROWS, steps=80, lr=1e-2)
    assert fell(reports) > 2
    assert reports[0].metrics.keys() == {"accuracy"}
    (shown,) = samples(job, context, model, ROWS[:1])
    blanks, guesses = shown.split("\n  → ")
    assert blanks.count("____") == len(guesses.split(" · ")) > 0
    assert "%" in guesses
    assert "[CLS]" not in shown
    assert model.training  # as it was


@pytest.mark.slow
def test_long_rows_are_learned_by_block_sparse_attention(tmp_path: Path) -> None:
    sizes = {**SIZES, "max_position_embeddings": 160, "block_size": 8, "num_random_blocks": 1}
    recipe = recipe_of("masked", {"lineage": "bigbird", "sizes": sizes}, length=160)
    job, context = ready(recipe, words(), tmp_path)
    model, reports = train(job, context, ROWS * 3, steps=60, lr=1e-2)
    assert fell(reports) > 1.5
    assert samples(job, context, model, ROWS[:1])[0].count("____") > 0  # shorter than all blocks together


@pytest.mark.slow
@pytest.mark.parametrize("pairs", ["next", "order"])
def test_masked_words_and_pairs_are_learned(pairs: str, tmp_path: Path) -> None:
    """Both terms fall, to less than half and two thirds."""
    options = {"pairs": pairs, "short": 0.0, "passes": 16}
    job, context = ready(recipe_of("masked-pairs", ENCODER, objective=options), words(), tmp_path)
    model, reports = train(job, context, ROWS[:2], steps=120, lr=1e-2)
    assert fell(reports, "masked") > 2
    assert fell(reports, "pair") > 1.5
    (shown,) = samples(job, context, model, ROWS[:1])
    assert "____" in shown
    assert shown.splitlines()[-1].startswith("  → that the second part follows: ")


@pytest.mark.slow
def test_replaced_tokens_are_learned(tmp_path: Path) -> None:
    """Both models learn: the terms fall to less than two thirds."""
    job, context = ready(recipe_of("replaced", TWO), words(), tmp_path)
    model, reports = train(job, context, ROWS, steps=80, lr=1e-2)
    assert fell(reports, "generator") > 1.5
    assert fell(reports, "discriminator") > 1.5
    (shown,) = samples(job, context, model, ROWS[:1])
    assert "\n  → " in shown
    assert "found: " in shown or "missed: " in shown


@pytest.mark.slow
def test_hidden_words_beside_a_translation_are_learned(tmp_path: Path) -> None:
    """The loss falls to less than a third."""
    job, context = ready(recipe_of("masked-translation", LANGUAGES, data=BOTH), of_pairs(), tmp_path)
    model, reports = train(job, context, PAIRS, steps=80, lr=1e-2)
    assert fell(reports) > 3
    (shown,) = samples(job, context, model, PAIRS[:1])
    assert shown.count("____") == len(shown.split(" · "))


# Pairs of sentences


def test_pairs_are_framed_and_their_parts_told_apart(tmp_path: Path) -> None:
    tokenizer = words()
    options = {"pairs": "order", "short": 0.0, "passes": 8}
    job, context = ready(recipe_of("masked-pairs", ENCODER, objective=options), tokenizer, tmp_path)
    pairs = job.examples(context, {"train": records(ROWS[:1])})["train"]
    result = [pairs[number] for number in range(len(pairs))]
    assert len(result) == 8
    whole = tokenizer.encode(NUMBERS, special=False)
    for pair in result:
        assert (pair.first + pair.second if pair.label == 0 else pair.second + pair.first) == whole
    assert {pair.label for pair in result} == {0, 1}
    assert pairs.lengths.tolist() == [len(whole) + 3] * 8
    batch = job.objective(context).prepare(result[:1], torch.Generator().manual_seed(0))
    first = len(result[0].first)
    assert batch.inputs["ids"][0, [0, first + 1, -1]].tolist() == [tokenizer.cls, tokenizer.sep, tokenizer.sep]
    assert batch.inputs["segments"][0].tolist() == [0] * (first + 2) + [1] * (len(whole) - first + 1)
    assert batch.labels["pair"].tolist() == [result[0].label]


def test_pairs_are_the_same_whenever_they_are_made_and_other_for_another_seed(tmp_path: Path) -> None:
    def made(seed: int) -> list[SentencePair]:
        run = {"steps": 10, "seed": seed}
        job, context = ready(recipe_of("masked-pairs", ENCODER, run=run), words(), tmp_path)
        pairs = job.examples(context, {"train": records(ROWS)})["train"]
        return [pairs[number] for number in range(len(pairs))]

    assert made(0) == made(0)
    assert made(0) != made(1)


# Translations


def test_a_text_and_its_translation_stand_side_by_side(tmp_path: Path) -> None:
    tokenizer = of_pairs()
    job, context = ready(recipe_of("masked-translation", LANGUAGES, data=BOTH), tokenizer, tmp_path)
    pairs = job.examples(context, {"train": records(PAIRS)})["train"]
    batch = job.objective(context).prepare([pairs[0]], torch.Generator().manual_seed(0))
    hidden = batch.labels["masked"] != IGNORE
    ids = batch.labels["masked"].where(hidden, batch.inputs["ids"])[0].tolist()
    first, second = (tokenizer.encode(text, special=False) for text in (PAIRS[0].source, PAIRS[0].target))
    sep = tokenizer.sep
    assert ids == [sep, *first, sep, sep, *second, sep]
    assert batch.inputs["languages"][0].tolist() == [0] * (len(first) + 2) + [1] * (len(second) + 2)
    assert batch.inputs["positions"][0].tolist() == [*range(len(first) + 2), *range(len(second) + 2)]


def test_translations_are_cut_to_fit_together(tmp_path: Path) -> None:
    rows = [PairRecord("we eat bread", "rot " * 30, "en", "de"), PairRecord("red", "rot", "en", "de")]
    job, context = ready(recipe_of("masked-translation", LANGUAGES, data=BOTH, length=16), of_pairs(), tmp_path)
    pairs = job.examples(context, {"train": records(rows)})["train"]
    kept = len(context.tokenizer.encode("we eat bread", special=False))
    assert kept <= 6
    assert (len(pairs[0].first), len(pairs[0].second)) == (kept, 12 - kept)  # the short side leaves its room
    assert pairs.lengths[0] == 16
    assert pairs.cut == 1


def test_languages_that_nobody_named_are_refused(tmp_path: Path) -> None:
    job, context = ready(recipe_of("masked-translation", LANGUAGES, data=BOTH), of_pairs(), tmp_path)
    with pytest.raises(ValueError, match=r"its languages are en and None; set both with data\.languages"):
        job.examples(context, {"train": records([PairRecord("a", "b", "en", None)])})
    few = {**LANGUAGES, "sizes": {**LANGUAGES["sizes"], "n_langs": 1}}
    job, context = ready(recipe_of("masked-translation", few, data=BOTH), of_pairs(), tmp_path)
    with pytest.raises(ValueError, match=r"embeddings for 0 languages, and data\.languages names 2"):
        job.objective(context)


# Two models


def test_the_helper_is_the_model_with_other_sizes_and_what_is_kept_stands_alone(tmp_path: Path) -> None:
    job, context = ready(recipe_of("replaced", TWO), words(), tmp_path)
    model = job.build(context)
    assert isinstance(model, GeneratorAndDiscriminator)
    assert (model.generator.config.width, model.discriminator.config.width) == (16, 32)
    assert model.generator.embed.token.weight is model.discriminator.embed.token.weight
    kept = job.saved_model(model)
    ids = torch.tensor([context.tokenizer.encode(NUMBERS)])
    assert torch.equal(kept(ids), model.discriminate({"ids": ids}))
    assert lineages()["electra"].kind_of(kept.config) == "replaced"  # as the published ones


def test_disentangled_tables_are_added_in_the_end(tmp_path: Path) -> None:
    sizes = {**SIZES, **RELATIVE}
    model = {"lineage": "deberta_v2", "sizes": sizes, "helper": {"num_hidden_layers": 1}}
    job, context = ready(recipe_of("replaced", model, objective={"share": "disentangled"}), words(), tmp_path)
    both, reports = train(job, context, ROWS, steps=40, lr=1e-2)
    assert fell(reports) > 1.3
    assert isinstance(both, GeneratorAndDiscriminator)
    kept, ids = job.saved_model(both.eval()), torch.tensor([context.tokenizer.encode(NUMBERS)])
    assert torch.allclose(kept(ids), both.discriminate({"ids": ids}), atol=1e-6)
    table = both.generator.embed.token.weight + both.discriminator.embed.token.weight
    assert torch.equal(kept.embed.token.weight, table)


# A teacher


def taught(path: Path, tokenizer: Tokenizer, layers: int = 3) -> Path:
    """A folder with a model that predicts masked words and classifies pairs."""
    torch.manual_seed(1)
    sizes = {**SIZES, "num_hidden_layers": layers, "vocab_size": tokenizer.vocab_size, "initializer_range": 0.5}
    return save(Transformer(lineages()["bert"].facts(sizes, "pretraining")), path, tokenizer=tokenizer)


def student(teacher: Path | None, layers: int = 2, **sizes: Any) -> dict[str, Any]:
    sizes = {"dim": 32, "n_layers": layers, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
    more = {"dropout": 0.0, "attention_dropout": 0.0, **sizes}
    return {"lineage": "distilbert", "sizes": sizes | more, "teacher": None if teacher is None else str(teacher)}


@pytest.mark.slow
def test_a_student_comes_near_its_teacher(tmp_path: Path, device: torch.device) -> None:
    """What the teacher says is learned: that term falls to less than half; the teacher does not change."""
    tokenizer = words()
    plan = student(taught(tmp_path / "teacher", tokenizer))
    recipe = recipe_of("distillation", plan, objective={"hard": 0.1, "masking": {"share": 0.3}})
    job, context = ready(recipe, tokenizer, tmp_path)
    before = {name: weight.clone() for name, weight in job.teacher.model.state_dict().items()}
    model, reports = train(job, context, ROWS, steps=60, lr=1e-2)
    assert reports[0].terms.keys() == {"soft", "masked", "cosine"}
    assert fell(reports, "soft") > 2
    after = job.teacher.model.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    objective = job.objective(context)
    rows = job.examples(context, {"train": records(ROWS)})["train"]
    batch = objective.prepare([rows[0]], torch.Generator()).to(device)
    assert float(objective.loss(model.to(device), batch).mean().detach()) > 0  # the teacher follows
    assert "____" in samples(job, context, model, ROWS[:1])[0]


def test_a_teacher_of_pairs_guesses_the_same_words_without_them() -> None:
    sizes = {**SIZES, "vocab_size": 50}
    model = Transformer(lineages()["bert"].facts(sizes, "pretraining")).eval()
    ids = torch.arange(8)[None]
    assert torch.equal(without_pair_head(model)(ids), model(ids)[0])
    plain = without_pair_head(model)
    assert without_pair_head(plain) is plain


def test_a_student_starts_from_layers_of_its_teacher(tmp_path: Path) -> None:
    tokenizer = words()
    options = {"start_from_teacher": True}
    recipe = recipe_of("distillation", student(taught(tmp_path / "teacher", tokenizer)), objective=options)
    job, context = ready(recipe, tokenizer, tmp_path)
    model = job.build(context)
    assert isinstance(model, Transformer)
    reference = job.teacher.model
    pairs = [
        (model.encoder.blocks[0], reference.encoder.blocks[0]),
        (model.encoder.blocks[1], reference.encoder.blocks[2]),
    ]
    for mine, other in [*pairs, (model.head, reference.head)]:
        assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), other.parameters(), strict=True))
    assert torch.equal(model.embed.token.weight, reference.embed.token.weight)


def test_layers_are_chosen_at_equal_distances() -> None:
    assert teacher_layers(6, 12) == [0, 2, 4, 7, 9, 11]
    assert teacher_layers(2, 4) == [0, 3]
    assert teacher_layers(1, 5) == [0]
    assert teacher_layers(3, 3) == [0, 1, 2]
    with pytest.raises(ValueError, match="a student of 4 layers cannot start from a teacher of 2"):
        teacher_layers(4, 2)


def test_teachers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    tokenizer = words()
    job, context = ready(recipe_of("distillation", student(None)), tokenizer, tmp_path)
    with pytest.raises(ValueError, match=r"set model\.teacher=FOLDER"):
        job.objective(context)
    folder = taught(tmp_path / "teacher", tokenizer)
    other = vocabulary("wordpiece", "bert", ["quite other words here"])
    job, context = ready(recipe_of("distillation", student(folder)), other, tmp_path)
    with pytest.raises(ValueError, match=r"by the same tokenizer; set tokenizer\.load="):
        job.objective(context)
    wide = Transformer(change(without_pair_head(job.teacher.model).config, "encoder.ffn.hidden", 32))
    with pytest.raises(ValueError, match=r"ffn.up.weight is of shape \(32, 32\), and the teacher's .* \(64, 32\)"):
        copy_teacher(wide, job.teacher.model)


# Options


@pytest.mark.parametrize(
    ("job", "model", "options", "complaint"),
    [
        ("masked", ENCODER, {"masking": {"shar": 0.1}}, "Did you mean 'share'"),
        ("masked", ENCODER, {"masking": {"share": 1.5}}, "share"),
        ("masked", ENCODER, {"masking": {"split": [0.5, 0.5]}}, "masking.split holds 3 probabilities"),
        ("masked", ENCODER, {"masking": {"count": "some"}}, "fixed"),
        ("masked", ENCODER, {"rows": "windows"}, "documents"),
        ("masked-pairs", ENCODER, {"masking": {"whole_words": True}}, "masks tokens one by one"),
        ("masked-pairs", ENCODER, {"pairs": "previous"}, "next"),
        ("masked-pairs", ENCODER, {"passes": 0}, "passes"),
        ("masked-pairs", ENCODER, {"sentences": "words"}, "marks"),
        ("masked-translation", LANGUAGES, {"masking": {"whole_words": True}}, "masks tokens one by one"),
        ("replaced", TWO, {"share": "all"}, "disentangled"),
        ("replaced", {"start": "folder"}, {}, "builds two new models"),
        ("distillation", {"start": "folder"}, {"start_from_teacher": True}, "not from both"),
        ("distillation", student(None), {"temperatur": 1.0}, "Did you mean 'temperature'"),
    ],
)
def test_wrong_options_are_refused(job: str, model: Any, options: Any, complaint: str) -> None:
    with pytest.raises((ValueError, TypeError), match=complaint):
        job_of(recipe_of(job, model, objective=options)).check()


def test_chances_that_do_not_add_up_are_refused(tmp_path: Path) -> None:
    job, context = ready(
        recipe_of("masked", ENCODER, objective={"masking": {"split": [0.5, 0.5, 0.5]}}), words(), tmp_path
    )
    with pytest.raises(ValueError, match="add up to 1"):
        job.objective(context)


def test_a_decoder_cannot_tell_replaced_tokens(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64}
    with pytest.raises(ValueError, match="trains an encoder; this model is a decoder"):
        ready(recipe_of("replaced", {"lineage": "llama", "sizes": sizes}), words(), tmp_path)


MINE = ("bert-mlm", "roberta", "xlmr", "albert-sop", "electra", "deberta-v3-rtd", "xlm-tlm", "distil", "bigbird-4096")


@pytest.mark.parametrize("name", MINE)
def test_the_recipes_can_be_built(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(name, ["objective.start_from_teacher=false"] if name == "distil" else [])
    tokenizer = vocabulary(recipe.tokenizer.kind, recipe.tokenizer.style or "bert")
    job, context = ready(recipe, tokenizer, tmp_path)
    assert job.build(context) is not None
    if name != "distil":  # whose teacher is to be named
        assert job.objective(context) is not None
