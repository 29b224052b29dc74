"""Byte-level BPE with tokens as ``bytes``: learn merges from a file, and encode with any vocabulary and its merges.

Text is split into words as GPT-2 does it, and the most frequent pair of neighbouring tokens is merged until the
vocabulary is full (Sennrich et al. 2016). Of equally frequent pairs ``train_bpe`` merges the one with the greatest
bytes; the ``tokenizers`` library (``training.py``) has another order.

Both training and ``encode_iterable`` read text piece by piece. They cut it only between a character and white space
after it, where GPT-2's pattern never has a word, so that the result is that of the whole text.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from operator import add
from os import PathLike
from pathlib import Path

from tokenizers import AddedToken, pre_tokenizers

from glassformer.config.checks import check_positive_integer
from glassformer.text.tokenizer import Tokenizer
from glassformer.text.vocabularies import BYTE_CHARACTERS, BYTE_OF, Vocabulary, byte_bpe

Merges = list[tuple[bytes, bytes]]
BLOCK = 2**20  # characters of a file that are read at a time
_HEADER = "#version:"  # how the first line of a merges.txt begins
_CUT = re.compile(r"(?<=\S)(?=[ \t\r\n])")


def _to_characters(token: bytes) -> str:
    return "".join(BYTE_CHARACTERS[byte] for byte in token)


def _to_bytes(characters: str) -> bytes:
    return bytes(BYTE_OF[character] for character in characters)


def _check_special(tokens: Iterable[str] | None) -> list[str]:
    """Return the special tokens without repetitions; raise if one of them is empty."""
    if isinstance(tokens, str):
        raise TypeError(f"special_tokens must be a list of texts, got the text {tokens!r}.")
    special = list(dict.fromkeys(tokens or ()))
    if "" in special:
        raise ValueError("a special token must have at least one character.")
    return special


# ---- training


def train_bpe(
    input_path: str | PathLike[str], vocab_size: int, special_tokens: Sequence[str]
) -> tuple[dict[int, bytes], Merges]:
    """Return the vocabulary and the merges that byte-level BPE learns from a UTF-8 file.

    The most frequent pair of neighbouring tokens is merged first, of several the lexicographically greatest pair of
    bytes.

    Args:
        input_path: the text to learn from.
        vocab_size: the size of the vocabulary, at most: special tokens, the 256 bytes, and a token for each merge. It
            is smaller if the text has fewer pairs.
        special_tokens: tokens with the first ids. The text is split at them, and they are not learnt from.
    """
    check_positive_integer(vocab_size=vocab_size)
    special = _check_special(special_tokens)
    # The text is split at special tokens, so that no merge leads to one: only single bytes can be the same.
    if same := [token for token in special if len(token.encode()) == 1]:
        raise ValueError(f"the special token {same[0]!r} is also a token of the vocabulary; give it another name.")
    new_tokens = vocab_size - 256 - len(special)
    if new_tokens < 0:
        raise ValueError(
            f"vocab_size must be at least {256 + len(special)}, bytes and special tokens; got {vocab_size}."
        )

    # Learn the merges.
    texts = _whole_words(_blocks(Path(input_path)), special)
    merges = learn_merges(_count_words(texts, special), new_tokens)

    # Number the tokens. Two merges may lead to the same token, which has one id.
    learnt = dict.fromkeys([bytes([byte]) for byte in range(256)] + [left + right for left, right in merges])
    return dict(enumerate([*(token.encode() for token in special), *learnt])), merges


def learn_merges(words: Mapping[bytes, int], new_tokens: int) -> Merges:
    """Return the merges that lead to at most ``new_tokens`` new tokens.

    ``words`` maps each word to its number of occurrences.

    Counts of pairs are updated, not recounted: a merge changes only the words that hold its pair, around the pair. A
    heap finds the next pair; an entry with an old count is skipped.
    """
    tokens = [bytes([byte]) for byte in range(256)]
    ids = {token: number for number, token in enumerate(tokens)}
    keys = [_descending(token) for token in tokens]

    # A word is a string with one character per token, chr(id), so that a merge is str.replace. Count pairs, and note
    # the words that hold each of them.
    splits, times = [word.decode("latin-1") for word in words], list(words.values())
    counts, holders = Counter[str](), defaultdict[str, set[int]](set)
    for number, split in enumerate(splits):
        for pair in _pairs(split):
            counts[pair] += times[number]
            holders[pair].add(number)
    heap = [(-total, keys[ord(pair[0])], keys[ord(pair[1])], pair) for pair, total in counts.items()]
    heapify(heap)

    merges: Merges = []
    while heap and len(tokens) < 256 + new_tokens:
        # The most frequent pair, of equals the lexicographically greatest.
        negative, _, _, pair = heappop(heap)
        if counts[pair] != -negative or negative == 0:
            continue
        left, right = (tokens[ord(part)] for part in pair)
        merges.append((left, right))
        merged = ids.setdefault(left + right, len(tokens))
        if merged == len(tokens):
            tokens.append(left + right)
            keys.append(_descending(left + right))

        # Merge it from left to right in every word that holds it, and count the pairs around it again.
        changed: set[str] = set()
        for number in holders.pop(pair):
            split = splits[number]
            first, last = split.find(pair), split.rfind(pair)
            if first < 0:  # an earlier merge took it
                continue
            start, stop = max(0, first - 1), last + 3  # with a neighbour on each side
            old = split[start:stop]
            new = old.replace(pair, chr(merged))
            splits[number] = split[:start] + new + split[stop:]
            for other in _pairs(old):
                counts[other] -= times[number]
                changed.add(other)
            for other in _pairs(new):
                counts[other] += times[number]
                holders[other].add(number)
                changed.add(other)
        for other in changed:
            if total := counts[other]:
                heappush(heap, (-total, keys[ord(other[0])], keys[ord(other[1])], other))
    return merges


def _pairs(split: str) -> Iterator[str]:
    """Return all neighbouring pairs."""
    return map(add, split, split[1:])


def _descending(token: bytes) -> str:
    """Return a key that sorts tokens in descending order, a longer token before its own beginning."""
    return "".join(chr(255 - byte) for byte in token) + chr(256)


def _count_words(texts: Iterable[str], special: Sequence[str]) -> dict[bytes, int]:
    """Return how often each word occurs outside special tokens."""
    longest_first = sorted(special, key=len, reverse=True)
    special_pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
    # Count segments between possible cuts first: they repeat, and each is split into words only once.
    segments = Counter[str]()
    for text in texts:
        for part in special_pattern.split(text):
            segments.update(_CUT.split(part))
    splitter, words = pre_tokenizers.ByteLevel(add_prefix_space=False), Counter[str]()
    for segment, times in segments.items():
        for word, _ in splitter.pre_tokenize_str(segment):
            words[word] += times
    return {_to_bytes(word): times for word, times in words.items()}


def _blocks(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        while block := file.read(BLOCK):
            yield block


def _whole_words(chunks: Iterable[str], special: Sequence[str]) -> Iterator[str]:
    """Yield the same text in other chunks: none ends within a word or a special token."""
    longest = max(map(len, special), default=0)
    pending = ""
    for chunk in chunks:
        # The search for a cut resumes where the next characters can change its result.
        start = max(1, len(pending) - longest)
        pending += chunk
        cut = _last_cut(pending, start, special)
        if cut:
            yield pending[:cut]
            pending = pending[cut:]
    if pending:
        yield pending


def _last_cut(text: str, first: int, special: Sequence[str]) -> int:
    """Return the last index from ``first`` on at which the text can be cut, whatever follows; 0 if there is none."""
    for cut in range(len(text) - 1, first - 1, -1):
        if text[cut] not in " \t\r\n" or text[cut - 1].isspace():
            continue
        # A special token with white space in it may continue after the cut, or after the end of the text.
        starts = [(token, start) for token in special for start in range(max(0, cut - len(token) + 1), cut)]
        if not any(token.startswith(text[start : start + len(token)]) for token, start in starts):
            return cut
    return 0


# ---- encoding


class BPETokenizer:
    """A byte-level BPE tokenizer from a vocabulary and its merges, with GPT-2's split into words.

    ``tokenizer`` is the same as a ``Tokenizer``, which the other functions of this package take.

    Args:
        vocab: id → bytes of the token.
        merges: pairs of tokens, in the order in which they are merged.
        special_tokens: texts that are single tokens wherever they occur; of those that overlap, the leftmost, then the
            longest. They are added to the vocabulary if it does not have them.
    """

    def __init__(
        self,
        vocab: Mapping[int, bytes],
        merges: Iterable[tuple[bytes, bytes]],
        special_tokens: Iterable[str] | None = None,
    ) -> None:
        self.vocab, self.merges = dict(vocab), list(merges)
        self.special_tokens = _check_special(special_tokens)
        special = {token.encode(): token for token in self.special_tokens}
        known = set(self.vocab.values())
        if (lowest := min(self.vocab, default=0)) < 0:
            raise ValueError(f"an id must be at least 0; the token {self.vocab[lowest]!r} has {lowest}.")
        if len(known) < len(self.vocab):
            token, times = Counter(self.vocab.values()).most_common(1)[0]
            raise ValueError(f"{times} ids of the vocabulary have the same token, {token!r}; each token has one id.")
        for token in special:
            if token not in known:
                self.vocab[max(self.vocab, default=-1) + 1] = token
        self._has_all_bytes = all(bytes([byte]) in known for byte in range(256))

        # The vocabulary writes bytes as characters, special tokens as they are: no two may be written alike.
        plain = {_to_characters(token): token for token in known - special.keys()}
        if same := [token for token in self.special_tokens if token in plain]:
            raise ValueError(
                f"the special token {same[0]!r} is also how the vocabulary writes another token, {plain[same[0]]!r}; "
                "rename it."
            )

        # The text is split at special tokens before its bytes are merged, so merges that lead to them never apply.
        pairs = []
        for left, right in self.merges:
            tokens = (left, right, left + right)
            if not special.keys().isdisjoint(tokens):
                continue
            if lacking := [token for token in tokens if token not in known]:
                raise ValueError(
                    f"the merge of {left!r} and {right!r} needs {lacking[0]!r}, which is not in the vocabulary."
                )
            pairs.append((_to_characters(left), _to_characters(right)))
        backend = byte_bpe(self._names(), pairs)
        backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in self.special_tokens])
        self.tokenizer = Tokenizer(Vocabulary(backend))

    @classmethod
    def from_files(
        cls,
        vocab_filepath: str | PathLike[str],
        merges_filepath: str | PathLike[str],
        special_tokens: Iterable[str] | None = None,
    ) -> "BPETokenizer":
        """Read GPT-2's files: ``vocab.json`` and ``merges.txt``, which write bytes as printable characters."""
        special = _check_special(special_tokens)
        names = json.loads(Path(vocab_filepath).read_text(encoding="utf-8"))
        plain = {name for name in names if name in special or not BYTE_OF.keys() >= {*name}}
        vocab = {number: name.encode() if name in plain else _to_bytes(name) for name, number in names.items()}
        lines = Path(merges_filepath).read_text(encoding="utf-8").split("\n")
        if lines[0].startswith(_HEADER):  # elsewhere a merge may begin like this
            del lines[0]
        pairs = [line.split(" ") for line in lines if line]
        return cls(vocab, [(_to_bytes(left), _to_bytes(right)) for left, right in pairs], special)

    def save(self, vocab_filepath: str | PathLike[str], merges_filepath: str | PathLike[str]) -> None:
        """Write the files that ``from_files`` reads."""
        lines = [f"{_to_characters(left)} {_to_characters(right)}\n" for left, right in self.merges]
        Path(vocab_filepath).write_text(json.dumps(self._names(), ensure_ascii=False), encoding="utf-8")
        Path(merges_filepath).write_text("".join([f"{_HEADER} 0.2\n", *lines]), encoding="utf-8")

    def _names(self) -> dict[str, int]:
        """Return the vocabulary as GPT-2's files write it: special tokens as they are, others byte by byte."""
        special = {token.encode(): token for token in self.special_tokens}
        return {special.get(token, _to_characters(token)): number for number, token in self.vocab.items()}

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ids = self.tokenizer.encode(text, special=False)
        if not self._has_all_bytes and self.decode(ids) != text:  # bytes without a token are left out of the ids
            lacking = sorted({*text.encode()} - {token[0] for token in self.vocab.values() if len(token) == 1})
            raise ValueError(f"the vocabulary has no token for the byte {bytes(lacking[:1])!r}, which the text holds.")
        return ids

    def encode_iterable(self, iterable: Iterable[str]) -> Iterator[int]:
        """Yield the ids of a text that comes in parts, such as the lines of a file.

        Only a few of them are in memory.
        """
        for text in _whole_words(iterable, self.special_tokens):
            yield from self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids; bytes that are not UTF-8 become U+FFFD."""
        try:
            return b"".join(self.vocab[number] for number in ids).decode("utf-8", errors="replace")
        except KeyError as error:
            raise ValueError(f"the vocabulary has no token {error}.") from None
