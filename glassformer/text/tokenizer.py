"""Text to numbers and back: a thin layer over the ``tokenizers`` library that keeps a few promises.

* A special token that frames a text is never doubled, and nothing is cut off or padded unseen.
* Numbers and tokens that the vocabulary does not have are errors, not gaps.
* While text streams, no half character is shown (``Stream``).
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from glassformer.text import chat, tokenizer_kinds, vocabularies
from glassformer.text.failures import library_errors, reading_errors
from glassformer.text.pieces import TokenizerError as TokenizerError
from glassformer.text.tokenizer_folder import read_complete, read_folder
from glassformer.text.vocabularies import ROLES, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


HIGHEST_ID = 2**24  # a vocabulary of more is damaged, not large


class Encoded(NamedTuple):
    """One text, or a pair, as numbers: per token its id, its segment and the characters ``[start, end)`` it covers."""

    ids: list[int]
    segments: list[int]  # 0 for the first text of a pair, 1 for the second where the model tells them apart
    offsets: list[tuple[int, int]]  # (0, 0) for a token that is not in the text


class Tokenizer:
    """A vocabulary that encodes and decodes.

    ``bos``, ``eos``, ``unk``, ``sep``, ``pad``, ``cls`` and ``mask`` are the numbers of the tokens that play these
    roles, None where the vocabulary has none; ``chat_template`` is a Jinja template or None.
    """

    bos: int | None
    eos: int | None
    unk: int | None
    sep: int | None
    pad: int | None
    cls: int | None
    mask: int | None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.backend = vocabulary.backend
        # Files carry the length of someone's last training run; here nothing is cut off or padded unseen.
        self.backend.no_truncation()
        self.backend.no_padding()
        self.special = dict(vocabulary.special)
        self.chat_template = vocabulary.chat_template
        # Pieces from this number on cut a text, but are unknown to the model.
        self._known = vocabulary.known
        highest = max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 <= highest <= HIGHEST_ID:  # the library counts up to it, whatever lies between
            raise TokenizerError(f"the highest id of the vocabulary is {highest}; it must be from 0 to {HIGHEST_ID}.")
        own = self.backend.get_vocab(with_added_tokens=False)
        if len(set(own.values())) < len(own):
            raise TokenizerError(f"{len(own)} tokens share {len(set(own.values()))} ids; each needs one of its own.")
        self.vocab_size = vocabulary.known or 1 + highest
        for role in ROLES:
            setattr(self, role, self.id_of(self.special[role]) if role in self.special else None)
        self._plain: tokenizers.Tokenizer | None = None

    @classmethod
    def load(cls, where: Path | str, kind: str | None = None) -> "Tokenizer":
        """Read a ``tokenizer.json`` or a folder: ``tokenizer.json`` if there is one, else the older files.

        ``kind`` says what older files are (``tokenizer_kinds.KINDS``) where neither they nor a config beside them do.
        """
        where = Path(where)
        if not where.exists():
            raise TokenizerError(f"{where} does not exist; expected a folder with tokenizer files or a tokenizer.json.")
        path = where / "tokenizer.json" if where.is_dir() else where
        with reading_errors(where):
            folder = read_folder(path.parent)
            return cls(read_complete(path, folder) if path.exists() else tokenizer_kinds.read(folder, kind))

    @classmethod
    def from_llama2c(cls, path: Path | str) -> "Tokenizer":
        """Read llama2.c's ``tokenizer.bin``."""
        with reading_errors(path):
            return cls(vocabularies.from_llama2c(Path(path)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Take the vocabulary out of a GGUF file's key/value pairs."""
        with reading_errors("the GGUF file"):
            return cls(vocabularies.from_gguf(metadata))

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, allow_special: bool = True
    ) -> list[int]:
        """The ids of a text or of a pair of texts.

        ``special`` puts the model's own tokens around it (``[CLS]`` … ``[SEP]``, BOS); a text that already begins or
        ends with them does not get them twice. Use ``special=False`` for a rendered chat, which brings its own.
        ``allow_special=False`` is for text from strangers: the letters of a special token in it stay letters.
        """
        return self.analyse(text, pair, special=special, allow_special=allow_special).ids

    def encode_batch(
        self, texts: Sequence[str], *, special: bool = True, allow_special: bool = True
    ) -> list[list[int]]:
        """``encode`` of many texts, on all cores."""
        with library_errors():
            found = self._backend(allow_special).encode_batch(list(texts), add_special_tokens=special)
        return [self._read(one).ids for one in found]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Two texts as one sequence: the ids, and for each the segment it is in."""
        found = self.analyse(first, second)
        return found.ids, found.segments

    def analyse(
        self, text: str, pair: str | None = None, *, special: bool = True, allow_special: bool = True
    ) -> Encoded:
        """``encode``, with the segment and the characters of each token."""
        with library_errors():
            return self._read(self._backend(allow_special).encode(text, pair, add_special_tokens=special))

    def offsets(self, text: str, *, special: bool = True) -> list[tuple[int, int]]:
        """For each token of ``encode(text)`` the characters ``[start, end)`` it covers; (0, 0) if it is not in it."""
        return self.analyse(text, special=special).offsets

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """The text of ids; bytes that are not (yet) a character show as U+FFFD."""
        with library_errors():
            return self.backend.decode(self._checked(ids), skip_special_tokens=skip_special)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """The tokens behind ids, as the vocabulary writes them."""
        return [str(self.backend.id_to_token(number)) for number in self._checked(ids)]

    def id_of(self, token: str) -> int:
        """The id of a token; an unknown one is an error that names its nearest neighbours."""
        number = self.backend.token_to_id(token)
        if number is None or number >= self.vocab_size:
            vocab = self.backend.get_vocab(with_added_tokens=True)
            near = get_close_matches(token, [name for name, i in vocab.items() if i < self.vocab_size], n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise TokenizerError(f"the vocabulary of {self.vocab_size} tokens has no {token!r}.{hint}")
        return int(number)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """The ids of a conversation under the tokenizer's own template, which brings its own special tokens.

        Special tokens written inside a message are recognised too, as transformers does it: clean what strangers write.
        """
        if self.chat_template is None:
            raise TokenizerError("this tokenizer has no chat template; set chat_template, or encode the text itself.")
        named = {f"{role}_token": token for role, token in self.special.items()}
        text = chat.render(self.chat_template, messages, add_generation_prompt=add_generation_prompt, **named)
        return self.encode(text, special=False)

    def batch(
        self, texts: Sequence[str], *, side: str = "right", special: bool = True, pad: int | None = None
    ) -> tuple["Tensor", "Tensor"]:
        """Texts as a rectangle: ids (B, T) and a mask (B, T) that is True where a token is real.

        ``side`` is where the padding goes; ``pad`` is the id to fill with, for a vocabulary that has none of its own.
        """
        rows = self.encode_batch(texts, special=special)
        return self._rectangle(rows, side, pad), self._rectangle([[1] * len(row) for row in rows], side, 0).bool()

    def batch_pairs(
        self, pairs: Sequence[tuple[str, str]], *, side: str = "right", pad: int | None = None
    ) -> tuple["Tensor", "Tensor", "Tensor"]:
        """Pairs of texts as a rectangle: ids, mask and segments, each (B, T); padding is in segment 0."""
        found = [self.analyse(*pair) for pair in pairs]
        ids = self._rectangle([one.ids for one in found], side, pad)
        mask = self._rectangle([[1] * len(one.ids) for one in found], side, 0).bool()
        return ids, mask, self._rectangle([one.segments for one in found], side, 0)

    def save(self, folder: Path | str) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, which transformers' AutoTokenizer loads too."""
        from glassformer.weights.saving import write_text

        folder, vocabulary = Path(folder), self.backend.to_str(pretty=True)
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= {f"{role}_token": token for role, token in self.special.items()}
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        if self._known is not None:
            config["known_tokens"] = self._known
        text = json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        # Without its config a vocabulary has no special tokens, and with another's it has wrong ones: it goes first
        # and comes last, so that whoever is killed in between leaves nothing that can be read.
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").unlink(missing_ok=True)
        write_text(folder / "tokenizer_config.json", text)
        write_text(folder / "tokenizer.json", vocabulary)

    def _read(self, found: tokenizers.Encoding) -> Encoded:
        one = _undoubled(found)
        if self._known is None or self.unk is None:
            return one
        return one._replace(ids=[number if number < self._known else self.unk for number in one.ids])

    def _checked(self, ids: Iterable[int]) -> list[int]:
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size or self.backend.id_to_token(number) is None:
                raise TokenizerError(
                    f"the vocabulary has no token {number}; its ids go from 0 to {self.vocab_size - 1}."
                )
        return numbers

    def _rectangle(self, rows: Sequence[Sequence[int]], side: str, fill: int | None) -> "Tensor":
        import torch

        if side not in ("left", "right"):
            raise ValueError(f"side must be 'left' or 'right', got {side!r}.")
        width = max(map(len, rows), default=0)
        fill = self.pad if fill is None else fill
        if fill is None and any(len(row) < width for row in rows):
            raise TokenizerError("the vocabulary has no padding token; pass pad=, the id to fill short rows with.")
        padded = []
        for row in rows:
            filler = [fill or 0] * (width - len(row))
            padded.append([*filler, *row] if side == "left" else [*row, *filler])
        return torch.tensor(padded, dtype=torch.long).reshape(len(rows), width)

    def without_specials(self) -> "Tokenizer":
        """The same, to read texts in which letters of special tokens are letters; it is not for writing."""
        found = copy(self)
        found.backend = found._plain = self._backend(allow_special=False)
        return found

    def _backend(self, allow_special: bool) -> tokenizers.Tokenizer:
        if allow_special:
            return self.backend
        if self._plain is None:
            with reading_errors("the tokenizer"):
                self._plain = _without_special(self.backend)
        return self._plain


def _undoubled(found: tokenizers.Encoding) -> Encoded:
    """Leave out a framing token at either end where the text itself already has it there."""
    ids, added = found.ids, found.special_tokens_mask
    first = int(len(ids) > 1 and ids[0] == ids[1] and added[0] > added[1])
    last = len(ids) - int(len(ids) - first > 1 and ids[-1] == ids[-2] and added[-1] > added[-2])
    return Encoded(ids[first:last], found.type_ids[first:last], found.offsets[first:last])


def _without_special(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, in which no text can reach a special token: each has a secret name, and no merge ends there.

    The library can switch off its search for special tokens, but a model whose vocabulary holds ``</s>`` may still
    come to it piece by piece.
    """
    facts = json.loads(backend.to_str())
    secret = token_hex(16)
    hidden = {t["content"]: f"{secret}{t['id']}" for t in facts["added_tokens"] if t["special"]}
    for token in facts["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    model = facts["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(token, token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"]]
    if "merges" in model:
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if hidden.keys().isdisjoint((a, b, a + b))]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    return tokenizers.Tokenizer.from_str(json.dumps(facts))


class Stream:
    """Decode ids as they come: what ``add`` and ``end`` return, joined, is ``decode`` of all ids.

    Text is held back while a later id may still change it: a character whose bytes are not complete, and a run of
    ``<0x..>`` bytes, which a decoder judges as a whole. ``after`` are ids that come before and are not shown again,
    a prompt: without them the first word would lose its space.
    """

    def __init__(self, tokenizer: Tokenizer, *, after: Iterable[int] = (), skip_special: bool = False) -> None:
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        self._decode = tokenizer.decode
        self._tokens = tokenizer.tokens
        self._skip = self._special if skip_special else set()
        self._shown = [token for token in after if token not in self._skip]  # as far back as the next text leans on it
        self._held: list[int] = []
        self._byte_runs = "ByteFallback" in repr(tokenizer.backend.decoder)

    def add(self, token: int) -> str:
        """Take one id and return the text that is now certain, often none."""
        (name,) = self._tokens([token])
        if token in self._skip:
            return ""
        self._held.append(token)
        if self._byte_runs and len(name) == 6 and name.startswith("<0x"):
            return ""
        return "" if self._decode(self._shown + self._held).endswith("\ufffd") else self.end()

    def end(self) -> str:
        """The text that was held back; the stream can go on afterwards."""
        if not self._held:
            return ""
        before, text = self._decode(self._shown), self._decode(self._shown + self._held)
        # Decoders treat the first word, and the one after BOS, in their own way. The next text must not look like it:
        # what was held can stand in for all before it only if it shows text and is no special token.
        stands = self._held[0] not in self._special and self._decode(self._held)
        self._shown = self._held if stands else self._shown + self._held
        self._held = []
        return text[len(before) :]
