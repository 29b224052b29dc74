"""The data of the shipped models, their baselines, and what transformers reads of a saved translator."""

import json
import random
from pathlib import Path

import pytest
import torch

import glassformer
from benchmarks.pretrained import evaluate, prepare
from benchmarks.pretrained.peer import Peer, beam_search
from benchmarks.pretrained.truecase import Truecaser, word_accuracy
from glassformer import hub, pretrained
from glassformer.families import lineages
from glassformer.models.transformer import Transformer
from glassformer.recipes.new_models import new_facts
from glassformer.text.languages import languages_of
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.training import style, train_tokenizer

PAIRS = [("I love you.", "我爱你。"), ("The dog sleeps.", "狗在睡觉。"), ("Where is Tom?", "汤姆在哪里？")]
CASED = 'Once upon a time, Lily met Tom. Tom said, "I like Lily." "Why?" asked Lily. "Go!" She ran to Tom and Ben.'


def test_sentences_are_the_same_apart_from_case_spaces_and_width() -> None:
    assert prepare.sentence_key("Hello,  World!") == prepare.sentence_key("hello world")
    assert prepare.sentence_key("你好，１２３。") == prepare.sentence_key("你好 123")
    assert prepare.sentence_key("Hello") != prepare.sentence_key("Hullo")


def test_no_sentence_is_in_two_parts() -> None:
    draw = random.Random(0)
    pairs = list({(f"a{draw.randrange(150)}", f"z{draw.randrange(150)}") for _ in range(120)})
    parts = prepare.split_pairs(sorted(pairs), test=20, valid=10)
    assert sorted(pair for part in parts.values() for pair in part) == sorted(pairs)
    assert len(parts["test"]) == 20
    assert len(parts["valid"]) == 10
    for side in (0, 1):
        texts = [{pair[side] for pair in part} for part in parts.values()]
        assert len(set.union(*texts)) == sum(map(len, texts))


def test_stories_are_split_where_they_begin() -> None:
    text = 'once upon a time there was a cat.\n\nshe ran.\n"hello," said the cat.\none day, a dog came.'
    assert prepare.split_stories(text) == [
        'once upon a time there was a cat.\n\nshe ran.\n"hello," said the cat.',
        "one day, a dog came.",
    ]


def test_stories_are_cleaned() -> None:
    assert prepare.clean_story("“Hi,”  said â€œTomâ€.\n\nIt’s") == '"Hi," said "Tom".\nIt\'s'


def test_capital_letters_come_back() -> None:
    truecaser = Truecaser([CASED] * 3)
    assert truecaser.restore(CASED.lower()) == CASED
    assert truecaser.restore("a girl named zoe ran. zoe and i met tom.") == "A girl named Zoe ran. Zoe and I met Tom."
    assert word_accuracy(truecaser, [CASED]) == 1.0


def test_held_back_stories_are_not_trained_on() -> None:
    draw = random.Random(0)
    words = [f"word{number}" for number in range(400)]
    cased = [" ".join(["Once", *draw.sample(words, 40)]) + "." for _ in range(30)]
    lower = [story.lower() for story in cased[:20]] + [f"once {' '.join(draw.sample(words, 40))}." for _ in range(5)]
    parts, facts = prepare.assemble_stories(cased, lower, test=5, valid=3)
    assert facts["lower-case stories that are new"] == 5
    assert [len(parts[name]) for name in ("train", "valid", "test")] == [30 - 8 + 5, 3, 5]
    trained = prepare.Probes(parts["train"])
    assert not any(trained.share(story) for name in ("valid", "test") for story in parts[name])


def test_tagged_words_lose_their_prefix(tmp_path: Path) -> None:
    path = tmp_path / "train"
    path.write_text("en:New\tB-LOC\nen:York\tI-LOC\n\nen::\tO\n", encoding="utf-8")
    assert prepare.read_tagged(path) == [[("New", "B-LOC"), ("York", "I-LOC")], [(":", "O")]]


def test_the_nearest_sentence_is_translated() -> None:
    assert evaluate.nearest_translations(["The dogs sleep."], PAIRS) == ["狗在睡觉。"]


def test_runs_from_training_are_measured() -> None:
    text = list(range(100, 160))
    assert evaluate.longest_runs([[1, *text[10:30], 2], [1, 2, 3]], [[5] * 9, text]) == [20, 0]


def test_shipped_weights_are_evaluated_by_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = "Marie\tB-PER\nCurie\tI-PER\nwas\tO\nborn\tO\nin\tO\nWarsaw\tB-LOC\n.\tO\n"
    for part in ("valid", "test"):
        (tmp_path / f"{part}.conll").write_text("\n".join([sentence] * 10), encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["evaluate", "ner-en", str(tmp_path)])
    evaluate.main()
    page = json.loads(capsys.readouterr().out)
    assert page["test"]["entity f1"] == 1
    assert page["samples"][-1]["entities"] == [["PER", "Marie Curie"], ["LOC", "Warsaw"]]
    assert tuple(evaluate.EVALUATE) == pretrained.names()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    special = style("translation").with_further("__en__", "__zh__")
    return train_tokenizer([text for pair in PAIRS for text in pair], kind="bpe", vocab_size=320, special=special)


@pytest.fixture(scope="module")
def translator(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved translator with random weights."""
    sizes = {"d_model": 32, "max_position_embeddings": 64, "dropout": 0.1}
    sizes |= {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in _LAYERS.items()}
    torch.manual_seed(0)
    model = Transformer(new_facts(lineages()["m2m100"], sizes, "lm", tokenizer))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    folder = tmp_path_factory.mktemp("translator")
    return hub.save(model, folder, to="hf", lineage="m2m100", tokenizer=tokenizer)


_LAYERS = {"layers": 2, "attention_heads": 4, "ffn_dim": 64}


@pytest.mark.parametrize("beams", [1, 4])
def test_transformers_translates_alike(translator: Path, beams: int) -> None:
    transformers = pytest.importorskip("transformers")
    loaded = glassformer.load(translator)
    tokenizer = transformers.AutoTokenizer.from_pretrained(translator)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(translator, dtype=torch.float32)
    for (source, target), text in zip((("en", "zh"), ("zh", "en")), PAIRS[0], strict=True):
        ids = tokenizer(f"__{source}__{text}")["input_ids"]
        assert ids == languages_of(loaded.tokenizer).source(text, source)
        first = tokenizer.convert_tokens_to_ids(f"__{target}__")
        theirs = model.generate(
            torch.tensor([ids]), forced_bos_token_id=first, num_beams=beams, max_new_tokens=12, do_sample=False
        )[0]
        ours = glassformer.translate(loaded, text, source=source, target=target, beam_size=beams, max_new_tokens=12)
        assert theirs.tolist()[1:] == ours.written.ids
        assert tokenizer.decode(theirs, skip_special_tokens=True) == ours.text


def test_the_search_of_the_peer_finds_what_ours_finds(translator: Path) -> None:
    loaded = glassformer.load(translator)
    known, model = languages_of(loaded.tokenizer), loaded.model
    start, eos = loaded.config.tokens.start, loaded.tokenizer.eos
    assert start is not None
    assert eos is not None
    for beams in (1, 4):
        source = torch.tensor([known.source("I love you.", "en")])
        outputs = beam_search(
            lambda ids, mask, target: model(ids, mask=mask, target=target)[:, -1],
            source,
            torch.ones_like(source, dtype=torch.bool),
            start=start,
            first=known.resolve("zh"),
            eos=eos,
            beams=beams,
            longest=10,
        )
        ours = glassformer.translate(
            loaded, "I love you.", source="en", target="zh", beam_size=beams, max_new_tokens=10
        )
        assert outputs == [[number for number in ours.written.ids[1:] if number != eos]]


def test_the_peer_has_the_size_of_ours(translator: Path) -> None:
    loaded = glassformer.load(translator)
    peer = Peer(loaded.config)
    assert sum(p.numel() for p in peer.parameters()) == sum(p.numel() for p in loaded.model.parameters())
    logits = peer(torch.tensor([[4, 9, 2]]), torch.tensor([[2, 5]]))
    assert logits.shape == (1, 2, loaded.config.vocab)
