"""Tiny models of every lineage and head, with new weights and the tokenizer of a shipped model."""

import tempfile
from dataclasses import replace
from typing import Any

import torch

from glassformer.config import LMHead, MaskDecoder, ModelConfig, Tokens
from glassformer.families import lineages
from glassformer.hub import load, save
from glassformer.models.transformer import Transformer
from glassformer.weights.lineage import Lineage, choose_kind
from tests.parity import test_cs336, test_transformer2017
from tests.parity.cases import CASES, FIRST

# Heads that another family has as well: labels and spans of decoders and of encoder-decoders, and a pair of tasks.
MORE = {
    "bert-BertModel", "bert-BertForPreTraining", "bert-BertForSequenceClassification", "bert-BertForQuestionAnswering",
    "deberta-DebertaForSequenceClassification", "gpt2-GPT2ForSequenceClassification", "gpt2-GPT2ForTokenClassification",
    "gpt2-GPT2ForQuestionAnswering", "gpt2-GPT2Model", "bart-BartForSequenceClassification",
    "bart-BartForQuestionAnswering", "t5-T5ForTokenClassification", "t5-T5Model",
}  # fmt: skip
BY_CASE = {case.id: case for case in CASES}
SPECIAL = {"bos_token_id": "[CLS]", "eos_token_id": "[SEP]", "pad_token_id": "[PAD]", "decoder_start_token_id": "[CLS]"}
MASK_DECODER = "deberta-mask-decoder"
MODELS = (*sorted(FIRST | MORE), MASK_DECODER, "transformer2017", "cs336")


def tiny(name: str) -> str:
    """The folder of a tiny model by the name of a case in tests/parity, or one of those above."""
    tokenizer = load("mlm-en").tokenizer
    facts, lineage = facts_of(name, {key: tokenizer.id_of(text) for key, text in SPECIAL.items()}, tokenizer.vocab_size)
    torch.manual_seed(0)
    folder = tempfile.mkdtemp()
    written = None if name == MASK_DECODER else lineage.name  # Hugging Face's format has no mask decoder
    save(Transformer(facts), folder, tokenizer=tokenizer, lineage=written)
    return folder


def facts_of(name: str, special: dict[str, Any], vocab: int) -> tuple[ModelConfig, Lineage]:
    """The facts of a tiny model with a vocabulary of this size, and its lineage."""
    if name == "transformer2017":
        lineage, config = test_transformer2017.LINEAGE, {**test_transformer2017.SMALL, **special, "vocab_size": vocab}
        facts = lineage.facts(config, choose_kind(lineage, config))
        return replace(facts, tokens=Tokens(start=special["bos_token_id"], eos=special["eos_token_id"])), lineage
    if name == "cs336":
        return replace(test_cs336.facts(), vocab=vocab), lineages()["cs336"]
    case = BY_CASE["deberta-DebertaForMaskedLM" if name == MASK_DECODER else name]
    lineage = next(
        one for one in lineages().values() if any(form.architecture == case.architecture for form in one.heads.values())
    )
    config = {**case.config, **special, "vocab_size": vocab, "architectures": [case.architecture]}
    facts = lineage.facts(config, choose_kind(lineage, config))
    if name == MASK_DECODER:
        assert isinstance(facts.head, LMHead)
        facts = replace(facts, head=replace(facts.head, mask_decoder=MaskDecoder(length=40, steps=2)))
    return facts, lineage
