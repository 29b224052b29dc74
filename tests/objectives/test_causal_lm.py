"""The next token: shifted once, over documents, prompts and packed rows."""

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from glassformer.config import ModelConfig
from glassformer.models.transformer import Transformer
from glassformer.objectives.base import IGNORE, Padding
from glassformer.objectives.causal_lm import Document, NextToken, PackedDocuments, with_code
from tests.helpers import largest_difference
from tests.objectives.models import fresh, gradients, mean_of, pair_of, seeded, words

LENGTHS = (9, 13, 5, 2)


def test_the_loss_of_four_tokens_by_hand() -> None:
    model, ids = fresh("GPT2LMHeadModel"), [7, 11, 7, 30]
    batch = NextToken().prepare([ids], seeded())
    assert batch.inputs.keys() == {"ids"}
    assert batch.inputs["ids"].tolist() == [[7, 11, 7]]
    assert batch.labels["next"].tolist() == [[11, 7, 30]]
    assert (batch.counts, batch.tokens) == ({"next": 3}, 3)
    probs = model(torch.tensor([ids]))[0].log_softmax(-1)
    expected = -(probs[0, 11] + probs[1, 7] + probs[2, 30])
    assert abs((NextToken().loss(model, batch).terms["next"].total - expected).item()) < 1e-12


@pytest.mark.parametrize("architecture", ["GPT2LMHeadModel", "LlamaForCausalLM", "CTRLLMHeadModel"])
def test_the_loss_is_the_references(architecture: str) -> None:
    pair = pair_of(architecture)
    rows = words(*LENGTHS)
    loss = NextToken().loss(pair.ours, NextToken().prepare(rows, seeded()))
    total = 0.0
    for row in rows:  # one by one: some of the references cannot take padding
        ids = torch.tensor([row])
        total += pair.theirs(input_ids=ids, labels=ids).loss.item() * (len(row) - 1)
    assert loss.terms["next"].count == sum(LENGTHS) - len(LENGTHS)
    assert abs(mean_of(loss, "next") - total / loss.terms["next"].count) < 1e-5  # they take it in float32


class Copies(Transformer):
    """A model that says of every token the token itself, or the one that comes after it in a table."""

    def __init__(self, facts: ModelConfig, after: dict[int, int] | None = None) -> None:
        super().__init__(facts)
        self.after = after or {}

    def forward(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        next_ids = torch.tensor([[self.after.get(token, token) for token in row] for row in ids.tolist()])
        return 50.0 * F.one_hot(next_ids, self.config.vocab).double()


def test_row_30_identity_does_not_solve_it_and_knowing_the_next_token_does() -> None:
    facts = fresh("GPT2LMHeadModel").config
    row = [5, 6, 7, 8, 9, 10]
    batch = NextToken().prepare([row], seeded())
    assert mean_of(NextToken().loss(Copies(facts), batch), "next") > 49
    assert mean_of(NextToken().loss(Copies(facts, {token: token + 1 for token in row}), batch), "next") < 1e-9
    assert mean_of(NextToken().loss(Copies(facts, {token: token + 2 for token in row}), batch), "next") > 49


def test_row_29_a_real_end_is_learned_though_padding_has_the_same_id() -> None:
    eos, rows = 1, [[*row, 1] for row in words(6, 3)]
    model = fresh("GPT2LMHeadModel")
    result = []
    for fill in (eos, 17):
        objective = NextToken(padding=Padding(fill=fill))
        batch = objective.prepare(rows, seeded())
        assert (batch.labels["next"] == eos).sum() == 2
        assert batch.labels["next"][1].tolist() == [*rows[1][1:], IGNORE, IGNORE, IGNORE]
        assert batch.counts["next"] == 9
        model.zero_grad()
        loss = objective.loss(model, batch)
        loss.mean().backward()
        result.append((loss.terms["next"].total.item(), gradients(model)))
    assert result[0][0] == result[1][0]
    bias = result[0][1]["embed.token.weight"]  # tied to the head: the row of EOS has a gradient
    assert float(bias[eos].abs().max()) > 1e-3
    assert torch.equal(bias, result[1][1]["embed.token.weight"])


@pytest.mark.parametrize("side", ["right", "left"])
def test_row_31_the_loss_per_token_is_that_of_any_batch_size(side: Any) -> None:
    model, objective = fresh("GPT2LMHeadModel"), NextToken(padding=Padding(side=side))
    rows = words(*range(2, 18), seed=3)
    means = []
    for size in (1, 8, 16):
        total, count = 0.0, 0
        for first in range(0, 16, size):
            loss = objective.loss(model, objective.prepare(rows[first : first + size], seeded()))
            total += loss.terms["next"].total.item()
            count += loss.terms["next"].count
        means.append(total / count)
    assert max(means) - min(means) < 1e-12


def test_row_32_unequal_micro_batches_are_one_batch() -> None:
    model, objective, rows = fresh("GPT2LMHeadModel"), NextToken(), words(17, 2, 9, 4, 3)
    objective.loss(model, objective.prepare(rows, seeded())).mean().backward()
    whole = gradients(model)
    model.zero_grad()
    batches = [objective.prepare(part, seeded()) for part in (rows[:1], rows[1:4], rows[4:])]
    counts = sum((Counter(batch.counts) for batch in batches), Counter())
    assert counts == {"next": 30}
    for batch in batches:
        objective.loss(model, batch).mean(counts).backward()
    for name, gradient in gradients(model).items():
        assert largest_difference(gradient, whole[name]) < 1e-12, name


def test_packed_documents_are_each_as_if_alone() -> None:
    model, objective = fresh("GPT2LMHeadModel"), NextToken()
    a, b, c, d = words(5, 1, 6, 4)
    batch = objective.prepare([PackedDocuments([a, b, c]), PackedDocuments([d])], seeded())
    assert batch.inputs["ids"].shape == (2, 11)
    assert batch.inputs["mask"].tolist() == [[1] * 5 + [2] + [3] * 5, [1] * 3 + [0] * 8]
    assert batch.labels["next"][0].tolist() == [*a[1:], IGNORE, IGNORE, *c[1:]]
    loss = objective.loss(model, batch)
    alone = objective.loss(model, objective.prepare([a, c, d], seeded()))
    assert loss.terms["next"].count == alone.terms["next"].count == 12
    assert abs(loss.terms["next"].total.item() - alone.terms["next"].total.item()) < 1e-10


def test_what_is_given_is_read_and_not_predicted() -> None:
    model, objective, (row,) = fresh("GPT2LMHeadModel"), NextToken(), words(7)
    batch = objective.prepare([Document(row, prompt_tokens=3)], seeded())
    assert batch.inputs["ids"][0].tolist() == row[:-1]
    assert batch.labels["next"][0].tolist() == [IGNORE, IGNORE, *row[3:]]
    assert batch.counts == {"next": 4}
    other = objective.prepare([Document([60, *row[1:]], prompt_tokens=3)], seeded())
    totals = [objective.loss(model, entry).terms["next"].total.item() for entry in (batch, other)]
    assert abs(totals[0] - totals[1]) > 1e-6  # though it is not predicted, it is seen


def test_a_control_code_is_predicted_if_asked() -> None:
    code, bos, (row,) = 3, 1, words(4)
    labels = []
    for document in (
        with_code(row, code),
        with_code(row, code, bos=bos),
        with_code(row, code, bos=bos, predicted=True),
    ):
        batch = NextToken().prepare([document], seeded())
        assert batch.inputs["ids"][0].tolist()[-4:] == [code, *row[:-1]]
        labels.append(batch.labels["next"][0].tolist())
    assert labels == [row, [IGNORE, *row], [code, *row]]
    with pytest.raises(ValueError, match="control code 3 comes first"):
        with_code(row, code, predicted=True)


def test_documents_may_say_their_language() -> None:
    a, b = words(3, 4)
    batch = NextToken().prepare([PackedDocuments([Document(a, language=2), Document(b, language=1)])], seeded())
    assert batch.inputs["languages"].tolist() == [[2, 2, 2, 1, 1, 1]]
    model = fresh("XLMWithLMHeadModel", "xlm-causal")
    assert NextToken().loss(model, batch).terms["next"].total.item() > 0
    with pytest.raises(ValueError, match="1 of the 2 documents"):
        NextToken().prepare([PackedDocuments([Document(a, language=2), b])], seeded())


def test_rows_without_a_next_token_are_refused() -> None:
    for rows in ([[5]], [words(3)[0], []]):
        with pytest.raises(ValueError, match="fewer than two tokens"):
            NextToken().prepare(rows, seeded())
    with pytest.raises(ValueError, match="at least one example"):
        NextToken().prepare([], seeded())
    with pytest.raises(ValueError, match="prompt_tokens"):
        Document([5, 6], prompt_tokens=-1)
