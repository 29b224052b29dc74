"""The smallest translation there is, told as distributions: six words to choose from, two sentences to learn.

Shapes: ``U`` words of a target, ``V`` vocabulary.
"""

from collections.abc import Iterable, Sequence

import tokenizers
import torch
from jaxtyping import Float
from torch import Tensor

from glassformer.data.records import Pair
from glassformer.hub import Loaded
from glassformer.nn.modes import Evaluating
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import Vocabulary, frame
from glassformer.training.jobs.base import RunContext
from glassformer.training.jobs.text_to_text import TextToText

START, END = "<s>", "</s>"


class Toy(TextToText):
    """Text to text with a vocabulary of whole words, shown as what the decoder holds likely at each place."""

    def own_tokenizer(self, rows: Iterable[Pair]) -> Tokenizer:
        """A number for each word of the rows."""
        words = {word: None for row in rows for text in (row.source, row.target) for word in text.split()}
        numbers = {word: number for number, word in enumerate([START, END, *words])}
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token=START))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens([START, END])
        frame(backend, start=[], end=[END])
        return Tokenizer(Vocabulary(backend, {"bos": START, "eos": END, "pad": START, "unk": START}))

    def samples(self, kit: RunContext, loaded: Loaded, rows: Sequence[Pair]) -> list[str]:
        """A table per row: at each place of the target the word that is wanted, and how likely each word is."""
        return [_table(kit, row, self._chances(kit, loaded, row), _words(rows)) for row in rows]

    @torch.no_grad()
    def _chances(self, kit: RunContext, loaded: Loaded, row: Pair) -> Float[Tensor, "U V"]:
        model = loaded.model
        device = next(model.parameters()).device
        source = torch.tensor([kit.tokenizer.encode(row.source)], device=device)
        target = torch.tensor([[kit.start, *kit.tokenizer.encode(row.target)[:-1]]], device=device)
        with Evaluating(model):
            logits = model(source, target=target)
        return torch.softmax(logits[0].float(), -1).cpu()  # as its parts add up to 1


def _words(rows: Sequence[Pair]) -> list[str]:
    """What there is to choose from: the words of all targets, and the end."""
    return [*dict.fromkeys(word for row in rows for word in row.target.split()), END]


def _table(kit: RunContext, row: Pair, probs: Float[Tensor, "U V"], words: Sequence[str]) -> str:
    wanted = [*row.target.split(), END]
    width = max(map(len, (*words, "others"))) + 2
    numbers = [kit.tokenizer.id_of(word) for word in words]
    lines = [row.source, "  wanted".ljust(width + 2) + "".join(word.rjust(width) for word in (*words, "others"))]
    for word, line in zip(wanted, probs, strict=True):
        found = [*line[numbers].tolist(), 1 - float(line[numbers].sum())]
        lines.append(f"  {word}".ljust(width + 2) + "".join(f"{100 * one:.1f} %".rjust(width) for one in found))
    return "\n".join(lines)
