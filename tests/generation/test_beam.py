"""Beam search against exhaustive search and against a plain one that remembers nothing.

The models are real ones with a vocabulary of four words, in float64. ``naive_beam`` is written from the rules alone:
lists, one text at a time, every prefix read anew.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from math import inf
from typing import Any

import pytest
import torch

from glassformer.config import Embed, LMHead, Tokens
from glassformer.generation.api import generate
from glassformer.generation.search import GenerationOutput
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import Transformer
from tests import configs
from tests.generation.naive import Text, naive_beam, penalised
from tests.helpers import some_at_once

WORDS = 4
PENALTIES = (-1.0, 0.0, 1.0, 2.0)
RULES = ("power", "gnmt")
PROMPT = [1, 2, 0, 1]


@cache
def model_of(family: str, seed: int, words: int = WORDS) -> Transformer:
    """A tiny model that has opinions: the last map is scaled so that some words are likely and some are not."""
    head = LMHead(tied=False, bias=True)
    facts = {
        "decoder": configs.model(
            decoder=configs.stack(causal=True), embed=Embed(position=configs.LEARNED), head=head, vocab=words
        ),
        "pair": replace(configs.CONFIGS["t5"], head=head, vocab=words, tokens=Tokens(start=0)),
    }[family]
    model = configs.built(facts, seed=seed)
    with torch.no_grad():
        model.head.out.weight.mul_(6)
    return model


class Reader:
    """The log-probabilities of the next word, by one pass over everything before it; no cache of keys and values."""

    def __init__(self, model: Transformer, prompt: list[int]) -> None:
        self.model, self.prompt = model, prompt
        self.known: dict[tuple[int, ...], list[float]] = {}

    def __call__(self, written: tuple[int, ...]) -> list[float]:
        if written not in self.known:
            with torch.no_grad():
                if self.model.encoder is None:
                    logits = self.model(torch.tensor([[*self.prompt, *written]]))
                else:
                    logits = self.model(torch.tensor([self.prompt]), target=torch.tensor([[0, *written]]))
            self.known[written] = logits[0, -1].log_softmax(-1).tolist()
        return self.known[written]

    @property
    def history(self) -> list[int]:
        """What stands before the new words in the decoder's own text."""
        return self.prompt if self.model.encoder is None else [0]


@cache
def reader(family: str, seed: int, words: int = WORDS) -> Reader:
    return Reader(model_of(family, seed, words), [word % words for word in PROMPT])


def search(family: str, seed: int, words: int = WORDS, **options: Any) -> list[GenerationOutput]:
    asked = reader(family, seed, words)
    return generate(asked.model, [asked.prompt], GenerationSettings(**options))[0]


def assert_same(ours: list[GenerationOutput], theirs: list[Text]) -> None:
    assert [tuple(text.ids) for text in ours] == [text.ids for text in theirs]
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.score == pytest.approx(other.score, abs=1e-9)


def every_text(read: Reader, settings: GenerationSettings) -> list[Text]:
    """All texts that there are, the best first."""
    texts = []
    others = [word for word in range(WORDS) if word not in settings.eos]
    for length in range(1, settings.max_new_tokens + 1):
        lasts = range(WORDS) if length == settings.max_new_tokens else settings.eos
        for ids in product(*[others] * (length - 1), lasts):
            total = sum(read(ids[:at])[word] for at, word in enumerate(ids))
            texts.append(Text(ids, penalised(total, length, settings)))
    return sorted(texts, key=lambda text: -text.score)


# --- exhaustive search -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("penalty", "rule"), some_at_once(product(PENALTIES, RULES), lambda given: (given[0] > 0) == (given[1] == "gnmt"))
)
@pytest.mark.parametrize("eos", [(3,), (0, 2)], ids=str)
def test_a_beam_wide_enough_finds_every_text_in_order(penalty: float, rule: Any, eos: tuple[int, ...]) -> None:
    """As many beams as the last step has continuations: nothing can be lost, so the n best are the n best of all."""
    for family, seed, length in (("decoder", 0, 4), ("decoder", 1, 3), ("pair", 0, 3)):
        wide = (WORDS - len(eos)) ** (length - 1) * WORDS
        asked = GenerationSettings(
            beam_size=wide, top_beams=wide, max_new_tokens=length, eos=eos, length_penalty=penalty, length_rule=rule
        )
        all_texts = every_text(reader(family, seed), asked)
        assert len(all_texts) > wide  # so that the worst are left out
        ours = generate(model_of(family, seed), [PROMPT], asked)[0]
        assert_same(ours, all_texts[:wide])
        assert {text.ended for text in ours} == {"eos", "length"}
        for text in ours:
            assert text.ended == ("eos" if text.ids[-1] in eos else "length")
            total = sum(text.log_probs)
            assert text.score == pytest.approx(penalised(total, len(text.ids), asked), abs=1e-9)


@pytest.mark.parametrize("early", [False, "never"])
@pytest.mark.parametrize(
    ("penalty", "rule"), some_at_once(product(PENALTIES, RULES), lambda given: (given[0] > 0) == (given[1] == "power"))
)
def test_a_beam_for_every_live_prefix_finds_the_best_text(penalty: float, rule: Any, early: Any) -> None:
    """27 prefixes of three words can live; the longest, the shortest and all between compete."""
    for seed in range(2):
        asked = GenerationSettings(
            beam_size=27, max_new_tokens=4, eos=(3,), length_penalty=penalty, length_rule=rule, early_stopping=early
        )
        best = every_text(reader("decoder", seed), asked)[0]
        assert_same(generate(model_of("decoder", seed), [PROMPT], asked)[0], [best])


@pytest.mark.parametrize("rule", RULES)
def test_a_penalty_above_0_favours_long_texts_and_below_0_short_ones(rule: Any) -> None:
    for seed in range(3):
        lengths = [
            len(
                search(
                    "decoder", seed, beam_size=27, max_new_tokens=4, eos=(3,), length_penalty=penalty, length_rule=rule
                )[0].ids
            )
            for penalty in (-30.0, -1.0, 0.0, 1.0, 30.0)
        ]
        assert lengths == sorted(lengths)
        assert lengths[0] < lengths[-1]


def test_the_end_token_is_counted_and_the_prompt_is_not() -> None:
    text = search("decoder", 0, beam_size=4, max_new_tokens=1, eos=(3,), length_penalty=3.0)[0]
    assert text.score == pytest.approx(sum(text.log_probs))  # length 1, whatever the prompt
    ended = next(
        text
        for text in search("decoder", 0, beam_size=36, top_beams=30, max_new_tokens=3, eos=(3,), length_penalty=2.0)
        if text.ended == "eos" and len(text.ids) == 2
    )
    assert ended.score == pytest.approx(sum(ended.log_probs) / 2**2)


# --- a beam that covers little ---------------------------------------------------------------------------------------

RESTRAINTS: dict[str, dict[str, Any]] = {
    "free": {},
    "two ends": {"eos": (3, 1)},
    "no end": {"eos": ()},
    "at least 4": {"min_new_tokens": 4},
    "repetition": {"repetition_penalty": 1.7},
    "repetition wanted": {"repetition_penalty": 0.6},
    "no bigram twice": {"no_repeat_ngram": 2},
    "no trigram twice, at least 3, repetition": {"no_repeat_ngram": 3, "min_new_tokens": 3, "repetition_penalty": 1.3},
    "first and last forced": {"forced_first": 2, "forced_last": 3},
    "bias, bad words, suppressed": {"logit_bias": ((0, -1.5),), "bad_words": ((1, 1), (2, 0, 1)), "suppress": (2,)},
}


EARLY = (False, True, "never")
ALL = list(product(("free", "two ends"), PENALTIES, EARLY))  # the others: every penalty, the stopping rules in turn
ALL += [(name, PENALTIES[i], EARLY[(i + j) % 3]) for j, name in enumerate(list(RESTRAINTS)[2:]) for i in range(4)]


AT_ONCE = {*ALL[::6], *ALL[1::11]}


@pytest.mark.parametrize(("restraint", "penalty", "early"), some_at_once(ALL, AT_ONCE.__contains__))
def test_a_narrow_beam_equals_a_naive_one(restraint: str, penalty: float, early: Any) -> None:
    cases = (("decoder", 2, 2, 7, "power"), ("pair", 3, 3, 6, "gnmt"), ("decoder", 0, 4, 6, "power"))
    for family, seed, size, longest, rule in cases:
        options: dict[str, Any] = {"eos": (3,), **RESTRAINTS[restraint]}
        asked = GenerationSettings(
            beam_size=size, top_beams=size - 1, max_new_tokens=longest, length_penalty=penalty, length_rule=rule,
            early_stopping=early, **options,
        )  # fmt: skip
        read = reader(family, seed, 6)
        expected = naive_beam(read, read.history, asked)
        assert len(expected) >= size - 1
        assert_same(generate(read.model, [read.prompt], asked)[0], expected[: size - 1])


def test_with_many_end_tokens_more_continuations_are_looked_at() -> None:
    """Or else end tokens would fill the 2 · k places, and nothing would be left to go on with."""
    for seed in (3, 6, 7):
        asked = GenerationSettings(
            beam_size=2, max_new_tokens=8, eos=(0, 1, 3, 4), length_penalty=2.0, early_stopping="never"
        )
        read = reader("decoder", seed, 6)
        [best, *_] = naive_beam(read, read.history, asked)
        assert len(best.ids) > 1
        assert_same(generate(read.model, [read.prompt], asked)[0], [best])


def test_the_stopping_rules_disagree() -> None:
    """Or else one of them would stand for all three in the test above."""
    found: dict[Any, list[Any]] = {}
    for early in (False, True, "never"):
        asked = GenerationSettings(beam_size=3, max_new_tokens=9, eos=(3, 1), length_penalty=2.0, early_stopping=early)
        found[early] = [generate(model_of("decoder", seed, 6), [PROMPT], asked)[0][0].ids for seed in range(8)]
    assert found[False] != found[True]
    assert found[False] != found["never"]


@pytest.mark.parametrize(
    ("restraint", "size", "groups", "diversity"),
    some_at_once(
        [
            (restraint, size, groups, diversity)
            for restraint in ("free", "two ends", "no end", "no bigram twice")
            for size, groups in ((4, 2), (4, 4), (6, 3))
            for diversity in (0.7, 5.0)
        ],
        lambda given: given[1:] == (6, 3, 0.7) or given == ("free", 4, 4, 5.0),
    ),
)
def test_groups_of_beams_equal_naive_ones(restraint: str, size: int, groups: int, diversity: float) -> None:
    for family, seed, longest, early, penalty in (
        ("decoder", 4, 1, False, 1.0), ("pair", 1, 5, True, 0.0), ("decoder", 4, 5, False, 1.0),
        ("decoder", 2, 6, "never", 2.0),
    ):  # fmt: skip
        options: dict[str, Any] = {"eos": (3,), **RESTRAINTS[restraint]}
        asked = GenerationSettings(
            beam_size=size, top_beams=2, beam_groups=groups, diversity=diversity, max_new_tokens=longest,
            early_stopping=early, length_penalty=penalty, **options,
        )  # fmt: skip
        read = reader(family, seed, 6)
        assert_same(generate(read.model, [read.prompt], asked)[0], naive_beam(read, read.history, asked)[:2])


def test_groups_with_a_strong_penalty_say_different_things() -> None:
    options = {"beam_size": 4, "top_beams": 4, "max_new_tokens": 5, "beam_groups": 4}
    alike = search("decoder", 4, 6, **options)
    diverse = search("decoder", 4, 6, **options, diversity=50.0)
    assert len({tuple(text.ids) for text in alike}) == 1  # four times greedy search
    for at in range(5):
        assert len({text.ids[at] for text in diverse}) == 4


def test_one_beam_is_greedy_search() -> None:
    for seed in range(4):
        greedy = search("decoder", seed, 6, max_new_tokens=8, eos=(3,))[0]
        read = reader("decoder", seed, 6)
        [naive] = naive_beam(read, read.history, GenerationSettings(beam_size=1, max_new_tokens=8, eos=(3,)))
        assert tuple(greedy.ids) == naive.ids


# --- many prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "path"),
    some_at_once(
        product(["decoder", "pair"], ["sdpa", "eager"]),
        {("decoder", "eager"), ("pair", "sdpa")}.__contains__,
    ),
)
def test_every_prompt_is_searched_as_if_alone(family: str, path: str) -> None:
    model = model_of(family, 5 if family == "pair" else 9, 6)
    prompts = [[1, 2], [5, 0, 4, 2, 1, 1], [2], [3, 3, 3, 1]]
    asked = GenerationSettings(
        beam_size=3, top_beams=3, max_new_tokens=8, eos=(3,), length_penalty=0.0, top_alternatives=2
    )
    together = generate(model, prompts, asked, path=path)
    assert len({tuple(texts[0].ids) for texts in together}) > 1
    for prompt, texts in zip(prompts, together, strict=True):
        read = Reader(model, prompt)
        assert_same(texts, naive_beam(read, read.history, asked))
        for text in texts:
            for at, (log_prob, others) in enumerate(zip(text.log_probs, text.alternatives, strict=True)):
                expected = torch.tensor(read(tuple(text.ids[:at])), dtype=torch.float64)
                assert log_prob == pytest.approx(float(expected[text.ids[at]]), abs=1e-10)
                best = expected.topk(2)
                assert [other.token for other in others] == best.indices.tolist()
                assert [other.log_prob for other in others] == pytest.approx(best.values.tolist(), abs=1e-10)


def test_more_beams_than_words() -> None:
    """Eight beams, six words: at the first step two beams have nothing to continue; they must not become texts."""
    texts = search("decoder", 1, 6, beam_size=8, top_beams=6, max_new_tokens=1)
    assert sorted(text.ids for text in texts) == [[word] for word in range(6)]
    with pytest.raises(ValueError, match=r"has only 6 possible continuations .* top_beams=7 .* set top_beams=6"):
        search("decoder", 1, 6, beam_size=8, top_beams=7, max_new_tokens=1)
    texts = search("decoder", 1, 6, beam_size=8, top_beams=8, max_new_tokens=3, eos=(2,))
    assert len({tuple(text.ids) for text in texts}) == 8
    assert all(text.score > -inf for text in texts)


def test_stop_strings_end_beams_too() -> None:
    asked = GenerationSettings(beam_size=3, top_beams=3, max_new_tokens=6)
    calls: Counter[int] = Counter()

    def is_done(prompt: int, ids: Any) -> bool:
        calls[prompt] += 1
        return tuple(ids[-2:]) == (5, 2)

    texts = generate(model_of("decoder", 4, 6), [PROMPT], asked, is_done=is_done)[0]
    read = reader("decoder", 4, 6)
    assert_same(texts, naive_beam(read, read.history, asked, is_done=lambda ids: ids[-2:] == (5, 2)))
    assert calls[0] > 0
    assert {text.ended for text in texts} == {"stop"}
