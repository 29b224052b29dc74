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


def measured_seconds(account: Account, *, device: str | None = None, repeats: int = 3) -> float:
    """Median time of the pass, training step or decoding step that an account is of.

    ``device``: where to run; the GPU where there is one, unless given. A training step is the pass, cross-entropy, the
    gradients and AdamW. Attention runs as the account says, fused or eager.
    """
    import torch

    from glassformer.models.transformer import Transformer

    if account.config is None:
        raise ValueError(f"{account.name} is no Transformer of this library; time it with measure.measure_step.")
    if account.mode == "train" and account.optimizer != "adamw":
        raise ValueError(f"a step is run with optimizer='adamw', and this account is of {account.optimizer!r}.")
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    _check_room(account, place)
    model = Transformer(account.config, place, getattr(torch, account.dtype))
    tokens = account.source if account.config.decoder is None else account.context
    ids = torch.zeros(account.batch, tokens, dtype=torch.long, device=place)
    source = torch.zeros(account.batch, account.source, dtype=torch.long, device=place)
    path: AttentionPath = "sdpa" if account.attention == "fused" else "eager"
    model.fused = account.attention == "fused"
    make = {"forward": _forward, "train": _training, "decode": _decoding}[account.mode]
    return measure_step(make(model, ids, source, path), repeats)


def _check_room(account: Account, place: "torch.device") -> None:
    import torch

    room = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else main_memory()
    if room is not None and account.memory.peak > room:
        raise ValueError(
            f"{account.name} needs {account.memory.peak / 1e9:.1f} GB to run, and {place} has {room / 1e9:.1f} GB. "
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

    from glassformer.nn.cache import KVCache

    model.eval()
    length = ids.shape[1] - 1
    cache = KVCache(capacity=length + 1)
    with torch.inference_mode():
        memory = None if model.encoder is None else model.encode(source, path=path)
        model.decode(ids[:, : max(1, length)], memory=memory, cache=cache, path=path)
        cache.crop(length)

    def step() -> None:
        with torch.inference_mode():
            hidden = model.decode(ids[:, -1:], memory=memory, cache=cache, path=path)
            model.apply_head(hidden)
            cache.crop(length)

    return step
