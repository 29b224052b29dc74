"""Row 12 of the known silent bugs: documents packed into one row do not see each other, and positions start anew."""

import pytest
import torch

from glassformer.config import BlockSparse, ModelConfig
from glassformer.nn.cache import KVCache
from tests.helpers import PATHS, largest_difference, types_unchecked
from tests.parity.cases import CASES, a_few_of
from tests.parity.harness import Case
from tests.promises.test_five_promises import built, facts_of


def can_be_packed(facts: ModelConfig) -> bool:
    """One answer per token, from one stack in which nothing but attention looks at other tokens."""
    if facts.family == "encoder-decoder" or facts.has_pooled_output:
        return False
    stack = facts.encoder or facts.decoder
    assert stack is not None
    return stack.convolution is None and not any(isinstance(w, BlockSparse) for w in stack.attention.windows)


PACKABLE = [case for case in CASES if can_be_packed(facts_of(case))]
LENGTHS = (5, 3, 6)


@pytest.mark.parametrize("case", a_few_of(PACKABLE))
def test_row_12_packed_documents_are_each_as_if_alone(case: Case) -> None:
    model = built(case)
    generator = torch.Generator().manual_seed(3)
    documents = [torch.randint(5, 61, (length,), generator=generator) for length in LENGTHS]
    packed = torch.cat([*documents, torch.zeros(2, dtype=torch.long)])[None]
    numbers = torch.cat([torch.full((n,), i + 1) for i, n in enumerate(LENGTHS)] + [torch.zeros(2, dtype=torch.long)])
    with torch.no_grad():
        for path in PATHS:
            together = model(packed, numbers[None], path=path)
            start = 0
            for document in documents:
                alone = model(document[None], path=path)
                assert largest_difference(together[:, start : start + len(document)], alone) < 1e-10
                start += len(document)
        other = packed.clone()
        other[:, 1] = (other[:, 1] + 1) % 50 + 5
        before, after = model(packed, numbers[None]), model(other, numbers[None])
    assert torch.equal(before[:, LENGTHS[0] : sum(LENGTHS)], after[:, LENGTHS[0] : sum(LENGTHS)])
    assert largest_difference(before[:, : LENGTHS[0]], after[:, : LENGTHS[0]]) > 1e-3


def test_a_mask_of_ones_and_zeros_means_what_it_means_elsewhere() -> None:
    model = built(next(case for case in PACKABLE if case.architecture == "GPT2LMHeadModel"))
    ids = torch.randint(5, 61, (2, 7))
    mask = torch.tensor([[1, 1, 0, 1, 1, 0, 0], [0, 0, 1, 1, 1, 1, 1]])
    with torch.no_grad():
        same = largest_difference(model(ids, mask)[mask.bool()], model(ids, mask.bool())[mask.bool()])
    assert same < 1e-12


def test_what_cannot_be_packed_is_refused() -> None:
    def of(name: str) -> Case:
        return next(case for case in CASES if case.architecture == name)

    ids = torch.ones(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match=r"cache.*mask\.bool\(\)"):
        built(of("GPT2LMHeadModel"))(ids, ids, cache=KVCache())
    with pytest.raises(ValueError, match="encoder-decoder"):
        built(of("BartForConditionalGeneration"))(ids, ids, target=ids)
    with pytest.raises(ValueError, match="one output per row"):
        built(of("BertForSequenceClassification"))(ids, ids)
    with types_unchecked(), pytest.raises(ValueError, match="float32"):
        built(of("GPT2LMHeadModel"))(ids, ids.float())
