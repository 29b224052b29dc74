"""Where a text ends: before a stop string, and after its last whole character.

Stop strings are looked for in the text itself, however its tokens cut them. Tokens may end inside a character.
"""

import codecs
from collections.abc import Iterable, Sequence
from itertools import count

from glassformer.text.tokenizer import Stream, Tokenizer


def cut_at(text: str, stops: Sequence[str]) -> str:
    """The text up to the first of the stop strings; all of it where there is none."""
    places = [place for place in map(text.find, stops) if place >= 0]
    return text[: min(places)] if places else text


class Wording:
    """The text of the tokens that follow one prompt.

    Ids that the vocabulary does not name (rows that pad a table) show nothing.

    Args:
        tokenizer: the vocabulary.
        after: what the text goes on from, a decoder's prompt: it decides whether the first word has a space before it.
        hidden: ids that show nothing: special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = (), hidden: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.hidden = frozenset(hidden)
        self.after = self._shown(after)

    def text(self, ids: Iterable[int]) -> str:
        """The whole text."""
        stream = self.stream()
        return "".join([*map(stream.add, self._shown(ids)), stream.end()])

    def stream(self) -> "WholeCharacters":
        """A decoder of one token at a time; not to be given hidden ids."""
        return WholeCharacters(self.tokenizer, self.after)

    def is_shown(self, token: int) -> bool:
        """Whether a token is text."""
        return token not in self.hidden and self.tokenizer.backend.id_to_token(token) is not None

    def ends_with_stop(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether the newest tokens complete a stop string; earlier ones were asked about before.

        A token shows at least a byte, so that the tokens of a stop string are no more than its bytes; a few more tokens
        make up for characters that begin before them.
        """
        if not stops or not self.is_shown(ids[-1]):
            return False
        reach = max(len(stop.encode()) for stop in stops) + 16
        tail: list[int] = []
        place = len(ids)
        while place and len(tail) < reach:
            place -= 1
            if self.is_shown(ids[place]):
                tail.insert(0, ids[place])
        before = self._shown(ids[max(0, place - 16) : place]) if place else self.after[-16:]
        context = self.tokenizer.decode(before)
        text = self.tokenizer.decode([*before, *tail])[len(context) :]
        return any(stop in text for stop in stops)

    def _shown(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if self.is_shown(token)]


def _byte_of() -> dict[str, int]:
    """The letters that stand for bytes in the names of byte-level tokens.

    Bytes that can be printed stand for themselves, all others have the letters from U+0100 on, in their order.
    """
    printed = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = count(0x100)
    return {chr(byte if byte in printed else next(others)): byte for byte in range(256)}


BYTE_OF = _byte_of()


class WholeCharacters:
    """Decode ids as they come, like ``Stream``, but never show a character whose last bytes were not written.

    A text may end there: at its length limit. U+FFFD stays where it was written as such, and where bytes stand that
    nothing could make a character of.
    """

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = ()) -> None:
        self._stream = Stream(tokenizer, after=after)
        self._name = tokenizer.backend.id_to_token
        decoder = repr(tokenizer.backend.decoder)
        self._bytes_in_names, self._tokens_of_bytes = "ByteLevel" in decoder, "ByteFallback" in decoder
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._open: list[int] = []  # tokens since the last one that ended with a whole character

    def add(self, token: int) -> str:
        """Take one id and return the text that is now certain, often none."""
        self._open.append(token)
        self._utf8.decode(self._bytes(token))
        if self._utf8.getstate()[0]:  # the beginning of a character
            return ""
        ready, self._open = self._open, []
        return "".join(map(self._stream.add, ready))

    def end(self) -> str:
        """The text that was held back, without the beginning of a character; nothing can be added afterwards."""
        begun = len(self._utf8.getstate()[0])  # bytes of the character that was not finished
        if self._tokens_of_bytes:  # each is a token of its own, and would spoil those beside it if it were decoded
            self._open = self._open[: len(self._open) - begun]
        text = "".join([*map(self._stream.add, self._open), self._stream.end()])
        return text.removesuffix("\ufffd") if begun and not self._tokens_of_bytes else text

    def _bytes(self, token: int) -> bytes:
        """What a token says, in bytes."""
        name = str(self._name(token))
        if self._tokens_of_bytes and len(name) == 6 and name.startswith("<0x"):
            return bytes([int(name[3:5], 16)])
        if self._bytes_in_names and all(letter in BYTE_OF for letter in name):
            return bytes(BYTE_OF[letter] for letter in name)
        return name.encode()


class StopFilter:
    """Lets text through as it streams, but never a part of a stop string: what may become one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def add(self, text: str) -> str:
        """The text that is now certain to be shown."""
        if self.is_stopped:
            return ""
        self._held += text
        kept = cut_at(self._held, self._stops)
        if len(kept) < len(self._held):
            self.is_stopped, self._held = True, ""
            return kept
        safe = len(self._held) - self._beginning()
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown

    def end(self) -> str:
        """What was held back and did not become a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _beginning(self) -> int:
        """Characters at the end of the text that a stop string begins with."""
        longest = max(map(len, self._stops), default=0)
        for size in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
