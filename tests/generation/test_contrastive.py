"""Contrastive search: against the formula, computed anew over the whole text at each token."""

from dataclasses import asdict
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glassformer.generation.api import generate, generate_stream
from glassformer.generation.search import GenerationOutput
from glassformer.generation.settings import GenerationSettings, settings
from glassformer.models.transformer import Transformer
from tests.configs import DECODERS, PAIRS, built, tokens
from tests.helpers import some_at_once

START = [3, 8]
LENGTHS = (6, 2, 9)


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    return [tokens(length, seed=seed + number).tolist() for number, length in enumerate(lengths)]


def written(
    name: str, model: Transformer, rows: list[list[int]], how: GenerationSettings, **more: Any
) -> list[GenerationOutput]:
    start = START if name in PAIRS else None
    return [texts[0] for texts in generate(model, rows, how, start=start, **more)]


@torch.no_grad()
def naive(model: Transformer, prompt: list[int], how: GenerationSettings, forbidden: tuple[int, ...] = ()) -> list[int]:
    """Equation 5, nothing remembered: every candidate is appended and the whole text read again."""
    source = None if model.encoder is None else torch.tensor([prompt])
    text = list(prompt) if source is None else list(START)
    memory = None if source is None else model.encode(source)
    begun = len(text)

    def vectors(ids: list[int]) -> torch.Tensor:
        return model.decode(torch.tensor([ids]), memory=memory)[0]

    while len(text) - begun < how.max_new_tokens and (len(text) == begun or text[-1] not in how.eos):
        past = vectors(text)
        logits = model.apply_head(past[None])[0, -1]
        logits[list(forbidden)] = -torch.inf
        probs = logits.softmax(-1)
        best = (-torch.inf, -1)
        for token in probs.argsort(descending=True)[: how.top_k].tolist():
            if probs[token] > 0:
                like = F.cosine_similarity(vectors([*text, token])[-1:], past).max()
                alpha = how.contrastive_alpha or 0.0
                best = max(best, (float((1 - alpha) * probs[token] - alpha * like), token))
        text.append(best[1])
    return text[begun:]


@pytest.mark.parametrize(
    ("name", "path"),
    some_at_once(
        [*product(DECODERS, ["sdpa"]), ("gpt_neo", "eager")],
        {("llama", "sdpa")}.__contains__,
    ),
)
def test_it_is_the_formula(name: str, path: str) -> None:
    model, rows = built(name), prompts(*LENGTHS)
    how = GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=8)
    expected = [naive(model, row, how) for row in rows]
    assert [text.ids for text in written(name, model, rows, how, path=path)] == expected


@pytest.mark.parametrize("name", some_at_once(["gpt_neo", "llama", "bart"], {"llama"}.__contains__))
def test_alpha_matters_and_zero_is_greedy(name: str) -> None:
    model, rows = built(name), prompts(*LENGTHS)
    greedy = written(name, model, rows, GenerationSettings(max_new_tokens=10))
    none = written(name, model, rows, GenerationSettings(contrastive_alpha=0.0, top_k=5, max_new_tokens=10))
    some = written(name, model, rows, GenerationSettings(contrastive_alpha=0.7, top_k=5, max_new_tokens=10))
    assert [text.ids for text in none] == [text.ids for text in greedy]
    for one, other in zip(none, greedy, strict=True):
        assert one.log_probs == pytest.approx(other.log_probs, abs=1e-12)
        assert one.score == pytest.approx(other.score, abs=1e-12)
    assert all(one.ids != other.ids for one, other in zip(some, greedy, strict=True))


def test_of_equal_chances_the_choice_falls_as_in_greedy_search() -> None:
    """One table row for all tokens: every token is as likely as any other."""
    model = built("gptj")
    with torch.no_grad():
        model.head.out.weight.zero_()
        model.head.bias.zero_()
        model.head.bias[[7, 4]] = 1e-12  # too little for a chance in float32
    model.float()
    none = written("gptj", model, [[1, 2]], GenerationSettings(contrastive_alpha=0.0, top_k=3, max_new_tokens=2))
    greedy = written("gptj", model, [[1, 2]], GenerationSettings(max_new_tokens=2))
    assert none[0].ids == greedy[0].ids == [4, 4]


@pytest.mark.parametrize("name", some_at_once(DECODERS, {"gpt_neo", "t5"}.__contains__))
def test_a_row_is_written_as_if_it_were_alone(name: str) -> None:
    """Rows leave the batch at different times: by their stop, by their room (of 24 positions), by their length."""
    model, rows, limits = built(name), prompts(5, 17, 1, 8), (3, 99, 5, 99)
    how = GenerationSettings(contrastive_alpha=0.5, top_k=3, max_new_tokens=9)
    together = written(name, model, rows, how, is_done=lambda prompt, ids: len(ids) == limits[prompt])
    for number, one in enumerate(together):
        limit = limits[number]
        alone = written(name, model, rows[number : number + 1], how, is_done=lambda _, ids, n=limit: len(ids) == n)[0]
        assert (one.ids, one.ended) == (alone.ids, alone.ended)
        assert one.log_probs == pytest.approx(alone.log_probs, abs=1e-10)
    assert [text.ended for text in together[::2]] == ["stop", "stop"]
    is_limited = name not in PAIRS and model.config.max_length is not None
    assert together[1].ended == ("context" if is_limited else "length")


@pytest.mark.parametrize("name", ["gpt2", "t5"])
def test_an_end_token_ends_a_text(name: str) -> None:
    model, rows = built(name), prompts(*LENGTHS)
    free = written(name, model, rows, GenerationSettings(contrastive_alpha=0.5, top_k=3, max_new_tokens=9))
    how = GenerationSettings(contrastive_alpha=0.5, top_k=3, max_new_tokens=9, eos=(free[0].ids[2],))
    texts = written(name, model, rows, how)
    assert [text.ids for text in texts] == [naive(model, row, how) for row in rows]
    assert texts[0].ended == "eos"
    assert len(texts[0].ids) <= 3


def test_padding_on_either_side_and_reading_in_pieces_change_nothing() -> None:
    model, rows = built("gpt2"), prompts(4, 9)
    how = GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=6)
    expected = [text.ids for text in written("gpt2", model, rows, how)]
    for side in ("left", "right"):
        fill = [30] * 5
        ids = torch.tensor([fill + rows[0] if side == "left" else rows[0] + fill, rows[1]])
        real = [False] * 5 + [True] * 4
        mask = torch.tensor([real if side == "left" else real[::-1], [True] * 9])
        assert [text.ids for text in written("gpt2", model, ids, how, mask=mask)] == expected
    assert [text.ids for text in written("gpt2", model, rows, how, chunk=3)] == expected


def test_the_text_ends_where_the_positions_do() -> None:
    model, rows = built("gpt2"), prompts(20, 22)  # its positions end at 24
    texts = written("gpt2", model, rows, GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=9))
    assert [(len(text.ids), text.ended) for text in texts] == [(4, "context"), (2, "context")]


@pytest.mark.parametrize("alpha", [0.6, 1.0])
def test_a_forbidden_token_is_no_candidate_however_unlike_the_others(alpha: float) -> None:
    model, rows = built("llama"), prompts(5, 3)
    forbidden = tuple(range(3, 31))  # three tokens are left, and four candidates asked for
    how = GenerationSettings(contrastive_alpha=alpha, top_k=4, max_new_tokens=6, suppress=forbidden)
    texts = written("llama", model, rows, how)
    assert all(token < 3 for text in texts for token in text.ids)
    assert [text.ids for text in texts] == [naive(model, row, how, forbidden) for row in rows]


def test_rules_act_before_the_candidates_are_taken() -> None:
    model, rows = built("llama"), prompts(5)
    free = written("llama", model, rows, GenerationSettings(contrastive_alpha=0.3, top_k=2, max_new_tokens=6))[0].ids
    how = {"contrastive_alpha": 0.3, "top_k": 2, "max_new_tokens": 6}
    banned = written("llama", model, rows, settings(**how, bad_words=[[free[0]], [free[1], free[2]]]))[0].ids
    assert free[0] not in banned
    forced = written("llama", model, rows, settings(**how, forced_first=11, forced_last=12))[0].ids
    assert (forced[0], forced[-1]) == (11, 12)
    never_twice = written("llama", model, rows, settings(**how, no_repeat_ngram=1))[0].ids
    assert len({*never_twice, *rows[0]}) == len(never_twice) + len(set(rows[0]))


def test_more_candidates_than_tokens() -> None:
    model, rows = built("bart"), prompts(4)
    every = GenerationSettings(contrastive_alpha=0.6, top_k=31, max_new_tokens=4)
    more = GenerationSettings(contrastive_alpha=0.6, top_k=99, max_new_tokens=4)
    assert written("bart", model, rows, more)[0].ids == written("bart", model, rows, every)[0].ids


def test_its_tokens_can_be_streamed_and_stopped() -> None:
    model, rows = built("gpt2"), prompts(4, 7)
    how = GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=6, top_alternatives=2)
    texts = written("gpt2", model, rows, how)
    stream = list(generate_stream(model, rows, how))
    for number, text in enumerate(texts):
        assert [token.token for token in stream if token.prompt == number] == text.ids
        assert [token.log_prob for token in stream if token.prompt == number] == text.log_probs
        assert [token.alternatives for token in stream if token.prompt == number] == text.alternatives
        assert all(len(others) == 2 for others in text.alternatives)
    stopped = written("gpt2", model, rows, how, is_done=lambda prompt, ids: prompt == 1 and len(ids) == 3)
    assert [(len(text.ids), text.ended) for text in stopped] == [(6, "length"), (3, "stop")]


def test_the_record_holds_every_candidate() -> None:
    model, rows = built("gpt2"), prompts(4, 7)
    how = GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=5, record=True)
    for text in written("gpt2", model, rows, how):
        assert text.record is not None
        nodes = text.record.nodes
        kept = [number for number, node in enumerate(nodes) if node.status == "kept"]
        assert [nodes[number].token for number in kept] == text.ids
        assert [nodes[number].log_prob for number in kept] == text.log_probs
        for step in range(5):
            level = [node for node in nodes if node.step == step]
            assert len({node.token for node in level}) == 4
            assert {node.parent for node in level} == {kept[step - 1] if step else None}
            assert max(level, key=lambda node: node.score).status == "kept"
        assert asdict(text)["record"]["nodes"]


def test_numbers_that_are_none_are_refused() -> None:
    model = built("gpt2")
    with torch.no_grad():
        model.embed.token.weight[5] = torch.nan
    with pytest.raises(ValueError, match="the model's logits hold NaN"):
        written("gpt2", model, [[1, 2]], GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=5))


def test_half_precision() -> None:
    model, rows = built("llama", torch.bfloat16), prompts(5, 3)
    for text in written("llama", model, rows, GenerationSettings(contrastive_alpha=0.6, top_k=4, max_new_tokens=5)):
        assert len(text.ids) == 5
        assert text.score < 0
