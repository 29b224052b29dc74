"""Speculative decoding: whatever the draft, the text, or its distribution, is that of the model alone."""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import pytest
import torch

from glassformer.config import change
from glassformer.generation import speculative
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.decoder import Decoder
from glassformer.generation.filters import Filters
from glassformer.generation.search import GenerationOutput, SearchRow, SeededRNG, draw, probs
from glassformer.generation.settings import GenerationSettings, settings
from glassformer.generation.speculative import Draft, DraftStats, ModelDraft, PromptLookup, Proposal, accept
from glassformer.models.transformer import Transformer
from tests.configs import CONFIGS, DECODERS, PAIRS, built, tokens
from tests.helpers import largest_difference, normal, some_at_once, types_unchecked

Rule = Callable[..., tuple[torch.Tensor, torch.Tensor]]
START = [3, 8]
SURE = 1e-4  # a correct rule gives a smaller number once in so many seeds, and the seeds are fixed


class Parrot:
    """A draft that always proposes the same tokens."""

    def __init__(self, *tokens: int, q: torch.Tensor | None = None, obedient: bool = True) -> None:
        self.tokens, self.q, self.obedient = list(tokens), q, obedient
        self.stats = DraftStats()

    def begin(self, settings: GenerationSettings, vocab_size: int, source: Sequence[int] | None) -> None:
        pass

    def propose(self, row: SearchRow, max_new: int, rng: SeededRNG) -> Proposal:
        del row, rng
        return self.tokens[:max_new] if self.obedient else self.tokens, self.q


def prompts(*lengths: int, seed: int = 0) -> list[list[int]]:
    return [tokens(length, seed=seed + number).tolist() for number, length in enumerate(lengths)]


def written(
    name: str, model: Transformer, rows: list[list[int]], how: GenerationSettings, **more: Any
) -> list[list[GenerationOutput]]:
    return generate(model, rows, how, start=START if name in PAIRS else None, **more)


def equal(found: list[list[GenerationOutput]], expected: list[list[GenerationOutput]]) -> bool:
    """The same tokens for the same reason, and log-probabilities up to rounding."""
    pairs = [pair for rows in zip(found, expected, strict=True) for pair in zip(*rows, strict=True)]
    return all(
        one.ids == other.ids and one.ended == other.ended and one.log_probs == pytest.approx(other.log_probs, abs=1e-10)
        for one, other in pairs
    )


def improbability(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """How likely numbers at least as far from the expected ones are (chi-square); rare cells are taken together."""
    counts, expected = counts.double().flatten(), expected.double().flatten()
    assert not counts[expected == 0].any(), "what cannot be was drawn"
    rare = expected < 8
    cells = [(counts[~rare], expected[~rare]), (counts[rare].sum()[None], expected[rare].sum()[None])]
    seen, wanted = (torch.cat(column) for column in zip(*cells, strict=True))
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    if len(wanted) == 1:
        return float(seen == wanted)
    square = ((seen - wanted) ** 2 / wanted).sum()
    return float(torch.special.gammaincc(torch.tensor((len(wanted) - 1) / 2, dtype=torch.float64), square / 2))


# ---- the rule by itself


def uniforms(*shape: int, seed: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def always(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, _: torch.Tensor) -> Any:
    del p, q
    return torch.ones_like(drafts, dtype=torch.bool), drafts


def never_less_likely(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, numbers: torch.Tensor) -> Any:
    """Accepts wherever p ≥ q, and never else: the residual is right, the chance of acceptance not."""
    at = drafts[:, None]
    accepted = (p.gather(-1, at) >= q.gather(-1, at)).squeeze(-1)
    return accepted, torch.where(accepted, drafts, draw((p - q).clamp(min=1e-30), numbers[:, 1]))


def from_p_itself(p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, numbers: torch.Tensor) -> Any:
    """Replaces what falls by a draw from p, not from what p has more than q."""
    accepted, _ = accept(p, q, drafts, numbers)
    return accepted, torch.where(accepted, drafts, draw(p, numbers[:, 1]))


TABLES = {
    "any": (normal(5, seed=1).softmax(-1), normal(5, seed=2).softmax(-1)),
    "the draft is blind to a token": (torch.tensor([0.2, 0.3, 0.1, 0.4, 0.0]), torch.tensor([0.5, 0.0, 0.0, 0.3, 0.2])),
    "nothing in common": (torch.tensor([0.5, 0.5, 0, 0, 0]), torch.tensor([0, 0, 0.2, 0.2, 0.6])),
    "certain tokens": (normal(5, seed=3).softmax(-1), torch.tensor([0.0, 0, 1, 0, 0])),
    "a certain answer": (torch.tensor([0.0, 1, 0, 0, 0]), normal(5, seed=4).softmax(-1)),
    "sums off by rounding": (torch.tensor([0.3, 0.2, 0.5, 0, 0]) * (1 - 1e-6), torch.tensor([0.3, 0.2, 0.5, 0, 0])),
}


@pytest.mark.parametrize("name", TABLES)
def test_what_is_written_has_the_chances_of_the_model(name: str) -> None:
    p, q = (table.double() for table in TABLES[name])
    draws = 200_000
    drafts = draw(q.expand(draws, 5), uniforms(draws, seed=0))
    accepted, token = accept(p.expand(draws, 5), q.expand(draws, 5), drafts, uniforms(draws, 2, seed=1))
    assert improbability(torch.bincount(token, minlength=5), p * draws) > SURE
    assert torch.equal(token[accepted], drafts[accepted])
    # As many stand as the two have in common (Leviathan et al. 2023, theorem 3.5).
    common = float(torch.minimum(p, q).sum())
    assert float(accepted.double().mean()) == pytest.approx(
        common, abs=5 * (common * (1 - common) / draws) ** 0.5 + 1e-5
    )


def joint(rule: Rule, draws: int = 100_000) -> float:
    """Three tokens, each with probabilities that depend on the token before: two from the draft, the rest sampled."""
    p, q = (normal(4, 4, seed=seed).mul(1.5).softmax(-1) for seed in (5, 6))
    first, last = torch.zeros(draws, dtype=torch.long), []
    draft_numbers, numbers, plain = (uniforms(draws, 3, n, seed=n) for n in (1, 2, 3))
    all_accepted = torch.ones(draws, dtype=torch.bool)
    before = draft_before = first
    for place in range(3):
        token = draw(p[before], plain[:, place, 0])
        if place < 2:
            drafts = draw(q[draft_before], draft_numbers[:, place, 0])
            accepted, chosen = rule(p[before], q[draft_before], drafts, numbers[:, place])
            token = torch.where(all_accepted, chosen, token)
            all_accepted, draft_before = all_accepted & accepted, drafts
        last.append(token)
        before = token
    cells = torch.bincount(last[0] * 16 + last[1] * 4 + last[2], minlength=64)
    expected = p[0][:, None, None] * p[:, :, None] * p[None]
    return improbability(cells, expected * draws)


def test_several_tokens_have_their_joint_chances_and_a_wrong_rule_shows() -> None:
    assert joint(accept) > SURE
    for wrong in (always, never_less_likely, from_p_itself):
        assert joint(wrong) < 1e-20, wrong.__name__


def test_a_draft_token_that_the_model_never_generates_is_never_accepted() -> None:
    p, q = torch.tensor([[0.0, 1.0]] * 2), torch.tensor([[0.5, 0.5]] * 2)
    numbers = torch.tensor([[0.0, 0.0], [0.0, 1 - 2.0**-53]], dtype=torch.float64)
    accepted, token = accept(p, q, torch.tensor([0, 0]), numbers)
    assert accepted.tolist() == [False, False]
    assert token.tolist() == [1, 1]


def test_a_draft_token_of_probability_zero_is_refused() -> None:
    half = torch.full((1, 2), 0.5)
    with pytest.raises(ValueError, match=r"a draft proposed \[1\], tokens whose probability in q is 0"):
        accept(half, torch.tensor([[1.0, 0.0]]), torch.tensor([1]), uniforms(1, 2, seed=0))


# ---- whole texts, drawn

TINY = change(change(CONFIGS["gptj"], "vocab", 4), "decoder.layers", 1)
LOOPS: dict[str, tuple[str, dict[str, Any]]] = {
    "model": ("model", {}),
    "model, warm, top-k": ("model", {"temperature": 1.7, "top_k": 3}),
    "model, top-p, penalties": ("model", {"top_p": 0.8, "repetition_penalty": 1.8, "logit_bias": ((2, 0.5),)}),
    "model, end token": ("model", {"eos": (3,), "min_new_tokens": 1, "typical_p": 0.95}),
    "lookup, min-p": ("lookup", {"min_p": 0.1}),
    "lookup, no repeats, end token": ("lookup", {"no_repeat_ngram": 3, "eos": (0,), "bad_words": ((1, 2),)}),
}


def sharp(seed: int) -> Transformer:
    """A tiny model with clear likings, so that two of them differ much."""
    model = built(TINY, seed=seed)
    with torch.no_grad():
        model.head.out.weight.mul_(2.5)
        model.embed.token.weight.mul_(6)
    return model


@torch.no_grad()
def distribution(model: Transformer, prompt: list[int], how: GenerationSettings) -> dict[tuple[int, ...], float]:
    """Every text that can be, with its chance, by the model's own forward pass."""
    rules, texts, open_texts = Filters(how, 4), {}, {(): 1.0}
    for written in range(how.max_new_tokens):
        longer = {}
        for text, chance in open_texts.items():
            history = [*prompt, *text]
            logits = model(torch.tensor([history]))[:, -1]
            row = probs(rules.warp(rules.process(logits, [history], written)))[0]
            longer |= {(*text, token): chance * float(row[token]) for token in range(4)}
        texts |= {text: chance for text, chance in longer.items() if text[-1] in how.eos}
        open_texts = {text: chance for text, chance in longer.items() if text not in texts and chance > 0}
    return texts | open_texts


def loop_improbability(kind: str, options: dict[str, Any], texts: int = 1000) -> float:
    model, prompt = sharp(0), [1, 2, 1, 3, 1]
    draft: Draft = ModelDraft(sharp(1), 2) if kind == "model" else PromptLookup(2, 2)
    how = GenerationSettings(**{"temperature": 1.0, "max_new_tokens": 3, "samples": texts, **options})
    with types_unchecked():  # checked in the other tests; here it would cost most of the time
        found = Counter(tuple(text.ids) for text in generate(model, [prompt], how, draft=draft)[0])
        expected = distribution(model, prompt, how)
    assert 0 < draft.stats.accepted < draft.stats.proposed
    assert set(found) <= set(expected)
    cells = [(found[text], chance * texts) for text, chance in expected.items()]
    return improbability(*(torch.tensor(column, dtype=torch.float64) for column in zip(*cells, strict=True)))


@pytest.mark.slow  # at once, the rule is tried by itself: see joint
@pytest.mark.parametrize("name", LOOPS)
def test_whole_texts_have_the_distribution_of_the_model_alone(name: str) -> None:
    assert loop_improbability(*LOOPS[name]) > SURE


@pytest.mark.slow  # at once, wrong rules are tried by themselves: see joint
@pytest.mark.parametrize("wrong", [never_less_likely, from_p_itself])
def test_a_wrong_rule_shows_in_whole_texts(wrong: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speculative, "accept", wrong)
    assert loop_improbability("model", {}) < 1e-6


@pytest.mark.parametrize("name", some_at_once(["llama", "t5"], {"llama"}.__contains__))
def test_a_drawn_text_does_not_depend_on_its_neighbours(name: str) -> None:
    model, small, rows = built(name), built(name, seed=1), prompts(5, 2, 9)
    how = settings(temperature=1.0, max_new_tokens=7, samples=2, seed=[4, 5, 6])
    together = written(name, model, rows, how, draft=ModelDraft(small, 3))
    for number, row in enumerate(rows):
        single = settings(temperature=1.0, max_new_tokens=7, samples=2, seed=4 + number)
        alone = written(name, model, [row], single, draft=ModelDraft(small, 3))
        assert equal([together[number]], alone)
    assert len({tuple(text.ids) for texts in together for text in texts}) == 6


@pytest.mark.parametrize("name", some_at_once(["gpt_neo", "bart"], {"gpt_neo"}.__contains__))
def test_log_probabilities_are_those_of_the_whole_text_read_anew(name: str) -> None:
    """After every rejection, and from one sample to the next, the cache is as if there had been no draft."""
    model, rows = built(name), prompts(5, 9)
    how = GenerationSettings(temperature=2.0, max_new_tokens=8, samples=3, top_alternatives=2)
    draft = ModelDraft(built(name, seed=1), 4)
    for row, texts in zip(rows, written(name, model, rows, how, draft=draft), strict=True):
        for text in texts:
            begun = START if name in PAIRS else row
            ids = torch.tensor([begun + text.ids])
            with torch.no_grad():
                logits = model(torch.tensor([row]), target=ids) if name in PAIRS else model(ids)
            logs = logits[0].log_softmax(-1)[len(begun) - 1 : -1]
            expected = logs.gather(-1, torch.tensor(text.ids)[:, None]).flatten()
            assert text.log_probs == pytest.approx(expected.tolist(), abs=1e-12)
            assert [others[0].token for others in text.alternatives] == logs.argmax(-1).tolist()
    assert draft.stats.accepted < draft.stats.proposed


# ---- whole texts, the likeliest


def drafts(name: str) -> dict[str, Draft]:
    return {
        "the model itself": ModelDraft(built(name), 4),
        "another": ModelDraft(built(name, seed=1), 3, path="eager"),
        "lookup": PromptLookup(2, 6),
        "parrot": Parrot(30, 30, 30),
        "silence": Parrot(),
    }


@pytest.mark.parametrize(
    ("name", "path"),
    some_at_once(
        [*product(DECODERS, ["sdpa"]), ("gpt_neo", "eager"), ("t5", "eager")],
        {("gpt_neo", "sdpa")}.__contains__,
    ),
)
def test_greedy_texts_are_the_same_whatever_the_draft(name: str, path: str) -> None:
    model, rows = built(name), prompts(5, 2, 15)
    how = GenerationSettings(max_new_tokens=10, record=True)
    expected = written(name, model, rows, how)
    for kind, draft in drafts(name).items():
        found = written(name, model, rows, how, draft=draft, path=path)
        assert equal(found, expected), kind
        stats = draft.stats
        assert stats.tokens == sum(len(texts[0].ids) for texts in expected)
        if kind == "the model itself":
            assert 0 < stats.accepted == stats.proposed
            assert stats.passes < stats.tokens / 2
        for text, other in zip(found, expected, strict=True):
            assert [node.token for node in text[0].record.nodes] == [node.token for node in other[0].record.nodes]


RULES: dict[str, dict[str, Any]] = {
    "penalty": {"repetition_penalty": 1.7},
    "no repeats": {"no_repeat_ngram": 2},
    "ends": {"min_new_tokens": 6, "eos": (1, 4, 9, 12)},
    "forced": {"forced_first": 7, "forced_last": 9},
    "bad words": {"bad_words": ((3,), (5, 6), (2, 2)), "suppress": (11,), "logit_bias": ((4, 2.0), (8, 1.5))},
}


@pytest.mark.parametrize(
    ("name", "rules"),
    some_at_once(product(["gpt2", "t5"], RULES), {("gpt2", "ends")}.__contains__),
)
def test_rules_see_each_draft_token_at_its_own_position(name: str, rules: str) -> None:
    model, rows = built(name), prompts(5, 3)
    how = GenerationSettings(max_new_tokens=10, **RULES[rules])
    expected = written(name, model, rows, how)
    for kind, draft in drafts(name).items():
        assert equal(written(name, model, rows, how, draft=draft), expected), kind
        if kind == "the model itself":
            assert 0 < draft.stats.accepted == draft.stats.proposed  # the same rules at the same places


@pytest.mark.parametrize("name", some_at_once(["gptj", "bart"], {"gptj"}.__contains__))
def test_a_text_ends_within_the_draft_where_it_would_have_ended(name: str) -> None:
    model, rows = built(name), prompts(5, 17)
    free = written(name, model, rows, GenerationSettings(max_new_tokens=12))
    for end in range(1, 7):
        how = GenerationSettings(max_new_tokens=12, eos=(free[0][0].ids[end],))
        assert equal(written(name, model, rows, how, draft=ModelDraft(model, 20)), written(name, model, rows, how))
        asked: dict[bool, list[tuple[int, ...]]] = {True: [], False: []}
        found = {}
        for has_draft in (True, False):

            def is_done(prompt: int, ids: Sequence[int], asked: Any = asked[has_draft], end: int = end) -> bool:
                asked.append((prompt, *ids))
                return len(ids) == end

            draft = ModelDraft(model, 20) if has_draft else None
            found[has_draft] = written(
                name, model, rows, GenerationSettings(max_new_tokens=12), is_done=is_done, draft=draft
            )
        assert equal(found[True], found[False])
        assert {texts[0].ended for texts in found[True]} == {"stop"}
        assert sorted(asked[True]) == sorted(asked[False])
        how = GenerationSettings(max_new_tokens=end)
        assert equal(written(name, model, rows, how, draft=ModelDraft(model, 20)), written(name, model, rows, how))


def test_a_text_ends_where_the_positions_of_the_model_do() -> None:
    model, rows = built("gpt2"), prompts(20, 23)  # its positions end at 24
    found = generate(model, rows, GenerationSettings(max_new_tokens=9), draft=ModelDraft(model, 20))
    assert equal(found, generate(model, rows, GenerationSettings(max_new_tokens=9)))
    assert [(len(texts[0].ids), texts[0].ended) for texts in found] == [(4, "context"), (1, "context")]


def test_a_draft_model_proposes_nothing_past_its_positions() -> None:
    model, rows = built("gpt2"), prompts(3, 9, 8)
    short = built(change(CONFIGS["gpt2"], "embed.position.length", 8))
    draft = ModelDraft(short, 4)
    assert equal(
        generate(model, rows, GenerationSettings(max_new_tokens=9), draft=draft),
        generate(model, rows, GenerationSettings(max_new_tokens=9)),
    )
    long_alone = ModelDraft(short, 4)
    generate(model, rows[1:2], GenerationSettings(max_new_tokens=9), draft=long_alone)
    assert draft.stats.proposed > long_alone.stats.proposed == 0


def test_rules_about_a_draft_token_count_only_if_it_is_accepted() -> None:
    """After token 5 nothing may follow. The text never gets there, only the draft does."""
    model, wild = built("gptj"), built("gptj", seed=1)
    with torch.no_grad():
        wild.head.bias[5] = 50.0
        model.head.bias[5] = -50.0
    how = GenerationSettings(max_new_tokens=6, bad_words=tuple((5, token) for token in range(31)))
    expected = generate(model, [[1, 2, 3]], how)
    for draft in (ModelDraft(wild, 3), Parrot(5, 6, 7), Parrot(expected[0][0].ids[0], 5, 6)):
        assert equal(generate(model, [[1, 2, 3]], how, draft=draft), expected)
        assert draft.stats.proposed > draft.stats.accepted
    with pytest.raises(ValueError, match="no token is left to generate"):
        generate(wild, [[1, 2, 3]], how, draft=ModelDraft(wild, 3))


def test_a_draft_in_training_mode_drops_nothing_and_stays_in_it() -> None:
    model = built(change(CONFIGS["gpt2"], "decoder.dropout", 0.5))
    small = built(change(CONFIGS["gpt2"], "decoder.dropout", 0.5)).train()
    draft = ModelDraft(small, 4)
    assert equal(
        generate(model, [[1, 2]], GenerationSettings(max_new_tokens=9), draft=draft),
        generate(model, [[1, 2]], GenerationSettings(max_new_tokens=9)),
    )
    assert draft.stats.accepted == draft.stats.proposed > 0
    assert small.training
    assert not model.training


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_an_encoder_decoder_takes_a_draft_of_either_kind(kind: str) -> None:
    model, rows = built("t5"), prompts(5, 9)
    small = built("bart" if kind == "encoder-decoder" else "llama", seed=2)
    how = GenerationSettings(max_new_tokens=8)
    draft = ModelDraft(small, 3)
    assert equal(generate(model, rows, how, start=START, draft=draft), generate(model, rows, how, start=START))
    assert draft.stats.proposed > 0


def test_tokens_come_as_they_are_written() -> None:
    model, rows = built("gpt2"), prompts(4, 7)
    how = GenerationSettings(max_new_tokens=6, temperature=1.0, samples=2)
    texts = generate(model, rows, how, draft=ModelDraft(built("gpt2", seed=1), 3))
    stream = list(generate_stream(model, rows, how, draft=ModelDraft(built("gpt2", seed=1), 3)))
    for prompt, sample in product(range(2), range(2)):
        mine = [token for token in stream if (token.prompt, token.sample) == (prompt, sample)]
        assert [token.token for token in mine] == texts[prompt][sample].ids
        assert [token.log_prob for token in mine] == texts[prompt][sample].log_probs


@pytest.mark.parametrize("kind", ["plain", "contrastive", "draft"])
def test_a_stream_leaves_the_modes_of_its_caller_alone(kind: str) -> None:
    model, seen = built("gpt2").train(), []

    def is_done(_: int, __: Sequence[int]) -> bool:
        seen.append((torch.is_inference_mode_enabled(), model.training))
        return False

    more = {"contrastive_alpha": 0.5, "top_k": 2} if kind == "contrastive" else {}
    how = GenerationSettings(max_new_tokens=6, **more)
    stream = generate_stream(model, [[1, 2]], how, is_done=is_done, draft=PromptLookup() if kind == "draft" else None)
    for _ in range(3):
        next(stream)
        assert torch.is_grad_enabled()
        assert not torch.is_inference_mode_enabled()
    stream.close()
    assert model.training
    assert seen == [(True, True)] * 2


# ---- caches that are taken back


@pytest.mark.parametrize(
    ("name", "path"), some_at_once(product(DECODERS, ("sdpa", "eager")), lambda given: given[1] == "sdpa")
)
def test_a_cropped_cache_is_as_good_as_a_fresh_one(name: str, path: str) -> None:
    model = built(name)
    source = tokens(1, 6, seed=3) if name in PAIRS else None
    ids, junk = tokens(1, 9), tokens(1, 4, seed=1)
    with torch.no_grad():
        answers = []
        for has_draft in (True, False):
            steps = Decoder(model, source, path=path)
            cache, _ = steps.prefill(ids[:, :5], None, 12, evicts=False)
            if has_draft:
                steps.step(junk, cache)
                cache.crop(5)
                steps.step(junk[:, :2], cache)
                cache.crop(4)
                steps.step(ids[:, 4:5], cache)
            answers.append(steps.step(ids[:, 5:], cache, tail=4))
        assert largest_difference(*answers) < 1e-12


@pytest.mark.parametrize("name", some_at_once(["gpt_neo", "llama", "t5"], {"t5"}.__contains__))
def test_a_draft_after_a_rejection_proposes_like_a_new_one(name: str) -> None:
    source = [4, 5, 6, 7] if name in PAIRS else None
    how = GenerationSettings(temperature=1.0, max_new_tokens=20)

    def begun() -> ModelDraft:
        draft = ModelDraft(built(name), 4)
        draft.begin(how, 31, source)
        return draft

    with torch.inference_mode():
        used, row = begun(), SearchRow(0, 0, [3, 8, 2], 21)
        for kept in (0, 2, 4, 1, 0):
            drafts, _ = used.propose(row, 4, SeededRNG([(1, 0)]))
            for token in [*drafts[:kept], 30]:
                row.ids.append(token)
                row.history.append(token)
            again, fresh = (draft.propose(row, 4, SeededRNG([(2, 0)])) for draft in (used, begun()))
            assert again[0] == fresh[0]
            assert again[1] is not None
            assert largest_difference(again[1], fresh[1]) < 1e-12


# ---- looking things up


def proposed(history: list[int], ngram: int = 3, length: int = 4, most: int = 99, source: Any = None) -> list[int]:
    draft = PromptLookup(ngram, length)
    draft.begin(GenerationSettings(), 100, source)
    drafts, q = draft.propose(SearchRow(0, 0, history, 99), most, SeededRNG([(0, 0)]))
    assert q is None
    return drafts


def test_lookup_copies_what_followed_the_same_tokens() -> None:
    assert proposed([1, 2, 3, 4, 5, 6, 7, 2, 3]) == [4, 5, 6, 7]
    assert proposed([1, 2, 3, 4, 5, 6, 7, 2, 3], most=2) == [4, 5]
    assert proposed([1, 2, 9, 8, 2, 7, 6, 2]) == [7, 6, 2, 7], "the latest place"
    assert proposed([1, 2, 9, 8, 2, 7, 6, 1, 2]) == [9, 8, 2, 7], "the longest run before the latest place"
    assert proposed([1, 2, 9, 8, 2, 7, 6, 1, 2], ngram=1) == [7, 6, 1, 2]
    assert proposed([5, 6, 5, 6, 5], length=6) == [6, 5, 6, 5, 6, 5], "what repeats goes on repeating"
    assert proposed([4, 4], length=3) == [4, 4, 4]
    assert proposed([1, 2, 3]) == []
    assert proposed([1]) == []


def test_lookup_reads_the_source_too() -> None:
    assert proposed([50, 11, 12], source=[10, 11, 12, 13, 14]) == [13, 14]
    assert proposed([50, 12], source=[10, 11, 12]) == [], "nothing follows"
    assert proposed([12, 60, 11, 12], source=[10, 11, 12, 13]) == [13], "a longer run counts more than a nearer one"
    assert proposed([12, 60, 12], source=[10, 12, 13]) == [60, 12, 60, 12], "of equals the text itself"


def test_lookup_saves_passes_where_a_text_repeats_itself() -> None:
    model = built("t5")
    draft = PromptLookup(3, 8)
    how = GenerationSettings(max_new_tokens=40)
    found = generate(model, [[5, 6, 7]], how, start=START, draft=draft)
    assert equal(found, generate(model, [[5, 6, 7]], how, start=START))
    ids = found[0][0].ids
    assert ids[-10:-5] == ids[-5:] or len(set(ids)) < 8, "the tiny model runs in circles"
    assert draft.stats.passes < draft.stats.tokens / 2


# ---- what is refused


def test_what_cannot_be_is_refused() -> None:
    model, how = built("llama"), GenerationSettings(max_new_tokens=5)
    other = ModelDraft(built(change(CONFIGS["llama"], "vocab", 29)))
    with pytest.raises(ValueError, match=r"share the vocabulary .* it has 29 tokens, the model 31"):
        generate(model, [[1]], how, draft=other)
    with pytest.raises(ValueError, match="draft is an encoder-decoder and the model a decoder"):
        generate(model, [[1]], how, draft=ModelDraft(built("t5")))
    for wrong in (GenerationSettings(beam_size=2), GenerationSettings(contrastive_alpha=0.5, top_k=3)):
        with pytest.raises(ValueError, match=f"these settings select {wrong.mode} search"):
            generate(model, [[1]], wrong, draft=PromptLookup())
    with pytest.raises(ValueError, match="length must be at least 1, got 0"):
        ModelDraft(model, 0)
    with pytest.raises(ValueError, match="ngram must be at least 1, got 0"):
        PromptLookup(0)


def test_a_draft_that_breaks_its_word_is_found_out() -> None:
    model, how = built("llama"), GenerationSettings(max_new_tokens=5)
    with pytest.raises(ValueError, match="proposed 5 tokens where at most 4 fit"):
        next(generate_stream(model, [[1]], how, draft=Parrot(1, 2, 3, 4, 5, obedient=False)))
    with pytest.raises(ValueError, match=r"proposed \[1, 31\], but the vocabulary has 31"):
        generate(model, [[1]], how, draft=Parrot(1, 31))
    with types_unchecked(), pytest.raises(ValueError, match=r"\(2, 31\), got \(1, 31\)"):
        generate(model, [[1]], how, draft=Parrot(1, 2, q=torch.full((1, 31), 1 / 31)))
    with pytest.raises(ValueError, match=r"proposed \[1\], tokens whose probability in q is 0"):
        generate(model, [[1]], how, draft=Parrot(1, q=torch.eye(31)[:1]))


def test_numbers_that_are_none_are_refused_in_the_draft_too() -> None:
    broken = built("gptj")
    with torch.no_grad():
        broken.head.bias[3] = torch.nan
    for model, draft in ((built("gptj"), ModelDraft(broken)), (broken, PromptLookup())):
        with pytest.raises(ValueError, match="logits hold NaN"):
            generate(model, [[1, 2]], GenerationSettings(max_new_tokens=5), draft=draft)
