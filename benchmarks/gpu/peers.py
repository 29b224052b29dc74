"""The peers, each run as its own project or documentation runs it fastest.

* nanoGPT: its ``model.py`` from a folder, and the step of its ``train.py``: whole model compiled, TF32 allowed, loss
  read every tenth step.
* transformers: its model with ``attn_implementation="sdpa"``, compiled as a whole, in the loop that everybody writes.
* torch.nn: ``torch.nn.Transformer`` and ``TransformerEncoder``, compiled, with the flags for causal masks.
"""

import contextlib
import importlib.util
import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.gpu.ours import BETAS, CLIP, LR, WEIGHT_DECAY

FROM_FOLDERS = ("nanogpt",)  # peers that no package holds: ``--peer NAME=FOLDER`` says where they are
READ_EVERY = 10  # steps after which a plain loop reads its loss, as nanoGPT's does


@contextmanager
def tf32() -> Iterator[None]:
    """Let products in float32 use TF32, as nanoGPT's loop does."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def plain_step(
    loss_of: Callable[[], Tensor], parameters: list[Tensor], optimizer: Any, device: str
) -> Callable[[], None]:
    """Return the step of a plain loop: autocast to bfloat16, backward, clipping, optimizer."""
    made = 0

    def step() -> None:
        nonlocal made
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        made += 1
        if made % READ_EVERY == 0:
            loss.item()

    return step


def fused_adamw(model: nn.Module) -> torch.optim.AdamW:
    """Return AdamW for all parameters, those with one axis without weight decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)


def compiled(module: nn.Module, on: bool) -> Callable[..., Any]:
    """Return the module, compiled as a whole if asked for."""
    return torch.compile(module) if on else module


def nanogpt_step(
    folder: Path, sizes: dict[str, int], ids: Tensor, targets: Tensor, *, compiles: bool
) -> Callable[[], None]:
    """Return the step of nanoGPT's ``train.py`` on a batch, for a model with biases as GPT-2's."""
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    if spec is None or spec.loader is None or not (folder / "model.py").is_file():
        raise FileNotFoundError(f"{folder} holds no model.py: pass the folder of nanoGPT with --peer nanogpt=FOLDER.")
    nanogpt = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(nanogpt)
    device = ids.device.type
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its parameters
        model = nanogpt.GPT(nanogpt.GPTConfig(**sizes, dropout=0.0, bias=True)).to(device)
        optimizer = model.configure_optimizers(WEIGHT_DECAY, LR, BETAS, device)
    call = compiled(model.train(), compiles)
    return plain_step(lambda: call(ids, targets)[1], [*model.parameters()], optimizer, device)


def transformers_step(config: Any, head: str, inputs: dict[str, Tensor], *, compiles: bool) -> Callable[[], None]:
    """Return the step of a plain loop on a model of transformers, whose loss the model computes itself."""
    import transformers

    device = next(iter(inputs.values())).device.type
    model = getattr(transformers, head)._from_config(config, attn_implementation="sdpa").to(device).train()
    call = compiled(model, compiles)
    return plain_step(lambda: call(**inputs).loss, [*model.parameters()], fused_adamw(model), device)


class TorchTransformer(nn.Module):
    """The Transformer of 2017 around ``torch.nn.Transformer``: sinusoids, one table for both sides and the output."""

    def __init__(self, vocab: int, width: int, heads: int, layers: int, hidden: int, length: int) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.table = nn.Embedding(vocab, width)
        nn.init.normal_(self.table.weight, std=width**-0.5)
        self.stacks = nn.Transformer(width, heads, layers, layers, hidden, dropout=0.0, batch_first=True)
        angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
        self.register_buffer("positions", torch.stack((angles.sin(), angles.cos()), -1).flatten(1))
        self.register_buffer("causal", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, source: Tensor, target: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, with label smoothing."""
        source, target = (self.table(ids) * self.scale + self.positions[: ids.shape[1]] for ids in (source, target))
        length = target.shape[1]
        hidden = self.stacks(source, target, tgt_mask=self.causal[:length, :length], tgt_is_causal=True)
        logits = F.linear(hidden, self.table.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
