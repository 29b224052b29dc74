"""The one door: rows by themselves, seeds, records, ends, streams and errors."""

from itertools import product
from math import inf
from typing import Any

import pytest
import torch

from glassformer.config import change
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.decoder import Decoder
from glassformer.generation.search import GenerationOutput, Record
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import Transformer
from tests.configs import CONFIGS, built, tokens
from tests.generation.test_beam import model_of
from tests.helpers import some_at_once, types_unchecked

PROMPTS = [[3, 4, 5], [6, 1], [9, 9, 2, 7, 5, 1, 4], [8]]
LOUD = GenerationSettings(temperature=1.0, max_new_tokens=12, eos=tuple(range(8)), seed=(1, 2, 3, 4))


def loud(config: str = "gpt2", seed: int = 0) -> Transformer:
    """A model with opinions, so that draws differ from prompt to prompt."""
    model = built(change(CONFIGS[config], "head.tied", False), seed=seed)
    with torch.no_grad():
        model.head.out.weight.mul_(4)
    return model


def start_of(model: Transformer) -> list[int] | None:
    return None if model.encoder is None else [2]


def ids_of(texts: list[list[GenerationOutput]]) -> list[list[list[int]]]:
    return [[text.ids for text in some] for some in texts]


@pytest.fixture
def steps_taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each step has read."""
    taken: list[int] = []
    original = Decoder.step

    def counted(self: Decoder, ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        taken.append(len(ids))
        return original(self, ids, *rest, **more)

    monkeypatch.setattr(Decoder, "step", counted)
    return taken


# --- rows that have ended --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["gpt2", "t5"])
def test_ended_rows_cost_nothing(config: str, steps_taken: list[int]) -> None:
    model = loud(config)
    texts = generate(model, PROMPTS, LOUD, start=start_of(model))
    lengths = [len(text.ids) for [text] in texts]
    assert len(set(lengths)) > 1
    assert steps_taken == [sum(length > written for length in lengths) for written in range(1, max(lengths))]


def test_searches_that_are_over_cost_nothing(steps_taken: list[int]) -> None:
    prompts = [[1, 2], [5, 0, 4, 2, 1, 1], [2], [3, 3, 3, 1]]
    asked = GenerationSettings(beam_size=3, max_new_tokens=8, eos=(3,), length_penalty=0.0)
    together = generate(model_of("decoder", 9, 6), prompts, asked)
    counts = list(steps_taken)
    needed = [0] * 8
    for prompt, texts in zip(prompts, together, strict=True):
        steps_taken.clear()
        assert ids_of(generate(model_of("decoder", 9, 6), [prompt], asked)) == ids_of([texts])
        for step, count in enumerate(steps_taken):
            needed[step] += count
    assert counts == [count for count in needed if count]
    assert len(set(counts)) > 1


# --- seeds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["gpt2", "gpt_neo", "bart"])
def test_a_seed_gives_the_same_text_in_any_company(config: str) -> None:
    model, seeds = loud(config), (7, 8, 9, 7)

    def drawn(order: list[int], **how: Any) -> list[list[int]]:
        asked = GenerationSettings(
            temperature=1.3, top_p=0.95, max_new_tokens=9, eos=(4,), seed=tuple(seeds[i] for i in order)
        )
        prompts = [PROMPTS[i] for i in order]
        return [text.ids for [text] in generate(model, prompts, asked, start=start_of(model), **how)]

    together = drawn([0, 1, 2, 3])
    assert len({tuple(ids) for ids in together}) >= 3
    for order in ([3, 1, 0, 2], [2, 0], [1], [0, 0, 0]):
        assert drawn(order) == [together[i] for i in order]
    assert drawn([0, 1, 2, 3], path="eager", chunk=2) == together


def test_samples_differ_and_come_again() -> None:
    model = loud()
    asked = GenerationSettings(temperature=1.0, samples=4, max_new_tokens=8, seed=3)
    texts = generate(model, PROMPTS, asked)
    assert [len(some) for some in texts] == [4] * 4
    for some in ids_of(texts):
        assert len({tuple(ids) for ids in some}) == 4
    assert ids_of(generate(model, PROMPTS, asked)) == ids_of(texts)
    assert ids_of(generate(model, PROMPTS[1:2], asked)) == ids_of(texts[1:2])
    fewer = GenerationSettings(temperature=1.0, samples=2, max_new_tokens=8, seed=3)
    assert ids_of(generate(model, PROMPTS, fewer)) == [some[:2] for some in ids_of(texts)]
    other = GenerationSettings(temperature=1.0, samples=4, max_new_tokens=8, seed=4)
    assert ids_of(generate(model, PROMPTS, other)) != ids_of(texts)


def test_the_state_of_torch_is_left_alone() -> None:
    model = loud().train()
    model.decoder.blocks[0].eval()  # half of it frozen
    modes = [part.training for part in model.modules()]
    state = torch.get_rng_state()
    texts = generate(model, PROMPTS, LOUD)
    assert torch.equal(torch.get_rng_state(), state)
    assert [part.training for part in model.modules()] == modes
    assert ids_of(generate(model.eval(), PROMPTS, LOUD)) == ids_of(texts)  # dropout was off
    assert not any(parameter.is_inference() for parameter in model.parameters())
    stream = generate_stream(model.train(), PROMPTS, LOUD)
    next(stream)
    stream.close()
    assert model.training


# --- what is reported ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"temperature": 0.7, "top_k": 5}, {"repetition_penalty": 1.5}], ids=str)
@pytest.mark.parametrize("config", ["llama", "t5"])
def test_log_probs_and_alternatives_are_the_models_own(config: str, options: dict[str, Any]) -> None:
    model = loud(config)
    asked = GenerationSettings(max_new_tokens=6, top_alternatives=3, **options)
    start = start_of(model)
    for prompt, [text] in zip(PROMPTS, generate(model, PROMPTS, asked, start=start), strict=True):
        with torch.no_grad():
            if start is None:
                logits = model(torch.tensor([[*prompt, *text.ids]]))[0, len(prompt) - 1 : -1]
            else:
                logits = model(torch.tensor([prompt]), target=torch.tensor([[*start, *text.ids]]))[0, :-1]
        expected = logits.log_softmax(-1)
        assert text.log_probs == pytest.approx(expected[range(6), text.ids].tolist(), abs=1e-10)
        assert text.score == pytest.approx(sum(text.log_probs), abs=1e-12)
        best = expected.topk(3)
        for at, others in enumerate(text.alternatives):
            assert [other.token for other in others] == best.indices[at].tolist()
            assert [other.log_prob for other in others] == pytest.approx(best.values[at].tolist(), abs=1e-10)


def path_to(record: Record, number: int) -> list[int]:
    """The tokens on the way to a node."""
    way: list[int] = []
    at: int | None = number
    while at is not None:
        node = record.nodes[at]
        assert node.parent is None or node.parent < at
        assert node.step == (0 if node.parent is None else record.nodes[node.parent].step + 1)
        way.append(node.token)
        at = node.parent
    return way[::-1]


@pytest.mark.parametrize("groups", [1, 2])
def test_the_record_of_a_beam_search_has_every_continuation_and_its_status(groups: int) -> None:
    model, size = model_of("decoder", 9, 6), 4
    asked = GenerationSettings(
        beam_size=size, top_beams=3, max_new_tokens=6, eos=(3,), length_penalty=0.0, record=True, beam_groups=groups,
        diversity=0.5 if groups > 1 else 0.0,
    )  # fmt: skip
    for texts in generate(model, [[1, 2], [5, 0, 4, 2, 1, 1]], asked):
        record = texts[0].record
        assert record is not None
        assert all(text.record is record for text in texts)
        ended = [(path_to(record, n), node.score) for n, node in enumerate(record.nodes) if node.status == "ended"]
        for text in texts:  # two groups may end with the same text
            assert pytest.approx(text.score, abs=1e-9) in [score for ids, score in ended if ids == text.ids]
        for group in range(groups):
            for step in range(max(node.step for node in record.nodes) + 1):
                here = [node for node in record.nodes if (node.step, node.group) == (step, group)]
                statuses = [node.status for node in here]
                assert statuses.count("kept") <= size // groups
                assert len(here) <= 2 * size // groups
                assert [node.score for node in here] == sorted((node.score for node in here), reverse=True)
                assert all(-inf < node.score <= 0 for node in here)
                if here and step == 0:
                    assert len(here) == min(2 * size // groups, 6)
        kept = {n for n, node in enumerate(record.nodes) if node.status == "kept"}
        parents = {node.parent for node in record.nodes if node.parent is not None}
        assert parents <= kept  # the dead have no children
        if groups == 1:
            for node in record.nodes:
                before = 0.0 if node.parent is None else record.nodes[node.parent].score
                assert node.score == pytest.approx(before + node.log_prob, abs=1e-9)
        assert {node.status for node in record.nodes} == {"kept", "ended", "dropped"}


def test_the_record_of_a_text_written_token_by_token() -> None:
    [[text]] = generate(loud(), [[3, 4]], GenerationSettings(max_new_tokens=5, record=True))
    assert text.record is not None
    assert path_to(text.record, 4) == text.ids
    assert [node.log_prob for node in text.record.nodes] == text.log_probs
    assert generate(loud(), [[3, 4]], GenerationSettings(max_new_tokens=5))[0][0].record is None


# --- ends ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
def test_why_a_text_ends(size: int) -> None:
    model = loud("gpt2")  # 24 positions
    options = {"beam_size": size, "early_stopping": size > 1}
    [[long]] = generate(model, [[3, 4]], GenerationSettings(max_new_tokens=5, **options))
    assert (len(long.ids), long.ended) == (5, "length")
    prompts = [tokens(1, 20, seed=1)[0].tolist(), tokens(1, 3, seed=2)[0].tolist(), tokens(1, 23, seed=3)[0].tolist()]
    texts = [text for [text] in generate(model, prompts, GenerationSettings(max_new_tokens=6, **options))]
    assert [(len(text.ids), text.ended) for text in texts] == [(4, "context"), (6, "length"), (1, "context")]
    for prompt, text in zip(prompts, texts, strict=True):
        assert generate(model, [prompt], GenerationSettings(max_new_tokens=6, **options))[0][0].ids == text.ids
    exact = generate(model, prompts[:1], GenerationSettings(max_new_tokens=4, **options))[0][0]
    assert exact.ended == "length"  # both at once: what was asked for
    eos = long.ids[2] if size == 1 else long.ids[0]
    [[short]] = generate(model, [[3, 4]], GenerationSettings(max_new_tokens=5, eos=(eos,), **options))
    assert short.ended == "eos"
    assert short.ids[-1] == eos
    assert eos not in short.ids[:-1]


def test_an_end_token_at_the_last_place_is_an_end() -> None:
    free = generate(loud(), [[3, 4]], GenerationSettings(max_new_tokens=9))[0][0].ids
    last = max(free.index(token) for token in free)  # where something is written for the first time
    assert last > 0
    assert generate(loud(), [[3, 4]], GenerationSettings(max_new_tokens=last + 1))[0][0].ended == "length"
    [[text]] = generate(loud(), [[3, 4]], GenerationSettings(max_new_tokens=last + 1, eos=(free[last],)))
    assert (len(text.ids), text.ended) == (last + 1, "eos")


@pytest.mark.parametrize("words", [30, 1000, 1040])
def test_of_equals_the_first_is_taken(words: int) -> None:
    model = built(change(change(CONFIGS["gpt2"], "head.tied", False), "vocab", words))
    with torch.no_grad():
        model.head.out.weight.mul_(4)
        model.head.out.weight[words // 2 :] = model.head.out.weight[: words // 2].clone()  # each word twice
    [[text]] = generate(model, [[3, 4]], GenerationSettings(max_new_tokens=8))
    assert all(token < words // 2 for token in text.ids)


def test_whoever_asks_may_end_a_text() -> None:
    asked_for: list[tuple[int, list[int]]] = []

    def is_done(prompt: int, ids: Any) -> bool:
        asked_for.append((prompt, list(ids)))
        return prompt == 1 and len(ids) == 2

    texts = generate(loud(), [[3, 4], [5]], GenerationSettings(max_new_tokens=4), is_done=is_done)
    assert [(len(text.ids), text.ended) for [text] in texts] == [(4, "length"), (2, "stop")]
    assert [number for number, _ in asked_for].count(1) == 2
    free = generate(loud(), [[3, 4], [5]], GenerationSettings(max_new_tokens=4))
    assert texts[0][0].ids == free[0][0].ids
    assert texts[1][0].ids == free[1][0].ids[:2]


def test_a_stream_is_the_same_text_token_by_token() -> None:
    model = loud()
    asked = GenerationSettings(temperature=1.0, samples=2, max_new_tokens=7, eos=(4, 11), top_alternatives=2)
    stream, seen = generate_stream(model, PROMPTS, asked), []
    while True:
        try:
            seen.append(next(stream))
        except StopIteration as end:
            texts = end.value
            break
    assert ids_of(texts) == ids_of(generate(model, PROMPTS, asked))
    for number, some in enumerate(texts):
        for sample, text in enumerate(some):
            mine = [token for token in seen if (token.prompt, token.sample) == (number, sample)]
            assert [token.token for token in mine] == text.ids
            assert [token.log_prob for token in mine] == text.log_probs
            assert [token.alternatives for token in mine] == text.alternatives


# --- errors ----------------------------------------------------------------------------------------------------------


def test_nothing_asked_is_nothing_written() -> None:
    assert generate(built("gpt2"), [], GenerationSettings()) == []
    assert generate(built("gpt2"), [], GenerationSettings(beam_size=2)) == []
    assert list(generate_stream(built("gpt2"), [], GenerationSettings())) == []


@pytest.mark.parametrize("size", [1, 2])
def test_prompts_that_cannot_be_are_named(size: int) -> None:
    asked = GenerationSettings(beam_size=size)
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        generate(built("gpt2"), [[3], []], asked)
    with pytest.raises(ValueError, match=r"prompt 1 has 24 tokens, .* end at 24, .* one is for the answer.* to 23"):
        generate(built("gpt2"), [[3], [1] * 24], asked)
    with pytest.raises(ValueError, match=r"prompt 0 has 25 tokens, .* end at 24\. Shorten it to 24"):
        generate(built("bart"), [[1] * 25], asked, start=[2])
    shorter = GenerationSettings(beam_size=size, max_new_tokens=2)
    assert len(generate(built("bart"), [[1] * 24], shorter, start=[2])) == 1
    with pytest.raises(ValueError, match="start is for encoder-decoders"):
        generate(built("gpt2"), [[3]], asked, start=[2])
    with pytest.raises(ValueError, match=r"no start token .* pass start="):
        generate(built("bart"), [[3]], asked)
    with pytest.raises(ValueError, match="start has no tokens"):
        generate(built("bart"), [[3]], asked, start=[])
    with pytest.raises(IndexError, match="holds the id 31"):
        generate(built("gpt2"), [[3, 31]], asked)


def test_masks_belong_to_rectangles() -> None:
    model, asked = built("gpt2"), GenerationSettings(max_new_tokens=2)
    ids = torch.tensor([[3, 4, 0], [5, 0, 0]])
    with pytest.raises(ValueError, match="a mask is for a tensor of padded ids"):
        generate(model, [[3, 4], [5]], asked, mask=ids > 0)
    with types_unchecked():
        for mask in (ids, ids[:, :2] > 0):
            with pytest.raises(ValueError, match="a mask is booleans of the same shape"):
                generate(model, ids, asked, mask=mask)
        with pytest.raises(ValueError, match=r"ids are \(prompts, tokens\)"):
            generate(model, ids[0], asked)
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        generate(model, ids, asked, mask=torch.tensor([[True] * 3, [False] * 3]))


@pytest.mark.parametrize("how", [{}, {"repetition_penalty": 1.2}, {"temperature": 1.0}, {"beam_size": 2}], ids=str)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_weights_that_are_no_numbers_are_blamed(how: dict[str, Any], value: float) -> None:
    model = built(change(CONFIGS["gpt2"], "head.tied", False))
    with torch.no_grad():
        model.head.out.weight[7] = value
        model.decoder.norm.bias.fill_(1.0)
    with pytest.raises(ValueError, match=r"the model's logits hold (NaN|\+inf) in row \d; its weights are damaged"):
        generate(model, PROMPTS[:2], GenerationSettings(max_new_tokens=3, **how))


def test_what_contradicts_is_refused() -> None:
    model = built("gpt2")
    with pytest.raises(ValueError, match=r"beam search .* cannot be streamed; use generate"):
        next(generate_stream(model, [[3]], GenerationSettings(beam_size=2)))
    with pytest.raises(ValueError, match="got 3 seeds for 2 prompts"):
        generate(model, [[3], [4]], GenerationSettings(temperature=1.0, seed=(1, 2, 3)))
    with pytest.raises(ValueError, match=r"top_beams=3 of beam_size=2 cannot be returned; set beam_size=3"):
        GenerationSettings(beam_size=2, top_beams=3)
    with types_unchecked(), pytest.raises(ValueError, match="path"):
        generate(model, [[3]], GenerationSettings(), path="quick")
    for chunk in (0, -1):
        with pytest.raises(ValueError, match="chunk"):
            generate(model, [[3, 4]], GenerationSettings(), chunk=chunk)
    with pytest.raises(ValueError, match=r"eos names 31, but the vocabulary has 31 tokens"):
        generate(model, [[3]], GenerationSettings(eos=(31,)))
    with pytest.raises(ValueError, match="no decoder"):
        generate(built("bert"), [[3]], GenerationSettings(), start=[2])


def test_two_streams_of_a_model_in_training_leave_it_training_and_write_without_dropout():
    facts = change(CONFIGS["gpt2"], "embed.dropout", 0.5)
    model = Transformer(facts).double().train()
    settings = GenerationSettings(max_new_tokens=6)
    alone = [text[0].log_probs for text in generate(model, [[1, 2]], settings, path="sdpa")]
    first = generate_stream(model, [[1, 2]], settings, path="sdpa")
    second = generate_stream(model, [[1, 2]], settings, path="sdpa")
    next(first), next(second)
    assert model.training
    assert all(part.training for part in model.modules())
    list(first)
    assert [alone[0][0], *(token.log_prob for token in second)] == pytest.approx(alone[0], abs=1e-12)
    assert all(part.training for part in model.modules())


def test_memory_is_not_set_aside_for_texts_that_nobody_writes():
    model = built("t5")
    settings = GenerationSettings(max_new_tokens=10**11, eos=tuple(range(model.config.vocab)))
    assert [len(text.ids) for text in generate(model, [[1, 2]], settings, start=[1])[0]] == [1]


SEARCHES = {"greedy": {}, "contrastive": {"contrastive_alpha": 0.5, "top_k": 3}, "beams": {"beam_size": 2}}


@pytest.mark.parametrize(
    ("config", "search"),
    some_at_once(
        product(("llama", "t5", "2017"), SEARCHES),
        {("llama", "greedy"), ("llama", "contrastive"), ("t5", "beams"), ("2017", "greedy")}.__contains__,
    ),
)
def test_texts_longer_than_the_memory_set_aside(config, search, monkeypatch):
    monkeypatch.setattr("glassformer.generation.decoder.AHEAD", 3)
    monkeypatch.setattr("glassformer.generation.contrastive.AHEAD", 3)
    model = built(config)
    start = None if model.encoder is None else [1]
    settings = GenerationSettings(max_new_tokens=15, **SEARCHES[search])
    fast, slow = (generate(model, [[1, 2], [3]], settings, start=start, path=path) for path in ("sdpa", "eager"))
    assert [[text.ids for text in texts] for texts in fast] == [[text.ids for text in texts] for texts in slow]


def test_wrapped_models_write_and_others_are_named():
    model = built("gpt2")
    settings = GenerationSettings(max_new_tokens=4)
    wrapped = torch.nn.DataParallel(model)
    with types_unchecked():
        assert generate(wrapped, [[1, 2]], settings)[0][0].ids == generate(model, [[1, 2]], settings)[0][0].ids
        for wrong, words in (
            (
                lambda: generate(torch.nn.Linear(2, 2), [[1]], settings),
                "got a Linear",
            ),
            (lambda: generate(model, [1, 2, 3], settings), "the ids of each"),
            (lambda: generate(model, ["hi"], settings), "glassformer.generate"),
            (lambda: generate(model, "hi", settings), "the ids of each"),
            (lambda: generate(model, [[1]], settings, draft=model), "ModelDraft"),
            (lambda: generate(model, [[1, 2.5]], settings), "integers"),
            (lambda: generate(model, [[1]], {"max_new_tokens": 2}), "settings must be a GenerationSettings"),
        ):
            with pytest.raises(TypeError, match=words):
                wrong()


def test_models_and_ids_that_cannot_be_written_with_are_named():
    with pytest.raises(ValueError, match="no decoder"):
        generate(built("bert"), [[1]])
    with pytest.raises(IndexError, match="prompt 1 holds the id 31; the vocabulary goes from 0 to 30"):
        generate(built("gpt2"), [[1], [2, 31]])


def test_a_method_patched_onto_the_model_is_used():
    model = built("gpt2")
    old, settings = model.apply_head, GenerationSettings(max_new_tokens=5)
    model.apply_head = lambda hidden, mask=None, **how: -old(hidden, mask, **how)
    fast, slow = (generate(model, [[1, 2]], settings, path=path)[0][0].ids for path in ("sdpa", "eager"))
    assert fast == slow
    assert fast != generate(built("gpt2"), [[1, 2]], settings)[0][0].ids


def test_a_stream_says_at_once_what_is_wrong():
    for prompts in ([[]], [[99]], [[1] * 30]):
        with pytest.raises((ValueError, IndexError), match="prompt 0"):
            generate_stream(built("gpt2"), prompts)
    assert list(generate_stream(built("gpt2"), [])) == []
