"""A real encoder-decoder that spells English words as phonemes."""

import json

import torch
import transformers

from glassformer import load
from glassformer.nn.cache import KVCache
from tests.real.places import data

WORDS = 200
START, END = 1, 2


def test_words_are_spelt_as_the_reference_spells_them() -> None:
    folder = data("bart-g2p-us")
    loaded = load(folder)
    assert set(loaded.report.unknown_keys) == {"grapheme_chars", "phoneme_chars"}
    letters, sounds = (loaded.report.unknown_keys[key] for key in ("grapheme_chars", "phoneme_chars"))
    gold = json.loads((folder / "us_gold.json").read_text(encoding="utf-8"))
    plain = {w: s for w, s in gold.items() if isinstance(s, str) and w.isalpha() and all(c in letters for c in w)}
    words = sorted(plain)[:: len(plain) // WORDS][:WORDS]
    reference = transformers.BartForConditionalGeneration.from_pretrained(folder).eval()
    right = agree = 0
    for word in words:
        ids = torch.tensor([[START, *(letters.index(letter) for letter in word), END]])
        ours = "".join(sounds[number] for number in greedy(loaded.model, ids))
        answer = reference.generate(ids, num_beams=1, do_sample=False, max_new_tokens=40)[0].tolist()
        theirs = "".join(sounds[number] for number in answer if number > 3)
        agree += ours == theirs
        right += ours == plain[word]
    assert agree == len(words)
    assert right > 0.5 * len(words)


def greedy(model: torch.nn.Module, ids: torch.Tensor) -> list[int]:
    """The likeliest symbol each time, with the memory computed once and a cache."""
    with torch.no_grad():
        memory, cache, written = model.encode(ids), KVCache(), [START]
        while len(written) < 41 and written[-1] != END:
            hidden = model.decode(torch.tensor([written[-1:]]), memory=memory, cache=cache)
            written.append(int(model.apply_head(hidden)[0, -1].argmax()))
    return [number for number in written if number > 3]
