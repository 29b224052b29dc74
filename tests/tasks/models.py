"""Tiny random models of the reference with real little tokenizers, saved as folders and loaded by the front door."""

from functools import cache
from pathlib import Path
from typing import Any

import transformers

from glassformer import hub
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import set_template
from tests.helpers import randomise
from tests.text.test_tokenizer import ANGLED, trained_merges, write_merges, write_words

LONGEST = 40
SIZES = {
    "BertConfig": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": LONGEST,
    },
    "GPT2Config": {"n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": LONGEST},
    "BartConfig": {
        "d_model": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 3,
        "decoder_attention_heads": 3,
        "encoder_ffn_dim": 40,
        "decoder_ffn_dim": 40,
        "max_position_embeddings": LONGEST,
    },
    "LlamaConfig": {
        "hidden_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 40,
        "max_position_embeddings": LONGEST,
    },
}
SIZES["RobertaConfig"] = {**SIZES["BertConfig"], "max_position_embeddings": LONGEST + 2, "type_vocab_size": 1}
TEXTS = [
    "The value of the function is returned.",
    "Python has lists",
    "日本語 and 😀, déjà vu!",
    "If the file does not exist, an error is raised; otherwise it is opened and read line by line.",
    "None",
]


@cache
def _merges(special: tuple[str, ...]) -> tuple[dict[str, int], list[Any]]:
    return trained_merges(list(special))


def save_tokenizer(kind: str, folder: Path) -> Tokenizer:
    """Write a tokenizer.json: words (BERT's frame), bytes (no frame), bytes with bos, or angled (RoBERTa's frame)."""
    parts = folder / "parts"
    parts.mkdir(parents=True)
    if kind == "words":
        tokenizer = Tokenizer.load(write_words(parts), kind="wordpiece")
    elif kind == "angled":
        tokenizer = Tokenizer.load(write_merges(parts, *_merges(tuple(ANGLED))), kind="roberta")
    else:
        tokenizer = Tokenizer.load(write_merges(parts, *_merges(("<|endoftext|>",))), kind="gpt2")
        if kind == "bytes with bos":
            set_template(tokenizer.backend, start=["<|endoftext|>"])
    tokenizer.save(folder)
    return tokenizer


def make(folder: Path, architecture: str, kind: str, **config: Any) -> tuple[hub.Loaded, Any]:
    """Our model and the reference, both in float64, every parameter drawn at random."""
    tokenizer = save_tokenizer(kind, folder)
    cls = getattr(transformers, architecture)
    facts = cls.config_class(
        **{"vocab_size": tokenizer.vocab_size, **SIZES[cls.config_class.__name__], "pad_token_id": 0, **config}
    )
    theirs = cls(facts).eval().double()
    randomise(theirs, seed=3)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    return hub.load(folder), theirs
