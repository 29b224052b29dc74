"""Every rule equals its reference on random scores, its definition in plain Python, and the frequencies it promises."""

import math
from collections.abc import Callable
from dataclasses import fields
from inspect import signature

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.generation import logits_process as reference

from glassformer.generation import filters
from glassformer.generation.filters import Filters, check_logits
from glassformer.generation.search import SeededRNG, draw, probs
from glassformer.generation.settings import BEAM_ONLY, SAMPLING_ONLY, GenerationSettings
from tests.helpers import FLOATS, largest_difference, normal

VOCABULARY = 40
INF = math.inf
LOGITS = (2.0, 1.0, 0.0, -1.0, 1.5, 0.5, -2.0, 1.2, 0.7, -0.3, 1.9, -4.0)


def scores(rows: int = 7, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return normal(rows, VOCABULARY, seed=seed, dtype=dtype) * 3


def ids(rows: int = 7, length: int = 30, seed: int = 1, tokens: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(tokens, (rows, length), generator=torch.Generator().manual_seed(seed))


# --- against the reference -------------------------------------------------------------------------------------------

SHAPES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], reference.LogitsProcessor]] = {
    "temperature 0.3": (lambda s: filters.temperature(s, 0.3), reference.TemperatureLogitsWarper(0.3)),
    "temperature 2": (lambda s: filters.temperature(s, 2.0), reference.TemperatureLogitsWarper(2.0)),
    "top_k 1": (lambda s: filters.top_k(s, 1), reference.TopKLogitsWarper(1)),
    "top_k 5": (lambda s: filters.top_k(s, 5), reference.TopKLogitsWarper(5)),
    "top_k 99": (lambda s: filters.top_k(s, 99), reference.TopKLogitsWarper(99)),
    "top_p 0.01": (lambda s: filters.top_p(s, 0.01), reference.TopPLogitsWarper(0.01)),
    "top_p 0.9": (lambda s: filters.top_p(s, 0.9), reference.TopPLogitsWarper(0.9)),
    "top_p 0.999": (lambda s: filters.top_p(s, 0.999), reference.TopPLogitsWarper(0.999)),
    "min_p 0.05": (lambda s: filters.min_p(s, 0.05), reference.MinPLogitsWarper(0.05)),
    "min_p 1": (lambda s: filters.min_p(s, 1.0), reference.MinPLogitsWarper(1.0)),
    "typical_p 0.2": (lambda s: filters.typical_p(s, 0.2), reference.TypicalLogitsWarper(0.2)),
    "typical_p 0.95": (lambda s: filters.typical_p(s, 0.95), reference.TypicalLogitsWarper(0.95)),
}


def assert_same_distribution(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """The same tokens are forbidden, the others are as likely (a number added to a whole row changes nothing)."""
    assert torch.equal(ours == -INF, theirs == -INF)
    assert largest_difference(torch.softmax(ours, -1), torch.softmax(theirs, -1)) < 1e-12


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("forbidden", [False, True])
def test_shapes_equal_the_reference(name: str, forbidden: bool) -> None:
    ours, theirs = SHAPES[name]
    for seed in range(20):
        given_scores = scores(seed=seed)
        if forbidden:
            given_scores[:, seed % 7 :: 3] = -INF
        assert_same_distribution(ours(given_scores), theirs(None, given_scores))


@pytest.mark.parametrize("size", [1, 2, 3, 5, 31])
def test_no_repeated_ngram_equals_the_reference(size: int) -> None:
    for seed in range(10):
        history = ids(seed=seed, tokens=3)
        ours = filters.no_repeat_ngram(scores(), history.tolist(), size)
        assert torch.equal(ours, reference.NoRepeatNGramLogitsProcessor(size)(history, scores()))
    short = ids(length=2, tokens=2)
    assert torch.equal(filters.no_repeat_ngram(scores(), short.tolist(), 3), scores())


@pytest.mark.parametrize("penalty", [0.5, 1.3])
def test_the_repetition_penalty_equals_the_reference(penalty: float) -> None:
    history = ids()
    ours = filters.repetition_penalty(scores(), history.tolist(), penalty)
    assert torch.equal(ours, reference.RepetitionPenaltyLogitsProcessor(penalty)(history, scores()))
    assert not torch.equal(ours, scores())


def test_bad_words_equal_the_reference() -> None:
    words = [[5], [0, 1], [1, 2], [0, 0, 2], [1] * 40]
    for seed in range(10):
        history = ids(seed=seed, tokens=3)
        ours = filters.bad_words(scores(), history.tolist(), words)
        assert torch.equal(ours, reference.NoBadWordsLogitsProcessor(words)(history, scores()))


def test_a_bias_equals_the_reference() -> None:
    bias = {3: 1.5, 7: -2.0}
    ours = Filters(GenerationSettings(logit_bias=bias), VOCABULARY).process(scores(), [], step=0)
    theirs = reference.SequenceBiasLogitsProcessor({(token,): value for token, value in bias.items()})
    assert largest_difference(ours, theirs(ids(), scores())) < 1e-12


@pytest.mark.parametrize("written", [0, 1, 3, 4, 5, 9])
def test_rules_about_places_equal_the_reference(written: int) -> None:
    """Two stacks: the prompt is the start token alone, so that the reference's lengths are ours plus 1."""
    history = ids(length=1 + written)
    cases = [
        (GenerationSettings(min_new_tokens=4, eos=(2, 3)), reference.MinNewTokensLengthLogitsProcessor(1, 4, [2, 3])),
        (GenerationSettings(min_new_tokens=4, eos=(2,)), reference.MinLengthLogitsProcessor(5, 2)),
        (GenerationSettings(forced_first=9), reference.ForcedBOSTokenLogitsProcessor(9)),
        (GenerationSettings(forced_last=9, max_new_tokens=10), reference.ForcedEOSTokenLogitsProcessor(11, 9)),
        (GenerationSettings(suppress=(1, 8)), reference.SuppressTokensLogitsProcessor([1, 8])),
    ]
    for settings, theirs in cases:
        ours = Filters(settings, VOCABULARY).process(scores(), history.tolist(), written)
        assert torch.equal(ours, theirs(history, scores())), settings


def test_all_rules_together_act_in_the_order_of_the_reference() -> None:
    settings = GenerationSettings(
        logit_bias={3: 4.0, 5: -1.0}, repetition_penalty=1.4, no_repeat_ngram=2, bad_words=((0, 1), (6,)), eos=(2,),
        min_new_tokens=3, suppress=(7,), temperature=0.7, top_k=12, top_p=0.8, min_p=0.1, typical_p=0.7,
    )  # fmt: skip
    theirs = [
        reference.SequenceBiasLogitsProcessor({(3,): 4.0, (5,): -1.0}),
        reference.RepetitionPenaltyLogitsProcessor(1.4),
        reference.NoRepeatNGramLogitsProcessor(2),
        reference.NoBadWordsLogitsProcessor([[0, 1], [6]]),
        reference.MinNewTokensLengthLogitsProcessor(28, 3, 2),
        reference.SuppressTokensLogitsProcessor([7]),
        reference.TemperatureLogitsWarper(0.7),
        reference.TopKLogitsWarper(12),
        reference.TopPLogitsWarper(0.8),
        reference.MinPLogitsWarper(0.1),
        reference.TypicalLogitsWarper(0.7),
    ]
    ours = Filters(settings, VOCABULARY)
    for seed in range(20):
        history, expected = ids(seed=seed, tokens=12), scores(seed=seed)
        shaped = ours.warp(ours.process(expected, history.tolist(), step=2))
        for rule in theirs:
            expected = rule(history, expected)
        assert_same_distribution(shaped, expected)


# --- against the definitions -----------------------------------------------------------------------------------------


@given(
    st.lists(st.one_of(st.floats(-8, 8), st.just(1.0), st.just(-INF)), min_size=1, max_size=30).filter(
        lambda row: max(row) > -INF
    ),
    st.floats(0.001, 1.0),
)
def test_row_43_the_nucleus_has_p_and_no_token_too_many(row: list[float], p: float) -> None:
    logits = torch.tensor([row], dtype=torch.float64)
    left = filters.top_p(logits, p)[0]
    before = torch.softmax(logits[0], -1)
    kept = left > -INF
    assert kept.any()
    assert before[kept].sum() >= min(p, float(before.sum())) - 1e-12
    if kept.sum() > 1 and p < 1:
        assert before[kept].sum() - before[kept].min() < p + 1e-12
    if (~kept).any():  # the likeliest stay; of equals the first
        dropped = torch.where(kept, -INF, before)
        assert before[kept].min() >= dropped.max()
        edge = (before == before[kept].min()).nonzero().flatten()
        assert kept[edge].tolist() == sorted(kept[edge].tolist(), reverse=True)


def test_top_p_of_known_chances() -> None:
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]], dtype=torch.float64).log()
    for p, kept in ((0.39, [1]), (0.41, [1, 3]), (0.69, [1, 3]), (0.71, [1, 2, 3]), (0.95, [0, 1, 2, 3])):
        assert (filters.top_p(logits, p)[0] > -INF).nonzero().flatten().tolist() == kept
    assert torch.equal(filters.top_p(torch.tensor([[0.0, -200.0]]), 1.0), torch.tensor([[0.0, -200.0]]))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("rule", ["top_k", "top_p", "typical_p", "temperature"])
def test_of_equals_the_first_stay_and_the_answer_is_wide(dtype: torch.dtype, rule: str, device: torch.device) -> None:
    value = {"top_k": 3, "top_p": 0.3, "typical_p": 0.3, "temperature": 0}[rule]
    left = getattr(filters, rule)(torch.zeros(2, 10, dtype=dtype, device=device), value)
    kept = 1 if rule == "temperature" else 3
    assert (left > -INF).tolist() == [[True] * kept + [False] * (10 - kept)] * 2
    assert left.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


def test_row_42_dropped_tokens_have_chance_zero_exactly() -> None:
    for seed in range(5):
        given_scores = scores(seed=seed, dtype=torch.float32)
        for name, (rule, _) in SHAPES.items():
            left = rule(given_scores)
            assert (probs(left)[left == -INF] == 0).all(), name
    assert (probs(filters.top_k(scores(), 5)) > 0).sum(-1).tolist() == [5] * 7


def test_row_44_temperature_zero_is_greedy_and_below_is_refused() -> None:
    greedy = Filters(GenerationSettings(), VOCABULARY).warp(scores())
    assert torch.equal(draw(probs(greedy), torch.full((7,), 0.999, dtype=torch.float64)), scores().argmax(-1))
    with pytest.raises(ValueError, match=r"temperature must be 0 .* got -1"):
        filters.temperature(scores(), -1.0)
    with pytest.raises(ValueError, match="top_k must be at least 1"):
        filters.top_k(scores(), 0)


def test_a_tiny_temperature_makes_no_nan_even_beside_forbidden_tokens() -> None:
    cold = filters.temperature(torch.tensor([[1e4, -INF, 2e4], [-INF, -INF, -INF]]), 1e-310)
    assert cold.tolist() == [[-INF, -INF, 0.0], [-INF, -INF, -INF]]


def test_searches_that_choose_for_themselves_get_their_scores_unshaped() -> None:
    for settings in (GenerationSettings(beam_size=3), GenerationSettings(contrastive_alpha=0.6, top_k=4)):
        assert torch.equal(Filters(settings, VOCABULARY).warp(scores()), scores())


def test_a_token_seen_twice_is_penalised_once() -> None:
    logits = torch.tensor([[2.0, -2.0, 2.0, 0.0]])
    assert filters.repetition_penalty(logits, [[0, 0, 1, 1, 9]], 2.0).tolist() == [[1.0, -4.0, 2.0, 0.0]]


def test_histories_of_different_lengths_do_not_touch_each_other() -> None:
    histories = [[1, 2, 1], [], [3], [2, 1, 2, 1]]
    rule = Filters(GenerationSettings(no_repeat_ngram=2, bad_words=((3, 4),), repetition_penalty=1.2), VOCABULARY)
    together = rule.process(scores(4), histories, 0)
    for row, history in enumerate(histories):
        assert torch.equal(together[row : row + 1], rule.process(scores(4)[row : row + 1], [history], 0))
    assert (together == -INF).nonzero().tolist() == [[0, 2], [2, 4], [3, 2]]


# --- all together ----------------------------------------------------------------------------------------------------


def test_filters_know_whether_they_do_anything() -> None:
    def of(**options: object) -> tuple[bool, bool]:
        rule = Filters(GenerationSettings(**options), VOCABULARY)  # type: ignore[arg-type]
        return rule.has_processors, rule.needs_histories

    assert of() == of(temperature=0.5, top_k=3) == of(min_new_tokens=3) == of(eos=(1,)) == (False, False)
    assert of(min_new_tokens=3, eos=(1,)) == of(suppress=(1,)) == of(forced_first=0) == (True, False)
    assert of(repetition_penalty=0.9) == of(no_repeat_ngram=3) == of(bad_words=((1,),)) == (True, True)


def test_every_setting_that_changes_scores_is_a_filter() -> None:
    """Captured steps are shared by the filters' settings, and histories are kept only for filters that need them."""
    no_filters = {
        *("max_new_tokens", "samples", "seed", "eos", "stop", "contrastive_alpha", "top_alternatives", "record"),
        *("beam_size", "top_beams", "beam_groups", "diversity", *BEAM_ONLY),
    }
    assert set(filters.WARPERS) == set(SAMPLING_ONLY)
    known = [*no_filters, "temperature", *filters.WARPERS, *filters.PROCESSORS]
    assert sorted(known) == sorted(field.name for field in fields(GenerationSettings))
    # A processor with histories and one without differ in their parameters, too.
    for name, needs_histories in filters.PROCESSORS.items():
        if hasattr(filters, name):
            assert ("histories" in signature(getattr(filters, name)).parameters) == needs_histories


@pytest.mark.parametrize("name", ["eos", "suppress", "bad_words", "logit_bias", "forced_first", "forced_last"])
def test_ids_outside_the_vocabulary_are_named(name: str) -> None:
    value = {"bad_words": ((1, 40),), "logit_bias": {40: 1.0}, "forced_first": 40, "forced_last": 40}.get(name, (3, 40))
    with pytest.raises(ValueError, match=rf"{name} names 40, but the vocabulary has 40 tokens \(0 to 39\)"):
        Filters(GenerationSettings(**{name: value}), VOCABULARY)
    assert Filters(GenerationSettings(**{name: value}), VOCABULARY + 1)


def test_a_row_with_nothing_left_names_the_constraints() -> None:
    rule = Filters(GenerationSettings(suppress=tuple(range(20)), no_repeat_ngram=1), VOCABULARY)
    with pytest.raises(ValueError, match=r"no token is left to generate in row 1; .* 40: no_repeat_ngram=1, suppress="):
        rule.process(scores(2), [[30], list(range(20, 40))], 0)
    broken = torch.full((1, VOCABULARY), math.nan)
    assert rule.process(broken, [[30]], 0)[:, 31:].isnan().all()  # check_logits finds it does


def test_scores_and_histories_must_fit() -> None:
    with pytest.raises(ValueError, match="built for a vocabulary of 9 tokens, but the scores have 40 columns"):
        Filters(GenerationSettings(suppress=(1,)), 9).process(scores(), [], 0)
    with pytest.raises(ValueError, match="7 rows of scores need as many histories, got 1"):
        Filters(GenerationSettings(no_repeat_ngram=2), VOCABULARY).process(scores(), [[1]], 0)


@pytest.mark.parametrize(("value", "word"), [(math.nan, "NaN"), (INF, r"\+inf"), (-INF, "only −inf")])
def test_logits_that_are_no_numbers_are_refused(value: float, word: str) -> None:
    logits = scores()
    logits[:, 0] = -INF
    check_logits(logits)
    logits[3, :] = value
    with pytest.raises(ValueError, match=f"the model's logits hold {word} in row 3"):
        check_logits(logits)
    logits[3, 1:] = 0.0
    if value != -INF:
        with pytest.raises(ValueError, match=f"hold {word}"):
            check_logits(logits)


def test_edits_leave_the_given_scores_alone_and_work_on_every_device(device: torch.device) -> None:
    given_scores = scores().to(device)
    settings = GenerationSettings(
        logit_bias={1: 2.0}, repetition_penalty=2.0, bad_words=((1,),), forced_last=3, suppress=(2,)
    )
    edited = Filters(settings, VOCABULARY, device).process(given_scores, ids().tolist(), 0)
    assert torch.equal(given_scores.cpu(), scores())
    assert torch.equal(edited.cpu(), Filters(settings, VOCABULARY).process(scores(), ids().tolist(), 0))


# --- frequencies -----------------------------------------------------------------------------------------------------


def expected_chances(
    temperature: float = 1.0, top_k: int = 99, top_p: float = 1.0, min_p: float = 0.0, typical_p: float = 1.0
) -> list[float]:
    """The definitions in plain Python: a rule keeps some tokens, the chances are made anew, the next rule follows."""
    chance = _normal([math.exp(logit / temperature) for logit in LOGITS])
    chance = _kept(chance, sorted(range(len(chance)), key=lambda t: -chance[t])[:top_k])
    chance = _kept(chance, _until(chance, sorted(range(len(chance)), key=lambda t: -chance[t]), top_p))
    chance = _kept(chance, [t for t in range(len(chance)) if chance[t] >= min_p * max(chance)])
    entropy = -sum(p * math.log(p) for p in chance if p)
    oddness = [abs(-math.log(p) - entropy) if p else INF for p in chance]
    return _kept(chance, _until(chance, sorted(range(len(chance)), key=oddness.__getitem__), typical_p))


def _normal(weights: list[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def _kept(chance: list[float], tokens: list[int]) -> list[float]:
    return _normal([p if token in tokens else 0.0 for token, p in enumerate(chance)])


def _until(chance: list[float], order: list[int], p: float) -> list[int]:
    kept: list[int] = []
    while len(kept) < len(order) and (p >= 1 or sum(chance[t] for t in kept) < p):
        kept.append(order[len(kept)])
    return kept


def p_value(drawn: torch.Tensor, expected: list[float]) -> float:
    """Pearson's chi-square test: how often honest draws differ from ``expected`` this much or more."""
    counts = torch.bincount(drawn, minlength=len(expected)).double()
    hoped = torch.tensor(expected, dtype=torch.float64) * len(drawn)
    possible = hoped > 0
    if counts[~possible].any():
        return 0.0
    statistic = ((counts - hoped)[possible] ** 2 / hoped[possible]).sum()
    freedom = possible.sum() - 1
    return 1.0 if freedom == 0 else float(torch.special.gammaincc(freedom / 2, statistic / 2))


def drawn_with(shape: Callable[[torch.Tensor], torch.Tensor], draws: int = 100_000) -> torch.Tensor:
    row = torch.tensor([LOGITS], dtype=torch.float32)
    uniforms = torch.rand(draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return draw(probs(shape(row)).expand(draws, -1), uniforms)


MIXES: list[dict[str, float]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 4},
    {"top_p": 0.6},
    {"top_p": 0.95},
    {"min_p": 0.2},
    {"typical_p": 0.5},
    {"typical_p": 0.9},
    {"top_k": 4, "top_p": 0.7},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 0.7, "top_k": 9, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 10, "top_p": 0.9, "min_p": 0.15, "typical_p": 0.8},
]


@pytest.mark.parametrize("mix", MIXES, ids=str)
def test_frequencies_are_the_ones_asked_for(mix: dict[str, float]) -> None:
    rule = Filters(GenerationSettings(**{"temperature": 1.0, **mix}), len(LOGITS))  # type: ignore[arg-type]
    assert p_value(drawn_with(rule.warp), expected_chances(**mix)) > 1e-6  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "asked"),
    [
        (lambda s: s * 1.05, {}),  # a temperature that is off by a twentieth
        (lambda s: filters.top_k(s, 5), {"top_k": 4}),
        (lambda s: filters.top_k(s, 3), {"top_k": 4}),
        (lambda s: filters.top_p(s, 0.4), {"top_p": 0.6}),
        (lambda s: filters.temperature(filters.top_p(s, 0.8), 1.5), {"temperature": 1.5, "top_p": 0.8}),  # wrong order
        (lambda s: filters.top_p(s, 0.5), {"typical_p": 0.5}),
        (lambda s: filters.top_k(filters.top_p(s, 0.7), 4), {"top_k": 4, "top_p": 0.7}),  # the nucleus of all tokens
        (lambda s: filters.top_k(s, 4).clamp(min=-6), {"top_k": 4}),  # dropped, but not entirely
        (lambda s: s.roll(1, -1), {}),  # off by one
    ],
)
def test_the_chi_square_sees_a_wrong_filter(
    wrong: Callable[[torch.Tensor], torch.Tensor], asked: dict[str, float]
) -> None:
    assert p_value(drawn_with(wrong), expected_chances(**asked)) < 1e-6  # type: ignore[arg-type]


def test_dice_give_the_frequencies_too() -> None:
    uniforms = SeededRNG([(0, sample) for sample in range(20_000)]).uniform([*range(20_000)] * 5)
    row = probs(torch.tensor([LOGITS])).expand(len(uniforms), -1)
    assert p_value(draw(row, uniforms), expected_chances()) > 1e-6
