"""Hugging Face as the oracle: tiny random models, saved as folders, loaded by the front door, compared by number.

A ``Case`` names a class and a tiny config. Every parameter is randomised; the comparison is in float64 over the answer
and all hidden states, without padding, with padding on either side, and for rows of unequal length.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor

import glassformer.hub as hub
from glassformer.config import ModelConfig
from glassformer.models.transformer import Transformer
from glassformer.weights.convert import copy_weights, plan
from glassformer.weights.lineage import Lineage
from tests.helpers import randomise

VOCAB, WIDTH, LAYERS, HEADS, INNER, LONGEST = 61, 24, 3, 3, 40, 40
FIRST_WORD = 5  # ids below are special
LENGTHS = (9, 13, 5)  # of the rows of a batch
TARGET_LENGTHS = (7, 4, 8)
EXACT, FLOAT32_INSIDE = 1e-9, 1e-5
BOUNDS = {torch.float32: 1e-4, torch.bfloat16: 0.35}  # in their own precision both, in units of the largest answer


@dataclass(frozen=True)
class Case:
    """One variant of a lineage."""

    name: str
    architecture: str  # class of transformers
    config: Mapping[str, Any]  # arguments of its config class
    bound: float = EXACT  # FLOAT32_INSIDE only where the reference takes float32 steps
    left: str = "positions"  # how the reference takes left padding: "as is", "positions" (position_ids), "row" (cannot)
    right: str = "as is"  # "row": the reference cannot take padding at all
    attention: str = "eager"  # the reference's own path
    segments: int = 0
    languages: int = 0
    pad: int = 1  # the id in padded slots, for references that take positions from it
    answer: str = "logits"  # attribute of the reference's output
    extra: Mapping[str, Any] = field(default_factory=dict)  # more arguments of the reference's call
    hidden: bool = True  # hidden states are compared too
    eos: int | None = None  # rows end with it and targets are as long, for references that look for it in the rows
    unused: tuple[str, ...] = ()  # weights that the reference's class holds and does not use

    @property
    def id(self) -> str:
        return f"{self.name}-{self.architecture}"


def reference(case: Case, seed: int = 0) -> Any:
    """The reference in float64 with every parameter (and every stored buffer) randomised."""
    cls = getattr(transformers, case.architecture)
    config = cls.config_class(**case.config)
    config._attn_implementation = case.attention
    model = cls(config).eval().double()
    randomise(model, seed)
    for name, buffer in model.named_buffers():
        if name.endswith("final_logits_bias"):
            buffer.normal_(0, 0.15, generator=torch.Generator().manual_seed(seed + 1))
    model.tie_weights()
    return model


def rows(lengths: tuple[int, ...], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(FIRST_WORD, VOCAB, (length,), generator=generator) for length in lengths]


def pad_rows(tokens: list[Tensor], side: str, fill: int = 1, extra: int = 2) -> tuple[Tensor, Tensor]:
    """A batch with at least ``extra`` padded slots, and which slots are real."""
    width = max(map(len, tokens)) + extra
    ids, mask = torch.full((len(tokens), width), fill), torch.zeros(len(tokens), width, dtype=torch.bool)
    for number, row in enumerate(tokens):
        place = slice(0, len(row)) if side == "right" else slice(width - len(row), width)
        ids[number, place], mask[number, place] = row, True
    return ids, mask


def our_states(model: Transformer, call: Callable[[], Any]) -> tuple[Any, dict[str, list[Tensor]]]:
    """Our answer and, for each stack, the vectors that enter it, leave each block, and leave the stack."""
    states: dict[str, list[Tensor]] = {"encoder": [], "decoder": []}
    hooks = []
    for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        if stack is None:
            continue
        keep = states[name]
        hooks.append(stack.register_forward_pre_hook(lambda _, args, keep=keep: keep.append(args[0])))
        for block in stack.blocks:
            hooks.append(block.register_forward_hook(lambda *args, keep=keep: keep.append(args[-1])))
        if stack.convolution is not None:  # belongs to the first layer: what leaves it, leaves the layer
            hooks.append(
                stack.convolution.register_forward_hook(lambda *args, keep=keep: keep.__setitem__(-1, args[-1]))
            )
        hooks.append(stack.register_forward_hook(lambda *args, keep=keep: keep.append(args[-1])))
    try:
        with torch.no_grad():
            answer = call()
    finally:
        for hook in hooks:
            hook.remove()
    return answer, states


def in_reference_order(states: list[Tensor], reference_states: int) -> list[Tensor]:
    """The reference gives the input and the output of each layer, the last one after the final norm."""
    *before, last, final = states
    ordered = [*before, final]
    del last
    assert len(ordered) == reference_states, (len(ordered), reference_states)
    return ordered


@dataclass
class Pair:
    """The reference and our model, loaded from the folder that the reference wrote."""

    case: Case
    theirs: Any
    ours: Transformer
    folder: Path

    @classmethod
    def make(cls, case: Case, folder: Path, seed: int = 0) -> "Pair":
        theirs = reference(case, seed)
        theirs.save_pretrained(folder)
        loaded = hub.load(folder)
        assert not loaded.report.unknown_keys, loaded.report.unknown_keys
        return cls(case, theirs, loaded.model, folder)

    def cast(self, dtype: torch.dtype) -> "Pair":
        """The same two in another precision."""
        return Pair(self.case, copy.deepcopy(self.theirs).to(dtype), copy.deepcopy(self.ours).to(dtype), self.folder)

    def inputs(self) -> tuple[list[Tensor], list[Tensor] | None]:
        """Rows of unequal lengths, and others for the decoder of an encoder-decoder."""
        tokens = rows(LENGTHS, 1)
        if self.case.eos is not None:
            tokens = [torch.cat((row[:-1], torch.tensor([self.case.eos]))) for row in tokens]
        if self.ours.config.family != "encoder-decoder":
            return tokens, None
        return tokens, rows(TARGET_LENGTHS if self.case.eos is None else LENGTHS, 2)

    def side_inputs(self, ids: Tensor, seed: int = 5) -> tuple[dict[str, Any], dict[str, Any]]:
        """Segments and languages, for ours and for the reference."""
        generator = torch.Generator().manual_seed(seed)
        ours: dict[str, Any] = {}
        theirs: dict[str, Any] = dict(self.case.extra)
        for name, their_name, kinds in (
            ("segments", "token_type_ids", self.case.segments),
            ("languages", "langs", self.case.languages),
        ):
            if kinds:
                ours[name] = theirs[their_name] = torch.randint(0, kinds, ids.shape, generator=generator)
        return ours, theirs

    def ask_theirs(self, **inputs: Any) -> Any:
        with torch.no_grad():
            return self.theirs(output_hidden_states=self.case.hidden, **inputs)

    def compare(self, tokens: list[Tensor], targets: list[Tensor] | None, side: str) -> float:
        """The largest difference at real tokens of a padded batch; side "none" takes the first row alone."""
        if side == "none":
            tokens, targets = tokens[:1], targets and targets[:1]
            ids, mask = tokens[0][None], None
            target, target_mask = (targets[0][None], None) if targets else (None, None)
        else:
            ids, mask = pad_rows(tokens, side, self.case.pad)
            target, target_mask = pad_rows(targets, "right", self.case.pad) if targets else (None, None)
        ours_more, theirs_more = self.side_inputs(ids)
        how = {"none": "as is", "right": self.case.right, "left": self.case.left}[side]
        if targets:
            ours_more |= {"target": target, "target_mask": target_mask}
        answer, states = our_states(self.ours, lambda: self.ours(ids, mask, **ours_more))
        if how == "row":
            return self._by_row(tokens, targets, answer, states, (mask, target_mask), (ours_more, theirs_more))
        if mask is not None:
            theirs_more["attention_mask"] = mask.long()
            if how == "positions":
                theirs_more["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)
        if target is not None:
            theirs_more["decoder_input_ids"] = target
            if target_mask is not None:
                theirs_more["decoder_attention_mask"] = target_mask.long()
        theirs = self.ask_theirs(input_ids=ids, **theirs_more)
        return difference(self.case, answer, states, theirs, mask, target_mask if target is not None else mask)

    def _by_row(
        self, tokens: Any, targets: Any, answer: Any, states: Any, masks: tuple[Any, Any], more: tuple[Any, Any]
    ) -> float:
        """Each row of ours against the reference's answer to that row alone."""
        worst = 0.0
        for number, row in enumerate(tokens):
            real, target_real = (None if m is None else m[number] for m in masks)
            inputs = {
                key: value[number][real][None] if isinstance(value, Tensor) else value for key, value in more[1].items()
            }
            if targets:
                inputs["decoder_input_ids"] = targets[number][None]
            theirs = self.ask_theirs(input_ids=row[None], **inputs)
            picked = _pick(answer, number, target_real if targets else real)
            picked_states = {
                "encoder": [_pick(state, number, real) for state in states["encoder"]],
                "decoder": [_pick(state, number, target_real if targets else real) for state in states["decoder"]],
            }
            worst = max(worst, difference(self.case, picked, picked_states, theirs, None, None))
        return worst


def _pick(value: Any, number: int, real: Tensor | None) -> Any:
    """One row of a batch at its real tokens; a value per sequence has no tokens to choose from."""
    if isinstance(value, tuple):
        return tuple(_pick(item, number, real) for item in value)
    row = value[number]
    if real is not None and row.ndim and row.shape[0] == real.shape[0]:
        row = row[real]
    return row[None]


def difference(case: Case, answer: Any, states: Any, theirs: Any, mask: Any, answer_mask: Any) -> float:
    """max |ours − theirs| over the answer and all hidden states, at real tokens."""
    worst = largest(answer, their_answer(case, theirs), answer_mask)
    if not case.hidden:
        return worst
    pairs: list[tuple[list[Tensor], Any, Any]] = []
    if getattr(theirs, "encoder_hidden_states", None) is not None:
        pairs.append((states["encoder"], theirs.encoder_hidden_states, mask))
        pairs.append((states["decoder"], theirs.decoder_hidden_states, answer_mask))
    else:
        pairs.append((states["encoder"] or states["decoder"], theirs.hidden_states, mask))
    for ours, reference_states, where in pairs:
        for mine, other in zip(in_reference_order(ours, len(reference_states)), reference_states, strict=True):
            worst = max(worst, largest(mine, other, where))
    return worst


def their_answer(case: Case, theirs: Any) -> Any:
    if case.answer == "span":
        return torch.stack((theirs.start_logits, theirs.end_logits), -1)
    if case.answer == "pretraining":
        pair = getattr(theirs, "seq_relationship_logits", None)
        return theirs.prediction_logits, theirs.sop_logits if pair is None else pair
    return getattr(theirs, case.answer)


def largest(ours: Any, theirs: Any, mask: Tensor | None) -> float:
    if isinstance(ours, tuple):
        return max(largest(a, b, mask) for a, b in zip(ours, theirs, strict=True))
    assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
    gap = (ours.double() - theirs.double()).abs()
    if mask is not None and gap.ndim >= 2 and gap.shape[:2] == mask.shape:
        gap = gap[mask]
    assert not gap.isnan().any(), "NaN on one side"
    return float(gap.max())


@dataclass
class InMemory:
    """Tensors in memory as a source of weights."""

    weights: Mapping[str, Tensor]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.weights.items()}

    def read(self, name: str) -> Tensor:
        return self.weights[name]

    borrow = read

    def copy_into(self, name: str, out: Tensor) -> None:
        out.copy_(self.weights[name])


def from_weights(lineage: Lineage, facts: ModelConfig, kind: str, weights: Mapping[str, Tensor]) -> Transformer:
    """Our model from weights under the names of a lineage; all of them are loaded."""
    source, model = InMemory(weights), Transformer(facts)
    planned = plan(lineage, facts, kind, source.shapes)
    assert planned.unused == {}
    copy_weights(planned, model, source, next(iter(weights.values())).dtype, torch.device("cpu"))
    return model.eval()
