"""Tiny models that write what a test wants: every weight is zero but for those that turn a position into a token."""

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from glassformer import hub
from glassformer.text.tokenizer import Tokenizer
from tests.tasks.models import save_tokenizer

WIDTH, LENGTH = 96, 96


def scripted(folder: Path, says: str, *, after: int, kind: str = "bytes", end: bool = True, **files: Any) -> hub.Loaded:
    """A decoder that writes ``says``, then its end token if ``end``, after any prompt of ``after`` tokens.

    ``files``: what generation_config, and others by their names, are to say.
    """
    return scripted_with(save_tokenizer(kind, folder), folder, says, after=after, end=end, **files)


def scripted_with(
    tokenizer: Tokenizer, folder: Path, says: str, *, after: int, end: bool = True, **files: Any
) -> hub.Loaded:
    """``scripted`` with a tokenizer that lies in the folder already."""
    script = tokenizer.encode(says, special=False)
    script += [tokenizer.eos] if end else []
    write_script(folder, tokenizer, {after - 1 + place: token for place, token in enumerate(script)})
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return hub.load(folder)


def write_script(folder: Path, tokenizer: Tokenizer, tokens: dict[int, int]) -> None:
    """Save a model that says ``tokens[p]`` after position ``p``, and its token 1 where nothing is written down."""
    assert max(tokens) < LENGTH
    config = transformers.GPT2Config(
        vocab_size=tokenizer.vocab_size,
        n_embd=WIDTH,
        n_layer=1,
        n_head=2,
        n_positions=LENGTH,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos,
        eos_token_id=tokenizer.eos,
    )
    model = transformers.GPT2LMHeadModel(config)
    vectors = torch.nn.functional.layer_norm(torch.eye(LENGTH, WIDTH), (WIDTH,))  # next to no product with each other
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.transformer.ln_f.weight.fill_(1.0)
        model.transformer.wpe.weight.copy_(vectors)
        for place in range(LENGTH):
            model.lm_head.weight[tokens.get(place, 1)] += vectors[place]
    model.generation_config = transformers.GenerationConfig()
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink()
