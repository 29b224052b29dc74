"""Training a vocabulary: from texts to a ``Tokenizer``, by four kinds of pieces.

* ``bytes``: nothing is learnt. Ids 0 to 255 are the bytes of UTF-8 themselves, special tokens come after them.
* ``bpe``: byte-level BPE with GPT-2's split into words (Sennrich et al. 2016; Radford et al. 2019).
* ``wordpiece``: BERT's words, cut into the pieces that the joins of BPE find; ``##`` marks one that continues a word.
* ``unigram``: T5's and XLM-R's pieces, which write a space as ``▁``; see ``unigram_training.py``.

``bytes`` and ``bpe`` write every text and give it back exactly (but for the white space before a ``mask``, which a BPE
takes for its own: the word that it stands for would bring it). The other two tidy white space and Unicode up, and
have a token for what they cannot write.

Texts are read once, one after the other, and never held: only how often each word occurs. The same texts give the same
vocabulary, to the byte, on any number of threads.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any, Literal, NamedTuple, get_args

from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from glassformer.config.checks import check_choice, check_positive
from glassformer.text.pieces import NORMAL, PieceModel, unigram
from glassformer.text.special_tokens import Special, style
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.unigram_training import learn_unigram
from glassformer.text.vocabularies import GPT2_SPLIT, Vocabulary, byte_bpe, frame, wordpiece

Kind = Literal["bytes", "bpe", "wordpiece", "unigram"]
KINDS: tuple[str, ...] = get_args(Kind)
LONGEST = 2**14  # letters that are looked at together; a longer text is cut at white space
# Pieces of Unigram are letters, digits or other signs, not a mixture, each with a space before it or not.
_RUNS = r"▁?[\p{L}\p{M}]+|▁?\p{N}+|▁?[^\p{L}\p{M}\p{N}▁]+|▁"
_REPEATED = 2**16  # letters of one word, repeated, that are handed on together


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: Kind,
    vocab_size: int | None = None,
    special: Special | str = "gpt",
    lowercase: bool = False,
    min_frequency: int = 2,
    progress: Callable[[int], None] | None = None,
) -> Tokenizer:
    """A tokenizer whose pieces are learnt from ``texts``.

    ``vocab_size`` counts all tokens, the special ones too; where the texts do not hold so many pieces, the result's
    ``vocab_size`` is smaller. ``bytes`` needs neither texts nor a size. ``special`` is a name of STYLES or a value of
    one's own; ``wordpiece`` and ``unigram`` get an ``<unk>`` where it names none. ``lowercase`` writes every text in
    small letters (``wordpiece``: without accents too, as BERT does). ``min_frequency`` is how often two neighbours must
    occur to be joined, or a piece of ``unigram`` to be tried. ``progress`` is told the bytes of text read so far.

    The letters of a special token in a text are not learnt from.
    """
    check_choice("kind", kind, KINDS)
    check_positive(min_frequency=min_frequency)
    if isinstance(texts, str | bytes):
        raise TypeError("texts must be several texts, such as a list or the lines of a file; got one text.")
    special = style(special) if isinstance(special, str) else special
    if kind in ("wordpiece", "unigram"):
        special = special.with_unknown()
    if kind == "bytes":
        learnt = _Learnt(_byte_letters())
        _check_size(vocab_size, len(learnt.pieces), special, exactly=True)
    else:
        if vocab_size is None:
            raise ValueError(f"vocab_size must be said for kind={kind!r}: how many tokens there shall be in all.")
        check_positive(vocab_size=vocab_size)
        empty = _build(kind, special, lowercase, _Learnt([]))
        reading = _Reading(texts, special.tokens, empty.normalizer, progress)
        learnt = _LEARN[kind](reading, empty.pre_tokenizer, _Wish(vocab_size, special, min_frequency))
    return Tokenizer(_finish(_build(kind, special, lowercase, learnt), kind, special, learnt))


class _Learnt(NamedTuple):
    """What training finds: the pieces in the order of their numbers, with the joins or the scores of their kind."""

    pieces: list[str]
    merges: list[tuple[str, str]] = []  # noqa: RUF012  # never changed
    scores: list[float] = []  # noqa: RUF012


class _Wish(NamedTuple):
    """What is asked for."""

    vocab_size: int
    special: Special
    min_frequency: int

    def room(self, alphabet: int) -> int:
        """How many pieces there may be, of which ``alphabet`` are needed to write anything at all."""
        _check_size(self.vocab_size, alphabet, self.special)
        return self.vocab_size - len(self.special.tokens)


class _Reading:
    """Texts on their way to be learnt from: normalised, without special tokens, none too long."""

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
                for piece in _cut(part):
                    yield from self._normalised(piece)
            done += len(text.encode())
            if self._progress is not None:
                self._progress(done)

    def _normalised(self, text: str) -> Iterator[str]:
        if self._normaliser is None:
            yield text
        else:  # which can turn other letters into those of a special token: ＜s＞, or <S> where letters become small
            yield from filter(None, self._special.split(self._normaliser.normalize_str(text)))

    def words(self, cut: pre_tokenizers.PreTokenizer) -> Counter[str]:
        """How often each word occurs."""
        counts = Counter[str]()
        for text in self:
            counts.update(word for word, _ in cut.pre_tokenize_str(text))
        if not counts:
            raise _nothing()
        return counts


def _nothing() -> ValueError:
    return ValueError("there is no text to learn from: the texts are none, or empty, or white space alone.")


def _cut(text: str) -> Iterator[str]:
    """Parts of a text that are not too long, cut before white space where there is some."""
    start = 0
    while len(text) - start > LONGEST:
        end = start + LONGEST
        spaces = (text.rfind(space, start + 1, end) for space in (" ", "\n", "\t", "\u3000"))
        end = max((found for found in spaces if found > 0), default=end)
        yield text[start:end]
        start = end
    yield text[start:]


def _check_size(vocab_size: int | None, alphabet: int, special: Special, *, exactly: bool = False) -> None:
    least = alphabet + len(special.tokens)
    made = f"{alphabet} for single letters or bytes and {len(special.tokens)} for special tokens"
    if exactly and vocab_size not in (None, least):
        raise ValueError(f"vocab_size must be {least} for bytes: {made}; got {vocab_size}. It may be left out.")
    if vocab_size is not None and vocab_size < least:
        raise ValueError(f"vocab_size must be at least {least} here: {made}; got {vocab_size}.")


# ---- learning


def _byte_letters() -> list[str]:
    """How byte-level vocabularies write each byte: by its own letter if it can be seen, else by one from U+0100 on."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in seen else next(others)) for byte in range(256)]


def _learn_joins(texts: _Reading, words: pre_tokenizers.PreTokenizer, wish: _Wish) -> _Learnt:
    """Byte-level BPE."""
    room = wish.room(256)
    stream = iter(texts)
    if (start := next(stream, None)) is None:
        raise _nothing()
    model = _joined(chain([start], stream), words, room, wish.min_frequency, initial_alphabet=_byte_letters())
    merges = [(left, right) for left, right in model["merges"]]
    return _Learnt(sorted(model["vocab"], key=model["vocab"].__getitem__), merges)


def _learn_words(texts: _Reading, words: pre_tokenizers.PreTokenizer, wish: _Wish) -> _Learnt:
    """WordPiece.

    The library numbers the letters that continue a word as it happens to meet them, and joins the lower number first
    where two joins are equally good; hence they are counted, and numbered, before it sees them.
    """
    counts = texts.words(words)
    letters = sorted({letter for word in counts for letter in word})
    letters += sorted({f"##{letter}" for word in counts for letter in word[1:]})
    room = wish.room(len(letters))
    lines = pre_tokenizers.Split("\n", "removed")
    prefix = {"continuing_subword_prefix": "##"}
    model = _joined(_repeated(counts), lines, room, wish.min_frequency, special_tokens=letters, **prefix)
    return _Learnt(sorted(model["vocab"], key=model["vocab"].__getitem__))


def _learn_likeliest(texts: _Reading, _: pre_tokenizers.PreTokenizer, wish: _Wish) -> _Learnt:
    """Unigram; words are cut to learn from them, but not when a text is encoded: no piece goes beyond a cut anyway."""
    spaces = pre_tokenizers.Metaspace(prepend_scheme="always", split=True)
    counts = texts.words(pre_tokenizers.Sequence([spaces, pre_tokenizers.Split(Regex(_RUNS), "isolated")]))
    room = wish.room(len({letter for word in counts for letter in word}))
    found = learn_unigram(counts, room, wish.min_frequency)
    return _Learnt([text for text, _ in found], scores=[score for _, score in found])


_LEARN = {"bpe": _learn_joins, "wordpiece": _learn_words, "unigram": _learn_likeliest}


def _joined(
    texts: Iterator[str], words: pre_tokenizers.PreTokenizer, size: int, min_frequency: int, **options: Any
) -> dict[str, Any]:
    """The vocabulary and the merges that the library's BPE finds, as ``tokenizer.json`` has them."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = words
    trainer = trainers.BpeTrainer(vocab_size=size, min_frequency=min_frequency, show_progress=False, **options)
    backend.train_from_iterator(texts, trainer)
    return json.loads(backend.to_str())["model"]


def _repeated(counts: Counter[str]) -> Iterator[str]:
    """Each word as often as it was counted, one per line."""
    for word, count in counts.items():
        together = max(1, _REPEATED // (len(word) + 1))
        for done in range(0, count, together):
            yield f"{word}\n" * min(together, count - done)


# ---- putting together


def _build(kind: Kind, special: Special, lowercase: bool, learnt: _Learnt) -> Backend:
    """The vocabulary of a kind: special tokens, then pieces; bytes come first, so that their ids are themselves."""
    names = learnt.pieces if kind == "bytes" else [*special.first, *learnt.pieces]
    if kind == "wordpiece":
        return wordpiece(names, {"do_lower_case": lowercase}, special.roles["unk"])
    small = [normalizers.Lowercase()] if lowercase else []
    if kind == "unigram":
        scores = [*[0.0] * len(special.first), *learnt.scores]
        model = PieceModel([(text, score, NORMAL) for text, score in zip(names, scores, strict=True)])
        model.unk_id = special.first.index(special.roles["unk"])
        spaces = normalizers.Replace(Regex(r"\s+"), " ")
        return unigram(model, before=[normalizers.Nmt(), normalizers.NFKC(), *small, spaces])
    splits = () if kind == "bytes" else (GPT2_SPLIT,)
    backend = byte_bpe({name: i for i, name in enumerate(names)}, learnt.merges, splits=splits)
    if small:
        backend.normalizer = small[0]
    return backend


def _finish(backend: Backend, kind: Kind, special: Special, learnt: _Learnt) -> Vocabulary:
    """The built vocabulary with its special tokens, which no text is searched for in vain, and the frame."""
    if same := sorted({*special.tokens} & {*learnt.pieces}):
        raise ValueError(f"the special token {same[0]!r} is also a piece of the vocabulary; give it another name.")
    for token in special.tokens:
        takes_space = token == special.roles.get("mask") and kind == "bpe"
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True, lstrip=takes_space)])
        shown = backend.decode(backend.encode(token, add_special_tokens=False).ids, skip_special_tokens=False)
        if shown != token:
            raise ValueError(
                f"the special token {token!r} would be written as {shown!r} by a vocabulary of kind {kind!r}; "
                "use plain ASCII letters."
            )
    frame(backend, special.start, special.end, special.between, second=special.second)
    return Vocabulary(backend, dict(special.roles))
