"""What was accounted for, run on this machine with random weights: the measured point beside an estimate.

Shapes: ``B`` rows, ``T`` tokens, ``M`` tokens of a source.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.measure import main_memory, measure_step

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from glassformer.models.transformer import Transformer
    from glassformer.nn.attention import AttentionPath

Step = Callable[[], object]


def measured_seconds(books: Account, *, device: str | None = None, repeats: int = 3) -> float:
    """Median time of the pass, training step or decoding step that the books are of.

    ``device``: where to run; the GPU where there is one, unless given. A training step is the pass, cross-entropy, the
    gradients and AdamW. Attention runs as the books say, fused or eager.
    """
    import torch

    from glassformer.models.transformer import Transformer

    if books.mode == "train" and books.optimizer != "adamw":
        raise ValueError(f"a step is run with optimizer='adamw', and these books are of {books.optimizer!r}.")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _check_room(books, place)
    model = Transformer(books.config, place, getattr(torch, books.dtype))
    tokens = books.source if books.config.decoder is None else books.context
    ids = torch.zeros(books.batch, tokens, dtype=torch.long, device=place)
    source = torch.zeros(books.batch, books.source, dtype=torch.long, device=place)
    path: AttentionPath = "sdpa" if books.attention == "fused" else "eager"
    make = {"forward": _forward, "train": _training, "decode": _decoding}[books.mode]
    return measure_step(make(model, ids, source, path), repeats)


def _check_room(books: Account, place: "torch.device") -> None:
    import torch

    room = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else main_memory()
    if room is not None and books.memory.peak > room:
        raise ValueError(
            f"{books.name} needs {books.memory.peak / 1e9:.1f} GB to run, and {place} has {room / 1e9:.1f} GB. "
            f"Take a smaller batch or context, or a narrower dtype."
        )


def _answer(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> "Tensor":
    """The scores of every token: logits, or those of labels."""
    both = model.config.family == "encoder-decoder"
    answer = model(source, target=ids, path=path) if both else model(ids, path=path)
    scores: Tensor = answer[0] if isinstance(answer, tuple) else answer
    return scores


def _forward(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> Step:
    import torch

    model.eval()
    return torch.inference_mode()(lambda: _answer(model, ids, source, path))


def _training(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> Step:
    import torch
    from torch.nn import functional

    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        scores = _answer(model, ids, source, path).flatten(0, -2)
        functional.cross_entropy(scores, torch.zeros(len(scores), dtype=torch.long, device=scores.device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _decoding(model: "Transformer", ids: "Tensor", source: "Tensor", path: "AttentionPath") -> Step:
    """One token more, again and again: what it adds to the cache is taken back."""
    import torch

    from glassformer.generate.steps import Steps

    model.eval()
    with torch.inference_mode():
        steps = Steps(model, source if model.encoder is not None else None, path=path)
        before = ids.shape[1] - 1
        cache, _ = steps.read(ids[:, : max(1, before)], None, 2, forgets=False)
    length = cache.length

    def step() -> None:
        with torch.inference_mode():
            steps.step(ids[:, -1:], cache)
            cache.crop(length)

    return step
