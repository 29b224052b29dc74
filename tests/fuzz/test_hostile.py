"""Files that promise far more than they hold are refused at once: before anything is planned, built or filled."""

import json
import signal
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from glassformer import hub
from glassformer.config import count
from glassformer.inspect.facts import facts_of
from glassformer.inspect.parts import part_tree
from glassformer.models.transformer import Transformer
from glassformer.text.tokenizer import HIGHEST_ID, Tokenizer, TokenizerError
from glassformer.weights.files import WeightsError
from glassformer.weights.reader import ConfigError
from tests.configs import CONFIGS
from tests.tasks.models import make, save_tokenizer

SECONDS = 20  # of the processor: far above what is needed, far below what the work would take
MEMORY = 200 * 2**20  # bytes


@contextmanager
def limits() -> Iterator[None]:
    def stop(*_: object) -> NoReturn:
        raise AssertionError(f"more than {SECONDS} seconds of the processor")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY
    finally:
        tracemalloc.stop()
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.fixture(autouse=True)
def _nothing_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(*_: object) -> NoReturn:
        raise AssertionError("a model was built")

    monkeypatch.setattr(hub, "Transformer", build)


def refuse(folder: Path) -> None:
    with limits(), pytest.raises((ConfigError, WeightsError), match=str(folder)):
        hub.load(folder)
    with limits(), suppress(ConfigError):  # what info does: the weights are not asked, so it may be shown
        facts = facts_of(folder)
        count(facts)
        part_tree(facts)


LABELS = {"architectures": ["GPT2ForSequenceClassification"]}


@pytest.mark.parametrize(
    "changes",
    [
        *({"n_layer": layers} for layers in (3, 4000, 10**6, 10**30)),
        *({key: size} for key in ("n_positions", "n_inner", "n_embd", "vocab_size") for size in (2**30, 2**62, 10**30)),
        *({"n_head": heads} for heads in (2**31 - 1, 10**30)),
        *({**LABELS, "num_labels": labels} for labels in (10**5, 10**9, 10**30)),
    ],
    ids=str,
)
def test_a_config_that_promises_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    with monkeypatch.context() as whole:
        whole.setattr(hub, "Transformer", Transformer)
        folder = make(tmp_path / "model", "GPT2LMHeadModel", "bytes")[0].folder
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refuse(folder)


@pytest.mark.parametrize("size", [2**30, 2**62, 10**30])
@pytest.mark.parametrize(
    "fact", ["decoder.layers", "decoder.ffn.hidden", "decoder.attention.head_dim", "embed.position.length", "vocab"]
)
def test_facts_that_promise_too_much(tmp_path: Path, fact: str, size: int) -> None:
    folder = hub.save(Transformer(CONFIGS["gpt2"]), tmp_path)
    changes = json.loads((folder / "glassformer.json").read_text())
    *way, last = fact.split(".")
    part = changes["model"]
    for name in way:
        part = part[name]
    part[last] = size
    (folder / "glassformer.json").write_text(json.dumps(changes))
    refuse(folder)


@pytest.mark.parametrize("times", [10**9, 10**30, -1])
def test_a_pattern_of_layers_that_is_written_short(times: int) -> None:
    from glassformer.families import lineages

    changes = {"num_layers": 2, "attention_types": [[["global", "local"], times]]}
    with limits(), pytest.raises(ConfigError, match="attention_types"):
        lineages()["gpt-neo"].facts(changes, "lm")


@pytest.mark.parametrize("number", [HIGHEST_ID + 1, 2**31, 2**32 - 1])
def test_a_vocabulary_with_a_number_far_above_all_others(tmp_path: Path, number: int) -> None:
    save_tokenizer("bytes", tmp_path)
    path = tmp_path / "tokenizer.json"
    changes = json.loads(path.read_text())
    changes["model"]["vocab"]["far"] = number
    path.write_text(json.dumps(changes))
    with limits(), pytest.raises(TokenizerError, match=f"highest id of the vocabulary is {number}"):
        Tokenizer.load(tmp_path)
