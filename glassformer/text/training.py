"""Train a tokenizer on texts, with a vocabulary of one of four kinds.

* ``bytes``: no training. Ids 0 to 255 are the bytes of UTF-8, followed by special tokens.
* ``bpe``: byte-level BPE with GPT-2's split into words (Sennrich et al. 2016; Radford et al. 2019).
* ``wordpiece``: BERT's words, with pieces that BPE finds; ``##`` marks a piece that continues a word.
* ``unigram``: as in T5 and XLM-R, with ``▁`` for a space; see ``unigram_training.py``.

``bytes`` and ``bpe`` encode every text and decode it exactly (but for the white space before a ``mask``, which belongs
to the mask in BPE). The other two normalise white space and Unicode, and have a token for unknown characters.

Texts are read once as a stream; memory holds only the counts of words. The same texts give the same vocabulary, to the
byte, on any number of threads.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from glassformer.config.checks import Setting, SettingError, check_choice, check_positive_integer
from glassformer.text.pieces import NORMAL, PieceModel, unigram
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.unigram_training import learn_unigram
from glassformer.text.vocabularies import (
    BYTE_CHARACTERS,
    GPT2_SPLIT,
    ROLES,
    Vocabulary,
    byte_bpe,
    set_template,
    wordpiece,
)

TokenizerKind = Literal["bytes", "bpe", "wordpiece", "unigram"]
KINDS: tuple[str, ...] = get_args(TokenizerKind)
SIZE = Setting("vocab_size", external_name="tokenizer.size")
LONGEST = 2**14  # characters; a longer text is split at white space
# Pieces of Unigram are letters, digits or other characters, not a mixture, with or without a space before them.
_RUNS = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\p{L}\p{M}\p{N}▁]+|▁"
_REPEATED = 2**16  # characters of a repeated word in one string


@dataclass(frozen=True, kw_only=True)
class Special:
    """The special tokens of a vocabulary, and those around a text.

    A token may have several roles. ``first`` lists the tokens with roles and the further ones in the order of their
    ids; those of ``last`` have the highest ids. A text becomes ``start A end``, a pair ``start A between B end``.
    """

    roles: Mapping[str, str] = field(default_factory=dict)  # bos, eos, unk, sep, pad, cls, mask -> the token
    further: tuple[str, ...] = ()  # languages, control codes
    last: tuple[str, ...] = ()  # with the highest ids, in this order
    start: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    second: int = 0  # the segment of a pair's second text: 1 for models with segments

    def __post_init__(self) -> None:
        for role in self.roles:
            check_choice("a special token's role", role, ROLES)
        tokens = [*dict.fromkeys(self.roles.values()), *self.further, *self.last]
        for number, token in enumerate(tokens):
            if len(token) < 2 or token != token.strip():
                raise ValueError(
                    f"the special token {token!r} must have at least two characters and no white space at its ends; "
                    "<|name|> is a common form."
                )
            if token in tokens[:number]:
                raise ValueError(f"the special token {token!r} is listed twice.")
        if unknown := sorted({*self.start, *self.between, *self.end} - {*tokens}):
            raise ValueError(f"start, between and end have {unknown[0]!r}, which is not one of the special tokens.")
        if self.second not in (0, 1):
            raise ValueError(f"second, the segment of a pair's second text, must be 0 or 1; got {self.second}.")

    @property
    def first(self) -> tuple[str, ...]:
        """The tokens with a role, each once, then the further ones."""
        return (*dict.fromkeys(self.roles.values()), *self.further)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All special tokens."""
        return (*self.first, *self.last)

    def with_further(self, *tokens: str) -> "Special":
        """Return a copy with more tokens, such as ``__en__``."""
        return replace(self, further=(*self.further, *tokens))

    def with_unknown(self) -> "Special":
        """Return a copy with an unknown token, if there is none."""
        return self if "unk" in self.roles else replace(self, roles={**self.roles, "unk": "<unk>"})


def sentinels(count: int = 100) -> tuple[str, ...]:
    """``<extra_id_…>`` in descending order, so that as ``Special.last`` ``<extra_id_0>`` has the highest id."""
    return tuple(f"<extra_id_{number}>" for number in reversed(range(count)))


_BERT = Special(
    roles={"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    start=("[CLS]",),
    between=("[SEP]",),
    end=("[SEP]",),
    second=1,
)
_ROBERTA = Special(
    roles={
        "bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>",
    },
    start=("<s>",),
    between=("</s>", "</s>"),
    end=("</s>",),
)  # fmt: skip
_T5 = Special(roles={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, last=sentinels(), between=("</s>",), end=("</s>",))
_TRANSLATION = Special(
    roles={"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}, between=("</s>",), end=("</s>",)
)
# Special tokens of well-known models; each fits any kind of vocabulary.
STYLES: Mapping[str, Special] = MappingProxyType(
    {
        "gpt": Special(roles={"bos": "<|endoftext|>", "eos": "<|endoftext|>"}),
        "bert": _BERT,
        "roberta": _ROBERTA,
        "t5": _T5,
        "bart": _ROBERTA,
        "translation": _TRANSLATION,
    }
)


def style(name: str) -> Special:
    """Return the special tokens of STYLES by name."""
    check_choice("style", name, STYLES)
    return STYLES[name]


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: TokenizerKind,
    vocab_size: int | None = None,
    special: Special | str = "gpt",
    lowercase: bool = False,
    min_frequency: int = 2,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """Train a tokenizer; special tokens in the texts are skipped.

    Args:
        texts: what to train on; may be empty for ``bytes``.
        kind: of the vocabulary: bytes, bpe, wordpiece or unigram.
        vocab_size: tokens in total, including special ones; fewer if the texts do not have so many pieces. None only
            for ``bytes``.
        special: the special tokens, or a name of STYLES; ``wordpiece`` and ``unigram`` add ``<unk>`` if they lack it.
        lowercase: lower-case every text (``wordpiece``: and strip accents, as BERT does).
        min_frequency: how often a pair must occur to be merged, or a piece of ``unigram`` to be considered.
        progress: called with the bytes of text read so far.
    """
    check_choice("kind", kind, KINDS)
    check_positive_integer(min_frequency=min_frequency)
    if isinstance(texts, str | bytes):
        raise TypeError("texts must be several texts, such as a list or the lines of a file; got one text.")
    special = style(special) if isinstance(special, str) else special
    if kind in ("wordpiece", "unigram"):
        special = special.with_unknown()
    # A vocabulary of bytes is fixed; the others are learned from the texts.
    if kind == "bytes":
        trained = _Trained(list(BYTE_CHARACTERS))
        _check_size(vocab_size, len(trained.pieces), special, exactly=True)
    else:
        if vocab_size is None:
            raise SettingError("{} must be set for {}: the total number of tokens.", SIZE, Setting("kind", kind))
        check_positive_integer(vocab_size=vocab_size)
        empty = _build(kind, special, lowercase, _Trained([]))
        corpus = _Corpus(texts, special.tokens, empty.normalizer, progress)
        trained = _TRAINERS[kind](corpus, empty.pre_tokenizer, _Target(vocab_size, special, min_frequency))
    return Tokenizer(_finish(_build(kind, special, lowercase, trained), kind, special, trained))


class _Trained(NamedTuple):
    """The result of training: the pieces in the order of their ids, with the merges or the scores of their kind."""

    pieces: list[str]
    merges: list[tuple[str, str]] = []  # noqa: RUF012  # never changed
    scores: list[float] = []  # noqa: RUF012


class _Target(NamedTuple):
    """The vocabulary to train."""

    vocab_size: int
    special: Special
    min_frequency: int

    def max_pieces(self, alphabet: int) -> int:
        """Return the largest number of pieces besides special tokens; raise if ``alphabet`` does not fit."""
        _check_size(self.vocab_size, alphabet, self.special)
        return self.vocab_size - len(self.special.tokens)


class _Corpus:
    """The texts to train on: normalised, split at special tokens and to a limited length."""

    def __init__(
        self,
        texts: Iterable[str],
        special: Iterable[str],
        normaliser: normalizers.Normalizer | None,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._texts = texts
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._normaliser = normaliser
        self._progress = progress

    def __iter__(self) -> Iterator[str]:
        done = 0
        for text in self._texts:
            if not isinstance(text, str):
                raise TypeError(f"texts must be texts, got {text!r:.60} ({type(text).__name__}).")
            for part in filter(None, self._special.split(text)):
                for piece in _limited(part):
                    yield from self._normalised(piece)
            done += len(text.encode())
            if self._progress is not None:
                self._progress(done)

    def _normalised(self, text: str) -> Iterator[str]:
        if self._normaliser is None:
            yield text
        else:  # normalisation can yield a special token: ＜s＞ by NFKC, or <S> in lower case
            yield from filter(None, self._special.split(self._normaliser.normalize_str(text)))

    def words(self, splitter: pre_tokenizers.PreTokenizer) -> Counter[str]:
        """Return the number of occurrences of each word."""
        counts = Counter[str]()
        for text in self:
            counts.update(word for word, _ in splitter.pre_tokenize_str(text))
        if not counts:
            raise _no_text()
        return counts


def _no_text() -> ValueError:
    return ValueError("there is no text to train on: no texts, or only empty ones and white space.")


def _limited(text: str) -> Iterator[str]:
    """Yield parts of at most LONGEST characters, split before white space if there is some."""
    start = 0
    while len(text) - start > LONGEST:
        end = start + LONGEST
        spaces = (text.rfind(space, start + 1, end) for space in (" ", "\n", "\t", "\u3000"))
        end = max((index for index in spaces if index > 0), default=end)
        yield text[start:end]
        start = end
    yield text[start:]


def _check_size(vocab_size: int | None, alphabet: int, special: Special, *, exactly: bool = False) -> None:
    least = alphabet + len(special.tokens)
    parts = f"{alphabet} for single characters or bytes and {len(special.tokens)} for special tokens"
    if exactly and vocab_size not in (None, least):
        raise SettingError(f"{{}} must be {least} for bytes: {parts}; got {vocab_size}. It may be left out.", SIZE)
    if vocab_size is not None and vocab_size < least:
        raise SettingError(f"{{}} must be at least {least} here: {parts}; got {vocab_size}.", SIZE)


# ---- training


def _train_bpe(corpus: _Corpus, words: pre_tokenizers.PreTokenizer, target: _Target) -> _Trained:
    """Return byte-level BPE."""
    size = target.max_pieces(256)
    stream = iter(corpus)
    if (start := next(stream, None)) is None:
        raise _no_text()
    model = _library_bpe(chain([start], stream), words, size, target.min_frequency, initial_alphabet=BYTE_CHARACTERS)
    merges = [(left, right) for left, right in model["merges"]]
    return _Trained(sorted(model["vocab"], key=model["vocab"].__getitem__), merges)


def _train_wordpiece(corpus: _Corpus, words: pre_tokenizers.PreTokenizer, target: _Target) -> _Trained:
    """WordPiece.

    The library numbers characters that continue a word in random order, and merges the lower ids first if two merges
    are equally frequent; so they are counted and numbered beforehand.
    """
    counts = corpus.words(words)
    alphabet = sorted({character for word in counts for character in word})
    alphabet += sorted({f"##{character}" for word in counts for character in word[1:]})
    size = target.max_pieces(len(alphabet))
    lines = pre_tokenizers.Split("\n", "removed")
    prefix = {"continuing_subword_prefix": "##"}
    model = _library_bpe(_repeated(counts), lines, size, target.min_frequency, special_tokens=alphabet, **prefix)
    return _Trained(sorted(model["vocab"], key=model["vocab"].__getitem__))


def _train_unigram(corpus: _Corpus, _: pre_tokenizers.PreTokenizer, target: _Target) -> _Trained:
    """Unigram; texts are split into words for training only: no piece spans two words anyway."""
    spaces = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    counts = corpus.words(pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(Regex(_RUNS), "isolated")]))
    size = target.max_pieces(len({character for word in counts for character in word}))
    pieces = learn_unigram(counts, size, target.min_frequency)
    return _Trained([text for text, _ in pieces], scores=[score for _, score in pieces])


_TRAINERS = {"bpe": _train_bpe, "wordpiece": _train_wordpiece, "unigram": _train_unigram}


def _library_bpe(
    texts: Iterator[str], words: pre_tokenizers.PreTokenizer, size: int, min_frequency: int, **options: Any
) -> dict[str, Any]:
    """Return the vocabulary and the merges of the library's BPE, as in ``tokenizer.json``."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = words
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=min_frequency, show_progress=False, **options)
    backend.train_from_iterator(texts, trainer)
    return json.loads(backend.to_str())["model"]


def _repeated(counts: Counter[str]) -> Iterator[str]:
    """Yield each word as often as it was counted, one per line."""
    for word, count in counts.items():
        repeats = max(1, _REPEATED // (len(word) + 1))
        for done in range(0, count, repeats):
            yield f"{word}\n" * min(repeats, count - done)


# ---- building


def _build(kind: TokenizerKind, special: Special, lowercase: bool, trained: _Trained) -> Backend:
    """Return the tokenizer of a kind: special tokens, then pieces.

    Bytes come first, so that their ids are themselves.
    """
    names = trained.pieces if kind == "bytes" else [*special.first, *trained.pieces]
    if kind == "wordpiece":
        return wordpiece(names, {"do_lower_case": lowercase}, special.roles["unk"])
    lower = [normalizers.Lowercase()] if lowercase else []
    if kind == "unigram":
        scores = [*[0.0] * len(special.first), *trained.scores]
        model = PieceModel([(text, score, NORMAL) for text, score in zip(names, scores, strict=True)])
        model.unk_id = special.first.index(special.roles["unk"])
        spaces = normalizers.Replace(Regex(r"\s+"), " ")
        return unigram(model, before=[normalizers.Nmt(), normalizers.NFKC(), *lower, spaces])
    splits = () if kind == "bytes" else (GPT2_SPLIT,)
    backend = byte_bpe({name: i for i, name in enumerate(names)}, trained.merges, splits=splits)
    if lower:
        backend.normalizer = lower[0]
    return backend


def _finish(backend: Backend, kind: TokenizerKind, special: Special, trained: _Trained) -> Vocabulary:
    """Add the special tokens, each of which must decode to itself, and the template around a text."""
    if same := sorted({*special.tokens} & {*trained.pieces}):
        raise ValueError(f"the special token {same[0]!r} is also a piece of the vocabulary; give it another name.")
    for token in special.tokens:
        strips_space = token == special.roles.get("mask") and kind == "bpe"
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True, lstrip=strips_space)])
        decoded = backend.decode(backend.encode(token, add_special_tokens=False).ids, skip_special_tokens=False)
        if decoded != token:
            raise ValueError(
                f"the special token {token!r} would be decoded as {decoded!r} by a vocabulary of kind {kind!r}; "
                "use plain ASCII characters."
            )
    set_template(backend, special.start, special.end, special.between, second=special.second)
    return Vocabulary(backend, dict(special.roles))
