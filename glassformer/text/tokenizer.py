"""Text to token ids and back: a thin layer over the ``tokenizers`` library.

* A special token around a text is never doubled, and nothing is truncated or padded silently.
* Ids and tokens that are not in the vocabulary are errors.
* A stream never shows a part of a character (``Stream``).
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, NamedTuple

import tokenizers

from glassformer import pretrained
from glassformer.text import chat, tokenizer_kinds, vocabularies
from glassformer.text.pieces import TokenizerError as TokenizerError
from glassformer.text.tokenizer_folder import read_folder, read_tokenizer_json
from glassformer.text.vocabularies import ROLES, Vocabulary

if TYPE_CHECKING:
    from torch import Tensor


HIGHEST_ID = 2**24  # a larger vocabulary is damaged


class Encoded(NamedTuple):
    """A text or a pair of texts: the id, the segment and the characters ``[start, end)`` of each token."""

    ids: list[int]
    segments: list[int]  # 0 for the first text of a pair, 1 for the second if the model has segments
    offsets: list[tuple[int, int]]  # (0, 0) for a token that is not in the text


class Tokenizer:
    """A vocabulary that encodes and decodes.

    ``bos``, ``eos``, ``unk``, ``sep``, ``pad``, ``cls`` and ``mask`` are the ids of the tokens with these roles, or
    None; ``chat_template`` is a Jinja template or None.
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
        # Files may contain the truncation and padding of an earlier training run.
        self.backend.no_truncation()
        self.backend.no_padding()
        self.special = dict(vocabulary.special)
        self.chat_template = vocabulary.chat_template
        # Pieces from this id on take part in segmentation, but the model does not have them.
        self._known_tokens = vocabulary.known_tokens
        highest = max(self.backend.get_vocab(with_added_tokens=True).values(), default=-1)
        if not 0 <= highest <= HIGHEST_ID:  # the library allocates up to it
            raise TokenizerError(f"the highest id of the vocabulary is {highest}; it must be from 0 to {HIGHEST_ID}.")
        own = self.backend.get_vocab(with_added_tokens=False)
        if len(set(own.values())) < len(own):
            raise TokenizerError(f"{len(own)} tokens share {len(set(own.values()))} ids; ids must be unique.")
        self.vocab_size = vocabulary.known_tokens or 1 + highest
        for role in ROLES:
            setattr(self, role, self.id_of(self.special[role]) if role in self.special else None)
        self._plain: tokenizers.Tokenizer | None = None

    @classmethod
    def load(cls, path: Path | str, kind: str | None = None) -> "Tokenizer":
        """Read a ``tokenizer.json``, or a folder with one or with older tokenizer files, or that of a shipped model.

        ``kind`` is the kind of older files (``tokenizer_kinds.KINDS``), if neither they nor a config name it.
        """
        path = pretrained.resolve(path)
        tokenizer_kinds.check_kind(kind)
        if not path.exists():
            raise TokenizerError(f"{path} does not exist; expected a folder with tokenizer files or a tokenizer.json.")
        file = path / "tokenizer.json" if path.is_dir() else path
        with _reading_errors(path):
            folder = read_folder(file.parent)
            return cls(read_tokenizer_json(file, folder) if file.exists() else tokenizer_kinds.read(folder, kind))

    @classmethod
    def from_llama2c(cls, path: Path | str) -> "Tokenizer":
        """Read llama2.c's ``tokenizer.bin``."""
        with _reading_errors(path):
            return cls(vocabularies.from_llama2c(Path(path)))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> "Tokenizer":
        """Read the vocabulary in a GGUF file's key/values."""
        with _reading_errors("the GGUF file"):
            return cls(vocabularies.from_gguf(metadata))

    def encode(
        self, text: str, pair: str | None = None, *, special: bool = True, allow_special: bool = True
    ) -> list[int]:
        """Return the ids of a text or of a pair of texts.

        Args:
            text: the text, or the first of a pair.
            pair: the second text of a pair.
            special: add the model's special tokens (``[CLS]`` … ``[SEP]``, BOS), unless the text has them already.
                False for a rendered chat, which has its own.
            allow_special: recognise special tokens in the text. False for untrusted text: they are read as plain text.
        """
        return self.analyse(text, pair, special=special, allow_special=allow_special).ids

    def encode_batch(
        self, texts: Sequence[str], *, special: bool = True, allow_special: bool = True
    ) -> list[list[int]]:
        """``encode`` of many texts, on all cores."""
        with _library_errors():
            encodings = self._backend(allow_special).encode_batch(list(texts), add_special_tokens=special)
        return [self._encoded(encoding).ids for encoding in encodings]

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Return two texts as one sequence: the ids and the segments."""
        encoded = self.analyse(first, second)
        return encoded.ids, encoded.segments

    def analyse(
        self, text: str, pair: str | None = None, *, special: bool = True, allow_special: bool = True
    ) -> Encoded:
        """``encode``, with the segment and the characters of each token."""
        with _library_errors():
            return self._encoded(self._backend(allow_special).encode(text, pair, add_special_tokens=special))

    def offsets(self, text: str, *, special: bool = True) -> list[tuple[int, int]]:
        """Return the characters ``[start, end)`` of each token of ``encode(text)``; (0, 0) for added tokens."""
        return self.analyse(text, special=special).offsets

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of ids; incomplete characters become U+FFFD."""
        with _library_errors():
            return self.backend.decode(self._checked(ids), skip_special_tokens=skip_special)

    def tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the tokens of ids, as in the vocabulary."""
        return [str(self.backend.id_to_token(number)) for number in self._checked(ids)]

    def id_of(self, token: str) -> int:
        """Return the id of a token; the error for an unknown token names similar ones."""
        number = self.backend.token_to_id(token)
        if number is None or number >= self.vocab_size:
            vocab = self.backend.get_vocab(with_added_tokens=True)
            near = get_close_matches(token, [name for name, i in vocab.items() if i < self.vocab_size], n=3)
            hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
            raise TokenizerError(f"the vocabulary of {self.vocab_size} tokens has no {token!r}.{hint}")
        return int(number)

    def chat(self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True) -> list[int]:
        """Return the ids of a conversation under the tokenizer's chat template, which adds the special tokens.

        Special tokens inside a message are recognised too, as in transformers: clean untrusted messages first.
        """
        if self.chat_template is None:
            raise TokenizerError("this tokenizer has no chat template; set chat_template, or encode the text itself.")
        tokens = {f"{role}_token": token for role, token in self.special.items()}
        text = chat.render(self.chat_template, messages, add_generation_prompt=add_generation_prompt, **tokens)
        return self.encode(text, special=False)

    def batch(
        self, texts: Sequence[str], *, side: str = "right", special: bool = True, pad: int | None = None
    ) -> tuple["Tensor", "Tensor"]:
        """Return padded ids (B, T) and a mask (B, T) that is True at real tokens.

        ``side`` is the side of the padding; ``pad`` is the id to pad with, for a vocabulary without a padding token.
        """
        rows = self.encode_batch(texts, special=special)
        return self._padded(rows, side, pad), self._padded([[1] * len(row) for row in rows], side, 0).bool()

    def save(self, folder: Path | str) -> None:
        """Write ``tokenizer.json`` and ``tokenizer_config.json``, which transformers' AutoTokenizer loads too."""
        from glassformer.weights.saving import write_text

        folder, vocabulary = Path(folder), self.backend.to_str(pretty=True)
        config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        config |= {f"{role}_token": token for role, token in self.special.items()}
        if self.chat_template is not None:
            config["chat_template"] = self.chat_template
        if self._known_tokens is not None:
            config["known_tokens"] = self._known_tokens
        text = json.dumps(config, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
        # A vocabulary with no config or another's has wrong special tokens: remove it first and write it last, so that
        # a process that is killed in between leaves nothing to read.
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").unlink(missing_ok=True)
        write_text(folder / "tokenizer_config.json", text)
        write_text(folder / "tokenizer.json", vocabulary)

    def _encoded(self, encoding: tokenizers.Encoding) -> Encoded:
        encoded = _undoubled(encoding)
        if self._known_tokens is None or self.unk is None:
            return encoded
        return encoded._replace(ids=[number if number < self._known_tokens else self.unk for number in encoded.ids])

    def _checked(self, ids: Iterable[int]) -> list[int]:
        numbers = [int(number) for number in ids]
        for number in numbers:
            if not 0 <= number < self.vocab_size or self.backend.id_to_token(number) is None:
                raise TokenizerError(
                    f"the vocabulary has no token {number}; its ids go from 0 to {self.vocab_size - 1}."
                )
        return numbers

    def _padded(self, rows: Sequence[Sequence[int]], side: str, fill: int | None) -> "Tensor":
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
        """Return a tokenizer that reads special tokens in texts as plain text; it is for encoding only."""
        plain = copy(self)
        plain.backend = plain._plain = self._backend(allow_special=False)
        return plain

    def _backend(self, allow_special: bool) -> tokenizers.Tokenizer:
        if allow_special:
            return self.backend
        if self._plain is None:
            with _reading_errors("the tokenizer"):
                self._plain = _without_special(self.backend)
        return self._plain


def _undoubled(encoding: tokenizers.Encoding) -> Encoded:
    """Drop an added special token at either end if the text itself has it there."""
    ids, added = encoding.ids, encoding.special_tokens_mask
    first = int(len(ids) > 1 and ids[0] == ids[1] and added[0] > added[1])
    last = len(ids) - int(len(ids) - first > 1 and ids[-1] == ids[-2] and added[-1] > added[-2])
    return Encoded(ids[first:last], encoding.type_ids[first:last], encoding.offsets[first:last])


def _without_special(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Return a copy in which no text encodes to a special token: each has a secret name, and no merge yields one.

    The library can switch off its search for special tokens, but a model with ``</s>`` in its vocabulary may still
    reach it by merges.
    """
    state = json.loads(backend.to_str())
    secret = token_hex(16)
    hidden = {t["content"]: f"{secret}{t['id']}" for t in state["added_tokens"] if t["special"]}
    for token in state["added_tokens"]:
        token["content"] = hidden.get(token["content"], token["content"])
    # The vocabulary, its merges and its unknown token under the secret names.
    model = state["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {hidden.get(token, token): number for token, number in model["vocab"].items()}
    else:
        model["vocab"] = [[hidden.get(token, token), score] for token, score in model["vocab"]]
    if "merges" in model:
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [[a, b] for a, b in pairs if hidden.keys().isdisjoint((a, b, a + b))]
    if model.get("unk_token") in hidden:
        model["unk_token"] = hidden[model["unk_token"]]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


class Stream:
    """Decode ids one by one: the results of ``add`` and ``end``, joined, are ``decode`` of all ids.

    Text is held back while a later id may still change it: an incomplete character, and a run of ``<0x..>`` bytes,
    which is decoded together. ``after`` are the ids of the prompt, which are not shown; without them the first word
    would lose its space.
    """

    def __init__(self, tokenizer: Tokenizer, *, after: Iterable[int] = (), skip_special: bool = False) -> None:
        added = tokenizer.backend.get_added_tokens_decoder()
        self._special = {number for number, token in added.items() if token.special}
        self._decode = tokenizer.decode
        self._tokens = tokenizer.tokens
        self._skip = self._special if skip_special else set()
        self._shown = [token for token in after if token not in self._skip]  # those that the next text depends on
        self._held: list[int] = []
        self._byte_runs = "ByteFallback" in repr(tokenizer.backend.decoder)

    def add(self, token: int) -> str:
        """Add one id and return the text that is now final, often empty."""
        (name,) = self._tokens([token])
        if token in self._skip:
            return ""
        self._held.append(token)
        if self._byte_runs and len(name) == 6 and name.startswith("<0x"):
            return ""
        return "" if self._decode(self._shown + self._held).endswith("\ufffd") else self.end()

    def end(self) -> str:
        """Return the text that was held back; more ids may follow."""
        if not self._held:
            return ""
        before, text = self._decode(self._shown), self._decode(self._shown + self._held)
        # Decoders strip the space of the first word, and of the one after BOS. So the held ids can replace all earlier
        # ones as context only if they decode to text and do not begin with a special token.
        is_context = self._held[0] not in self._special and self._decode(self._held)
        self._shown = self._held if is_context else self._shown + self._held
        self._held = []
        return text[len(before) :]


# --- errors of the library --------------------------------------------------------------------------------------------


@contextmanager
def _reading_errors(source: Path | str) -> Iterator[None]:
    """Turn every error of a damaged vocabulary into a ``TokenizerError`` that names its file.

    Malformed files raise Python's own exceptions; the library raises a bare ``Exception`` or panics.
    """
    try:
        yield
    except TokenizerError as error:
        raise error if str(source) in str(error) else error.prefixed(f"{source}: ") from error
    except (OSError, MemoryError, ImportError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise TokenizerError(
            f"{source}: the vocabulary is damaged ({reason:.300}). Download or save it again."
        ) from error


@contextmanager
def _library_errors() -> Iterator[None]:
    """Turn an error of the library into a ``TokenizerError``: a vocabulary that was read may still fail."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not _is_panic(error):
            raise
        raise TokenizerError(f"the tokenizer's files do not fit together: {error}. Download them again.") from error


def _is_panic(error: BaseException) -> bool:
    """Whether this is a panic of the library, whose class cannot be imported."""
    return type(error).__name__ == "PanicException"
