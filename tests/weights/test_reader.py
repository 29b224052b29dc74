"""Keys of config.json that need more than a look: held against what transformers makes of the same file."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from glassformer import hub
from glassformer.config import TaskHead
from glassformer.weights.reader import ConfigError, ConfigReader

SIZES = {
    "vocab_size": 31, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 8,
}  # fmt: skip
NAMED = {"0": "a", "1": "b", "2": "c"}
IDS = torch.arange(8).reshape(1, 8)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_labels": 2, "id2label": NAMED},
        {"num_labels": 5, "id2label": NAMED},
        {"num_labels": 3, "id2label": NAMED},
        {"id2label": NAMED},
        {"num_labels": 4},
        {"num_labels": 4, "id2label": {}},
        {"num_labels": 4, "id2label": None},
        {"_num_labels": 5, "id2label": NAMED},
        {"_num_labels": 5},
        {"num_labels": 2, "id2label": {"2": "c", "0": "a"}},
        {},
    ],
    ids=str,
)
def test_the_number_of_labels_is_the_one_that_transformers_takes(tmp_path: Path, keys: dict[str, Any]) -> None:
    """num_labels counts where it disagrees with id2label, and the names are then not used."""
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **SIZES, **keys}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    model = transformers.BertForSequenceClassification(theirs).eval()
    model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config))  # as it was, not as transformers writes it
    loaded = hub.load(tmp_path)
    assert isinstance(loaded.config.head, TaskHead)
    assert loaded.config.head.labels == tuple(theirs.id2label[key] for key in sorted(theirs.id2label))
    with torch.no_grad():
        assert torch.allclose(loaded.model(IDS), model(IDS).logits, atol=1e-6)


@pytest.mark.parametrize("keys", [{"num_labels": "3"}, {"num_labels": 0}, {"num_labels": True}, {"num_labels": 2.0}])
def test_a_number_of_labels_that_is_none_is_refused(keys: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"num_labels=.* must be a positive integer"):
        _ = ConfigReader(keys, {}).labels


@pytest.mark.parametrize("named", [{"x": "a"}, ["a", "b"], "ab", 5, [0, 1], {"0": "a", "1.5": "b"}])
def test_names_of_labels_are_numbered(named: object) -> None:
    with pytest.raises(ConfigError, match="id2label"):
        _ = ConfigReader({"id2label": named}, {}).labels
