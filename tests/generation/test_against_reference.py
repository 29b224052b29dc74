"""The same texts and scores as Hugging Face: greedy search for every lineage, beam search over hundreds of cases.

Beam search there keeps its scores in float32, also for models in float64. Where it does something else than its name
says, it is asked so that both mean the same; no case is left out:

- padding of a decoder's prompts counts as tokens seen before (repetition_penalty, no_repeat_ngram), so that texts
  depend on their neighbours: with these rules each row is asked for alone;
- a forced first token counts from the beginning of the prompt: it is forced only where there is none, with two stacks;
- M2M-100 takes positions from the pad id, and so loses count when it writes that token: it may not;
- where fewer continuations are possible than there are beams, it fills up with texts of score −1e9; here such texts do
  not exist (``test_beam.py``), and the vocabulary of these cases leaves room.
"""

from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig

from glassformer.config import LMHead
from glassformer.generation.api import generate
from glassformer.generation.settings import GenerationSettings
from glassformer.models.transformer import Transformer
from tests.helpers import some_at_once
from tests.parity.cases import CASES, FIRST, a_few_of
from tests.parity.harness import Case, Pair, pad_rows, rows
from tests.promises.test_five_promises import facts_of

WRITERS = [case for case in CASES if facts_of(case).decoder is not None and isinstance(facts_of(case).head, LMHead)]
PROMPTS = (9, 13, 5)  # lengths
NEW = 6
SCORE_BOUND = 1e-4
# The reference has no cache for GPT, and one of the wrong size where T5's decoder has more layers than its encoder.
NO_CACHE = ("gpt", "gpt-wide", "gpt-untied", "t5-odd")


def start_of(model: Transformer) -> list[int] | None:
    """What the decoder begins with; configs without a start token are given 0, as the reference does for them."""
    if model.encoder is None:
        return None
    return [0 if model.config.tokens.start is None else model.config.tokens.start]


# --- greedy search, every lineage ------------------------------------------------------------------------------------


def test_there_are_as_many_lineages_that_write_as_ever() -> None:
    assert len(WRITERS) >= 44
    assert len({case.architecture for case in WRITERS}) >= 13


def their_greedy(pair: Pair, row: Tensor, new: int) -> list[int]:
    """The reference's own loop over one row; by hand where that loop adds tokens of its own."""
    if pair.theirs.config.model_type == "xlm":
        ids = row[None]
        for _ in range(new):
            with torch.no_grad():
                logits = pair.theirs(ids).logits
            ids = torch.cat((ids, logits[:, -1:].argmax(-1)), -1)
        return ids[0, len(row) :].tolist()
    pair.theirs.generation_config = GenerationConfig()
    begin = start_of(pair.ours)
    config = GenerationConfig(
        max_new_tokens=new, do_sample=False, num_beams=1, eos_token_id=None, pad_token_id=pair.case.pad,
        use_cache=pair.case.name not in NO_CACHE, decoder_start_token_id=begin and begin[0],
    )  # fmt: skip
    ids = row[None]
    written = pair.theirs.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)[0]
    return written[len(row) if begin is None else 1 :].tolist()


@dataclass
class Greedy:
    """One lineage: what the reference writes, and our texts however they are asked for."""

    model: Transformer
    tokens: list[Tensor]
    expected: list[list[int]]

    @classmethod
    def make(cls, case: Case, folder: Path) -> "Greedy":
        pair, tokens = Pair.make(case, folder), rows(PROMPTS, 1)
        return cls(pair.ours, tokens, [their_greedy(pair, row, NEW) for row in tokens])

    @property
    def lists(self) -> list[list[int]]:
        return [row.tolist() for row in self.tokens]

    @property
    def eos(self) -> int:
        """A token that the first row writes in the middle, so that it ends before others do."""
        return self.expected[0][NEW // 2]

    @property
    def cut(self) -> list[list[int]]:
        return [ids[: ids.index(self.eos) + 1] if self.eos in ids else ids for ids in self.expected]

    def write(self, prompts: Any, mask: Any = None, end: tuple[int, ...] = (), **how: Any) -> list[list[int]]:
        asked = GenerationSettings(max_new_tokens=NEW, eos=end)
        texts = generate(self.model, prompts, asked, mask=mask, start=start_of(self.model), **how)
        return [text.ids for [text] in texts]


@pytest.mark.parametrize("case", a_few_of(WRITERS))
def test_greedy_search_equals_the_reference(case: Case, tmp_path: Path) -> None:
    it = Greedy.make(case, tmp_path)
    assert it.write(*pad_rows(it.tokens, "left", fill=3), chunk=7) == it.expected
    assert it.write(*pad_rows(it.tokens, "right", fill=3), end=(it.eos,), path="eager", chunk=3) == it.cut
    if case.id in FIRST:
        assert it.write(it.lists, end=(it.eos,)) == it.cut
        assert it.write(it.lists[2:], end=(it.eos,), chunk=1) == it.cut[2:]  # alone


@pytest.mark.slow
@pytest.mark.parametrize("case", WRITERS, ids=lambda case: case.id)
def test_greedy_search_equals_the_reference_however_it_is_asked(case: Case, tmp_path: Path) -> None:
    it = Greedy.make(case, tmp_path)
    ways = ((it.lists,), pad_rows(it.tokens, "left", fill=3), pad_rows(it.tokens, "right", fill=3))
    for number, (path, chunk) in enumerate(product(("sdpa", "eager"), (None, 1, 3, 7))):
        given = ways[number % 3]
        assert it.write(*given, path=path, chunk=chunk) == it.expected
        assert it.write(*given, end=(it.eos,), path=path, chunk=chunk) == it.cut
        alone = slice(number % 3, number % 3 + 1)
        assert it.write(it.lists[alone], path=path, chunk=chunk) == it.expected[alone]
    assert it.write(it.lists[::-1]) == it.expected[::-1]


# --- beam search -----------------------------------------------------------------------------------------------------

WORDS = 17
SMALL = {"vocab_size": WORDS, "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
PAIR = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 20, "max_position_embeddings": 40,
    "decoder_start_token_id": 2, **SMALL,
}  # fmt: skip
MODELS = {
    "t5": Case(
        "t5", "T5ForConditionalGeneration",
        {"d_model": 16, "d_kv": 8, "d_ff": 20, "num_layers": 2, "num_heads": 2, "relative_attention_num_buckets": 6,
         "relative_attention_max_distance": 9, "decoder_start_token_id": 0, "tie_word_embeddings": False, **SMALL},
    ),
    "bart": Case("bart", "BartForConditionalGeneration", {**PAIR, "forced_eos_token_id": None}),
    "m2m100": Case("m2m100", "M2M100ForConditionalGeneration", PAIR),
    "gpt2": Case("gpt2", "GPT2LMHeadModel", {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 60, **SMALL}),
    "llama": Case(
        "llama", "LlamaForCausalLM",
        {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 60, "tie_word_embeddings": False, **SMALL},
        attention="sdpa",  # its eager path gives NaN for padding on the left in float64
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory: pytest.TempPathFactory) -> Any:
    @cache
    def make(name: str, seed: int) -> Pair:
        case = MODELS[name]
        folder = tmp_path_factory.mktemp(f"{name}-{seed}")
        pair = Pair.make(case, folder, seed)
        with torch.no_grad():  # opinions: some words likely, some not
            heads = [pair.theirs.get_output_embeddings().weight, _our_head(pair.ours)]
            for head in heads:
                head.mul_(3)
        return pair

    return make


def _our_head(model: Transformer) -> Tensor:
    out = model.head.out
    return model.embed.token.weight if out is None else out.weight


@dataclass(frozen=True)
class Asked:
    """One case: what both sides are asked for."""

    prompts: list[Tensor]
    settings: GenerationSettings

    def theirs(self, start: int | None) -> GenerationConfig:
        asked = self.settings
        return GenerationConfig(
            num_beams=asked.beam_size,
            num_return_sequences=asked.top_beams,
            length_penalty=asked.length_penalty,
            early_stopping=asked.early_stopping,
            max_new_tokens=asked.max_new_tokens,
            min_new_tokens=asked.min_new_tokens or None,
            no_repeat_ngram_size=asked.no_repeat_ngram or None,
            repetition_penalty=asked.repetition_penalty,
            forced_bos_token_id=asked.forced_first,
            forced_eos_token_id=asked.forced_last,
            suppress_tokens=list(asked.suppress) or None,
            eos_token_id=list(asked.eos) or None,
            decoder_start_token_id=start,
            pad_token_id=1,
            do_sample=False,
            return_dict_in_generate=True,
            output_scores=True,
        )


def any_case(seed: int, pair: Pair) -> Asked:
    r = Random(seed)
    size, longest = r.randint(2, 5), r.randint(2, 11)
    prompts = [torch.tensor([r.randrange(3, WORDS) for _ in range(r.randint(1, 7))]) for _ in range(r.randint(1, 3))]
    asked = GenerationSettings(
        beam_size=size,
        top_beams=r.randint(1, size),
        length_penalty=r.choice([-1.0, 0.0, 0.6, 1.0, 2.0]),
        early_stopping=r.choice([False, True, "never"]),
        max_new_tokens=longest,
        min_new_tokens=r.choice([0, 0, r.randint(1, longest)]),
        no_repeat_ngram=r.choice([0, 0, 2, 3]),
        repetition_penalty=r.choice([1.0, 1.0, 1.4]),
        eos=tuple(r.sample(range(2, WORDS), r.choice([1, 1, 2, 3]))),
        suppress=(1,) if pair.theirs.config.model_type == "m2m_100" else (),
    )
    if r.random() < 0.3:
        asked = replace(asked, forced_last=asked.eos[0])
    if r.random() < 0.2 and pair.ours.encoder is not None:
        asked = replace(asked, forced_first=r.choice([word for word in range(3, WORDS) if word not in asked.eos]))
    return Asked(prompts, asked)


def their_beams(pair: Pair, case: Asked, ids: Tensor, real: Tensor) -> list[tuple[list[int], float]]:
    start = start_of(pair.ours)
    pair.theirs.generation_config = GenerationConfig()
    found = pair.theirs.generate(
        ids, attention_mask=real, generation_config=case.theirs(None if start is None else start[0])
    )
    before = ids.shape[1] if start is None else 1
    return list(zip(found.sequences[:, before:].tolist(), found.sequences_scores.tolist(), strict=True))


def compare(pair: Pair, case: Asked) -> set[str]:
    """Assert that ids and scores are equal; return how the texts ended."""
    start = start_of(pair.ours)
    ids, mask = pad_rows(case.prompts, "left" if start is None else "right", fill=1, extra=0)
    ours = [text for texts in generate(pair.ours, ids, case.settings, mask=mask, start=start) for text in texts]
    looks_back = case.settings.no_repeat_ngram or case.settings.repetition_penalty != 1.0
    alone = looks_back and start is None
    batches = [(row[None], torch.ones_like(row[None])) for row in case.prompts] if alone else [(ids, mask.long())]
    theirs = [text for given, real in batches for text in their_beams(pair, case, given, real)]
    for text, (new, score) in zip(ours, theirs, strict=True):
        assert text.ids == new[: len(text.ids)], (text, new, score)
        assert all(token == 1 for token in new[len(text.ids) :]), (text, new)
        assert text.score == pytest.approx(score, abs=SCORE_BOUND)
    return {text.ended for text in ours}


@pytest.mark.parametrize("name", some_at_once(MODELS, {"gpt2", "t5", "bart"}.__contains__))
def test_beam_search_equals_the_reference(name: str, pair_of: Any) -> None:
    ends = set()
    for seed in range(8):
        pair = pair_of(name, seed % 3)
        ends |= compare(pair, any_case(1000 * len(name) + seed, pair))
    assert ends == {"eos", "length"}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_beam_search_equals_the_reference_hundreds_of_times(name: str, pair_of: Any) -> None:
    for seed in range(120):
        pair = pair_of(name, seed % 12)
        compare(pair, any_case(50_000 + 1000 * len(name) + seed, pair))
