"""Numbers computed without the viewer, to compare with what the page shows; tiny models of every build."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer import config, pretrained
from glassformer.generation.prompts import read_prompt
from glassformer.hub import Loaded, load, save
from glassformer.inspect.record import record
from glassformer.models.transformer import Transformer
from tests.helpers import randomise

MINUS = str.maketrans({"−": "-", "∞": "inf"})


def number(text: str) -> float:
    """A number as the page writes it: with a true minus sign, perhaps with a percent sign."""
    shown = text.translate(MINUS).replace(",", "").strip()
    return float(shown.removesuffix("%")) / 100 if shown.endswith("%") else float(shown)


def numbers(texts: Sequence[str]) -> list[float]:
    """Several of them."""
    return [number(text) for text in texts]


def decoder_ids(loaded: Loaded, text: str) -> Tensor:
    """The ids that a decoder reads, (1, T)."""
    return torch.tensor([read_prompt(loaded, text).ids])


def decoder_values(loaded: Loaded, text: str, names: str | list[str]) -> dict[str, Tensor]:
    """Recorded values of a decoder, without the batch."""
    with torch.inference_mode(), record(loaded.model, names) as trace:
        loaded.model(decoder_ids(loaded, text))
    return {name: trace[name][0].float() for name in trace.names}


def logits(loaded: Loaded, text: str) -> Tensor:
    """The logits of a decoder, (T, V)."""
    with torch.inference_mode():
        return loaded.model(decoder_ids(loaded, text))[0].float()


def _attention(**more: Any) -> config.Attention:
    return config.Attention(heads=8, head_dim=8, **more)


def _stack(layers: int = 3, **more: Any) -> config.Stack:
    parts: dict[str, Any] = {"attention": _attention(), "ffn": config.FeedForward(hidden=96)}
    return config.Stack(layers=layers, **{**parts, **more})


def _facts(kind: str) -> tuple[str, config.ModelConfig]:
    """The facts of a tiny model, and the shipped model whose tokenizer it uses."""
    decoder: dict[str, Any] = {"vocab": 4096, "width": 64, "head": config.LMHead()}
    encoder: dict[str, Any] = {"vocab": 6000, "width": 64, "head": config.LMHead(transform="gelu", bias=True)}
    learned = config.InputPosition(kind="learned", length=256)
    rotary = config.Rotary(dim=4, length=512, pairing="interleaved")
    sparse = config.BlockSparse(block=2, random=1, semantics="set")
    match kind:
        case "parallel":
            stack = _stack(causal=True, placement="parallel", attention=_attention(rotary=rotary))
            return "stories", config.ModelConfig(**decoder, decoder=stack)
        case "parallel_norms":
            return "stories", config.ModelConfig(**decoder, decoder=_stack(causal=True, placement="parallel_norms"))
        case "alibi":
            stack = _stack(causal=True, attention=_attention(score_bias=config.Alibi()))
            return "stories", config.ModelConfig(**decoder, decoder=stack)
        case "window":
            stack = _stack(causal=True, attention=_attention(windows=(None, 4)))
            return "stories", config.ModelConfig(**decoder, decoder=stack, embed=config.Embed(position=learned))
        case "shared":
            stack = _stack(12, placement="post", unique_layers=1, final_norm=False)
            embed = config.Embed(width=32, segments=2, norm=True, position=learned)
            return "mlm-en", config.ModelConfig(**encoder, encoder=stack, embed=embed)
        case "disentangled":
            stack = _stack(placement="post", attention=_attention(score_bias=config.Disentangled(span=16)))
            return "mlm-en", config.ModelConfig(**encoder, encoder=stack, embed=config.Embed(norm=True))
        case "convolution":
            bias = config.Disentangled(span=16)
            kernel = config.Convolution(kernel=3, activation="gelu")
            stack = _stack(
                placement="post", attention=_attention(score_bias=bias), convolution=kernel, final_norm=False
            )
            return "mlm-en", config.ModelConfig(**encoder, encoder=stack, embed=config.Embed(norm=True))
        case "sparse":
            stack = _stack(placement="post", attention=_attention(windows=(sparse,)))
            return "mlm-en", config.ModelConfig(**encoder, encoder=stack, embed=config.Embed(position=learned))
        case "deep_encoder":
            stacks = [_stack(4), _stack(2, attention=config.Attention(heads=4, head_dim=16), causal=True, cross=True)]
            tokens = config.Tokens(bos=1, eos=2, pad=0, start=2)
            return "en-zh", config.ModelConfig(
                vocab=6000, width=64, head=config.LMHead(), encoder=stacks[0], decoder=stacks[1], tokens=tokens
            )
        case "buckets":
            ffn = config.FeedForward(hidden=96, gated=True, bias=False)
            attention = _attention(score_bias=config.BucketBias(), biases="", scale=1.0)
            stacks = [_stack(attention=attention, ffn=ffn, causal=causal, cross=causal) for causal in (False, True)]
            tokens = config.Tokens(bos=1, eos=2, pad=0, start=2)
            sizes: dict[str, Any] = {
                "vocab": 6000,
                "width": 64,
                "norm": config.Norm(kind="rms"),
                "head": config.LMHead(),
            }
            return "en-zh", config.ModelConfig(**sizes, encoder=stacks[0], decoder=stacks[1], tokens=tokens)
        case unknown:
            raise ValueError(f"there is no tiny model {unknown!r}.")


TINY = ("parallel", "parallel_norms", "alibi", "window", "shared", "disentangled", "convolution", "sparse", "buckets")


def tiny_folder(kind: str, folder: Path) -> str:
    """A folder with a tiny random model, and the tokenizer of a shipped one."""
    tokenizer_of, facts = _facts(kind)
    path = folder / kind
    if not path.exists():
        model = Transformer(facts)
        randomise(model)
        save(model, path, tokenizer=load(tokenizer_of).tokenizer)
        for name in ("generation_config.json", "tokenizer_config.json"):
            source = Path(pretrained.__file__).parent / tokenizer_of / name
            if source.exists() and not (path / name).exists():
                shutil.copy(source, path)
    return str(path)
