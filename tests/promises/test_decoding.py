"""Known silent bugs of decoding, each with the test that would have caught it; the numbers are those of the list."""

from itertools import permutations, product
from typing import Any

import pytest
import torch

from glassformer.generation.api import generate, generate_stream
from glassformer.generation.settings import GenerationSettings
from tests.configs import built
from tests.generation.test_beam import PROMPT, assert_same, every_text, model_of, reader
from tests.helpers import some_at_once
from tests.parity.harness import pad_rows

PROMPTS = [[5, 1], [2, 4, 4, 0, 1, 3, 2], [1], [4, 2, 3, 1]]
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 1.0, "seed": 5},
    "beams": {"beam_size": 3, "top_beams": 2},
    "groups": {"beam_size": 4, "beam_groups": 2, "diversity": 0.8},
}


# --- row 39: beam stops too early, sign of the length penalty, the end token's length off by one --------------------


@pytest.mark.parametrize("rule", ["power", "gnmt"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
def test_row_39_beam_search_is_exhaustive_search_on_four_words(penalty: float, rule: Any) -> None:
    for seed in (6, 7):
        asked = GenerationSettings(
            beam_size=36, top_beams=36, max_new_tokens=3, eos=(2,), length_penalty=penalty, length_rule=rule
        )
        assert_same(
            generate(model_of("decoder", seed), [PROMPT], asked)[0], every_text(reader("decoder", seed), asked)[:36]
        )


def test_row_39_a_better_text_that_ends_later_is_waited_for() -> None:
    """The best of exhaustive search ends after others have; with early stopping it would be missed."""
    missed = 0
    for seed in range(12):
        asked = GenerationSettings(beam_size=4, max_new_tokens=4, eos=(2,), length_penalty=2.0, early_stopping="never")
        hasty = GenerationSettings(beam_size=4, max_new_tokens=4, eos=(2,), length_penalty=2.0, early_stopping=True)
        patient, quick = (generate(model_of("decoder", seed), [PROMPT], how)[0][0] for how in (asked, hasty))
        assert patient.score >= quick.score - 1e-12
        missed += patient.score > quick.score + 1e-9
    assert missed > 0


# --- row 40: a text depends on its neighbours ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "way"),
    some_at_once(product(("decoder", "pair"), WAYS), lambda given: given[0] == "decoder" or given[1] == "beams"),
)
def test_row_40_any_batch_in_any_order_gives_the_same_texts(family: str, way: str) -> None:
    model = model_of(family, 5 if family == "pair" else 9, 6)
    asked = GenerationSettings(max_new_tokens=7, eos=(3,), no_repeat_ngram=3, **WAYS[way])
    alone = [generate(model, [prompt], asked)[0] for prompt in PROMPTS]
    assert len({tuple(texts[0].ids) for texts in alone}) > 1
    for order in [*list(permutations(range(4)))[5::9], (2, 0, 1, 1, 1, 3)]:
        together = generate(model, [PROMPTS[number] for number in order], asked)
        for number, texts in zip(order, together, strict=True):
            assert [text.ids for text in texts] == [text.ids for text in alone[number]]
            for mine, other in zip(texts, alone[number], strict=True):
                assert mine.score == pytest.approx(other.score, abs=1e-10)
                assert mine.log_probs == pytest.approx(other.log_probs, abs=1e-10)


# --- row 41: the end overwritten, rows that change after it ----------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_row_41_a_text_that_has_ended_stays_as_it_is(way: str) -> None:
    """More room for others changes nothing: the end token is there, once and last, and the score is the same."""
    model = model_of("decoder", 9, 6)
    ended = 0
    for longest in (7, 20):
        asked = GenerationSettings(
            max_new_tokens=longest, eos=(3,), early_stopping="beam_size" in WAYS[way], **WAYS[way]
        )
        texts = [text for some in generate(model, PROMPTS, asked) for text in some]
        if longest == 7:
            first = texts
            continue
        for before, after in zip(first, texts, strict=True):
            if before.ended == "eos" and way in ("greedy", "drawn"):
                assert before == after
            if after.ended == "eos":
                ended += 1
                assert after.ids[-1] == 3
                assert 3 not in after.ids[:-1]
                assert len(after.log_probs) == len(after.ids)
    assert ended > 0


def test_row_41_a_stream_says_nothing_after_the_end() -> None:
    model = model_of("decoder", 9, 6)
    asked = GenerationSettings(max_new_tokens=9, eos=(3,), temperature=1.0)
    ended: set[int] = set()
    for token in generate_stream(model, PROMPTS, asked):
        assert token.prompt not in ended
        if token.token == 3:
            ended.add(token.prompt)
    assert ended


# --- row 45: the mask guessed from the pad id ------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["gpt2", "llama", "bart"])
def test_row_45_padding_is_what_the_mask_says_whatever_the_ids(config: str) -> None:
    model, asked = built(config), GenerationSettings(max_new_tokens=5, top_alternatives=2)
    start = None if model.encoder is None else [2]
    rows = [torch.tensor([3, 0, 1, 2]), torch.tensor([7, 1])]  # tokens that are pads elsewhere
    expected = generate(model, [row.tolist() for row in rows], asked, start=start)
    for fill in (0, 1, 2, 7, 30):
        for side in ("left", "right"):
            ids, mask = pad_rows(rows, side, fill=fill)
            assert generate(model, ids, asked, mask=mask, start=start) == expected


def test_row_45_without_a_mask_every_token_is_real() -> None:
    """Also the pad and end tokens of the model: nothing is guessed."""
    model, asked = built("gpt2"), GenerationSettings(max_new_tokens=3, top_alternatives=31, eos=(0,))
    ids = torch.tensor([[3, 4, 0, 0], [0, 0, 5, 1]])
    assert generate(model, ids, asked) == generate(model, ids.tolist(), asked)
    shorter = generate(model, [[3, 4], [5, 1]], asked)
    for [whole], [short] in zip(generate(model, ids, asked), shorter, strict=True):
        assert whole.log_probs[0] != pytest.approx(short.log_probs[0], abs=1e-6)
