"""What the page shows of a tiny model of every lineage and head: each number follows from those before it."""

from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.hub import load
from glassformer.viewer.encode import decode
from glassformer.viewer.inputs import Input
from glassformer.viewer.subject import Subject
from tests.browser.tiny import MODELS, tiny
from tests.helpers import randomise
from tests.viewer.conftest import ask
from tests.viewer.test_attention_queries import normed, recorded

TEXT = "The cat sat on the [MASK]."


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_shown_numbers_follow_from_each_other(name: str) -> None:
    subject = Subject(load(tiny(name), dtype="float32"), name)
    randomise(subject.model)
    for stack, facts in ask(subject, "model")["stacks"].items():
        _check_embedding(subject, stack)
        for layer in (0, facts["layers"] - 1):
            kinds = [(stack, "attention"), (stack, "ffn")] + [("cross", "attention")] * facts["cross"]
            for kind, part in kinds:
                _check_sublayer(subject, kind, part, layer, facts["heads"] - 1)
    if {"fill", "generate"} & set(subject.loaded.abilities):
        _check_predictions(subject)


def _check_embedding(subject: Subject, stack: str) -> None:
    """The sum, the norm and the projection of one token's vectors."""
    answer = ask(subject, "embedding", TEXT, stack=stack, token=1)
    added = [_tensor(answer[part]) for part in ("token", "position", "segment", "language") if answer[part]]
    _close(_tensor(answer["sum"]), torch.stack(added).sum(0))
    last = _tensor(answer["sum"])
    if answer["norm"]:
        last = _tensor(answer["norm"]["output"])
        _close(last, normed(answer["norm"], _tensor(answer["sum"])))
    is_target = stack == "decoder" and subject.facts.encoder is not None
    _close(_tensor(answer["output"]), recorded(subject, TEXT)["target_embed" if is_target else "embed"][1])
    if not answer["projected"]:
        _close(last, _tensor(answer["output"]))


def _check_sublayer(subject: Subject, kind: str, part: str, layer: int, head: int) -> None:
    """The norms, the sum with the stream, and of attention the weights and the output of a head."""
    answer = ask(subject, "sublayer", TEXT, kind=kind, layer=layer, part=part, token=1, head=head)
    of = {key: _tensor(value) for key, value in answer.items() if isinstance(value, dict) and "data" in value}
    if answer["norm"]:
        _close(of["read"], normed(answer["norm"], of["input"]))
    if not answer["others"]:
        _close(of["added"], of["input"] + of["output"])
    if answer["post_norm"]:
        _close(of["result"], normed(answer["post_norm"], of["added"]))
    if part == "attention":
        scores = of["products"] * answer["scale"] + of.get("bias", torch.zeros(()))
        _close(of["weights"], scores.masked_fill(of["allowed"] == 0, -torch.inf).softmax(-1))
        _close(of["head_output"], of["weights"] @ of["v"])


def _check_predictions(subject: Subject) -> None:
    """The logits at a position, and the lens and the steps at all of them."""
    logits = _logits(subject)
    _close(_tensor(ask(subject, "predict", TEXT, position=1)["logits"]), logits[1])
    best = logits.argmax(-1).tolist()
    assert decode(ask(subject, "lens", TEXT, top=1)["ids"])[-1, :, 0].tolist() == best
    if subject.facts.decoder is not None:
        assert [token["id"] for token in ask(subject, "steps", TEXT)["predicted"]] == best


def _logits(subject: Subject) -> Tensor:
    """The model's own logits at every token of the last stack (T, V)."""
    read = subject.sequences(Input(TEXT))
    more: dict[str, Any] = {}
    if read.encoder is not None and read.decoder is not None:
        more["target"] = torch.tensor([read.decoder])
    if subject.facts.embed.segments and read.segments is not None:
        more["segments"] = torch.tensor([read.segments])
    with torch.inference_mode():
        output = subject.model(torch.tensor([read.decoder if read.encoder is None else read.encoder]), **more)
    return (output[0] if isinstance(output, tuple) else output)[0]


def _tensor(encoded: dict[str, Any]) -> Tensor:
    return torch.tensor(decode(encoded))


def _close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)
