"""Recorded attention weights and hidden states equal what Hugging Face returns by its formula (eager attention)."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.config import ModelConfig
from glassformer.inspect.record import Trace, record
from tests.helpers import largest_difference, some_at_once
from tests.parity.cases import CASES, lineage_of_case
from tests.parity.harness import FLOAT32_INSIDE, Case, Pair, in_reference_order, pad_rows

WEIGHTS = 1e-5  # bound of the weights: the reference computes its softmax in float32 in many lineages
# What the reference returns that are no attention weights, by a setting of its config. (Lineages without a class of
# Hugging Face's, the 2017 model and the course's language model, have no returned values to compare with.)
NO_WEIGHTS = {
    ("attention_type", "block_sparse"): "its rows of block-sparse attention do not sum to 1; see test_block_sparse.py",
}
COMPARED = [case for case in CASES if not any(case.config.get(key) == value for key, value in NO_WEIGHTS)]
FIRST = {case.id for case in {lineage_of_case(case): case for case in reversed(COMPARED)}.values()}


def test_all_but_the_named_settings_are_compared() -> None:
    left_out = [case.name for case in CASES if case not in COMPARED]
    assert left_out
    assert all("sparse" in name for name in left_out)
    assert {lineage_of_case(case) for case in COMPARED} == {lineage_of_case(case) for case in CASES}


@pytest.mark.parametrize(
    ("case", "side"),
    some_at_once(product(COMPARED, ["right", "none"]), lambda one: one[0].id in FIRST and one[1] == "right"),
)
def test_recorded_values_equal_those_of_the_reference(case: Case, side: str, tmp_path: Path) -> None:
    if side == "right" and case.right == "row":
        side = "none"  # the reference takes no padding
    pair = Pair.make(replace(case, attention="eager"), tmp_path)
    if side == "right" and case.attention != "eager" and has_window(pair.ours.config):
        # In float64 their formula gives NaN for padded queries whose window holds padding alone.
        pair = pair.cast(torch.float32)
    trace, theirs, masks = run_both(pair, side)
    states = case.bound if case.attention == "eager" else FLOAT32_INSIDE  # their formula has float32 steps, too
    for stack, prefix in attributes(pair.ours.config):
        found = trace.find(f"{stack}.blocks.*.attention.weights")
        compare(list(found.values()), getattr(theirs, f"{prefix}attentions"), masks[stack], WEIGHTS)
        streams = [trace[f"{stack}.blocks.0.input"], *outputs(trace, stack), trace[f"{stack}.output"]]
        expected = getattr(theirs, f"{prefix}hidden_states")
        compare(in_reference_order(streams, len(expected)), expected, masks[stack], states)
    if pair.ours.config.family == "encoder-decoder":
        cross = trace.find("decoder.blocks.*.cross.weights")
        compare(list(cross.values()), theirs.cross_attentions, masks["decoder"], WEIGHTS)
    check_rows(trace, masks)


def has_window(facts: ModelConfig) -> bool:
    stacks = [stack for stack in (facts.encoder, facts.decoder) if stack is not None]
    return any(isinstance(window, int) for stack in stacks for window in stack.attention.windows)


def run_both(pair: Pair, side: str) -> tuple[Trace, Any, dict[str, Tensor | None]]:
    """The trace of our pass, what the reference returns, and the real tokens of each stack."""
    tokens, targets = pair.inputs()
    sources = pair.ours.config.family == "encoder-decoder"
    if side == "none":
        ids, mask = tokens[0][None], None
        target, target_mask = (targets[0][None], None) if targets else (None, None)
    else:
        ids, mask = pad_rows(tokens, side, pair.case.pad)
        target, target_mask = pad_rows(targets, side, pair.case.pad) if targets else (None, None)
    ours, theirs = pair.side_inputs(ids)
    if target is not None:
        ours |= {"target": target, "target_mask": target_mask}
        theirs["decoder_input_ids"] = target
    for name, tokens_mask in (("attention_mask", mask), ("decoder_attention_mask", target_mask)):
        if tokens_mask is not None:
            theirs[name] = tokens_mask.long()
    with torch.no_grad(), record(pair.ours) as trace:
        pair.ours(ids, mask, **ours)
    with torch.no_grad():
        answer = pair.theirs(input_ids=ids, output_attentions=True, output_hidden_states=True, **theirs)
    return trace, answer, {"encoder": mask, "decoder": target_mask if sources else mask}


def attributes(facts: ModelConfig) -> list[tuple[str, str]]:
    """Our stacks, and how the reference's attributes of each begin."""
    if facts.family == "encoder-decoder":
        return [("encoder", "encoder_"), ("decoder", "decoder_")]
    return [(facts.family, "")]


def outputs(trace: Trace, stack: str) -> list[Tensor]:
    layers = len(trace.find(f"{stack}.blocks.*.ffn.output"))
    return [trace[f"{stack}.blocks.{number}.output"] for number in range(layers)]


def compare(ours: list[Tensor], theirs: Any, mask: Tensor | None, bound: float) -> None:
    """Equal at real tokens, the axis before the last."""
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        mine, other = mine.movedim(-2, 1), other.movedim(-2, 1)
        assert largest_difference(mine if mask is None else mine[mask], other if mask is None else other[mask]) <= bound


def check_rows(trace: Trace, masks: dict[str, Tensor | None]) -> None:
    """Rows with an allowed key sum to 1; all others, and all masked entries, are exactly 0."""
    for name, weights in trace.find("*.weights").items():
        hidden = trace[name.replace("weights", "scores")] == -torch.inf
        assert bool((weights[hidden] == 0).all()), name
        keys = masks["encoder" if name.endswith("cross.weights") else name.split(".")[0]]
        if keys is not None:
            assert bool(hidden.transpose(1, -1)[~keys].all()), name  # padding
        has_keys = ~hidden.all(-1)
        rounding = 4 * torch.finfo(weights.dtype).eps
        assert largest_difference(weights.sum(-1)[has_keys], torch.ones(())) <= rounding, name
        assert bool((weights.sum(-1)[~has_keys] == 0).all()), name
