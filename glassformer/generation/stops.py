"""Where a text ends: before a stop string, and after its last whole character.

Stop strings are searched in the text, so that it does not matter how tokens divide them. Tokens may end inside a
character.
"""

import codecs
from collections.abc import Iterable, Sequence

from glassformer.text.tokenizer import Stream, Tokenizer
from glassformer.text.vocabularies import BYTE_OF


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Return the text up to the first stop string; all of it if it holds none."""
    starts = [start for start in map(text.find, stops) if start >= 0]
    return text[: min(starts)] if starts else text


class Wording:
    """The text of the tokens that follow one prompt.

    Ids without a token in the vocabulary (padding rows of an embedding table) give no text.

    Args:
        tokenizer: the vocabulary.
        after: the ids that the text continues, a decoder's prompt: whether the first word has a space depends on it.
        hidden: ids that give no text: special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = (), hidden: Iterable[int] = ()) -> None:
        self.tokenizer = tokenizer
        self.hidden = frozenset(hidden)
        self.after = self._shown(after)

    def text(self, ids: Iterable[int]) -> str:
        """Return the whole text."""
        stream = self.stream()
        return "".join([*map(stream.add, self._shown(ids)), stream.end()])

    def stream(self) -> "WholeCharacters":
        """Return a decoder of one token at a time; hidden ids must not be added to it."""
        return WholeCharacters(self.tokenizer, self.after)

    def is_shown(self, token: int) -> bool:
        """Whether a token gives text."""
        return token not in self.hidden and self.tokenizer.backend.id_to_token(token) is not None

    def ends_with_stop(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether the last token completes a stop string; called after every token.

        A token has at least one byte, so that a stop string has at most as many tokens as bytes; a few more tokens are
        decoded for characters that begin before it.
        """
        if not stops or not self.is_shown(ids[-1]):
            return False
        needed = max(len(stop.encode()) for stop in stops) + 16
        tail: list[int] = []
        start = len(ids)
        while start and len(tail) < needed:
            start -= 1
            if self.is_shown(ids[start]):
                tail.insert(0, ids[start])
        before = self._shown(ids[max(0, start - 16) : start]) if start else self.after[-16:]
        context = self.tokenizer.decode(before)
        text = self.tokenizer.decode([*before, *tail])[len(context) :]
        return any(stop in text for stop in stops)

    def _shown(self, ids: Iterable[int]) -> list[int]:
        return [token for token in ids if self.is_shown(token)]


class TokenBytes:
    """The bytes of a token: those of byte-level vocabularies, and those named ``<0x..>``, may be partial characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._name = tokenizer.backend.id_to_token
        decoder = repr(tokenizer.backend.decoder)
        self.bytes_in_names, self.tokens_of_bytes = "ByteLevel" in decoder, "ByteFallback" in decoder

    def __call__(self, token: int) -> bytes:
        """Return the bytes of a token id; those of its name where the vocabulary has no bytes."""
        name = str(self._name(token))
        if self.tokens_of_bytes and len(name) == 6 and name.startswith("<0x"):
            return bytes([int(name[3:5], 16)])
        if self.bytes_in_names and all(character in BYTE_OF for character in name):
            return bytes(BYTE_OF[character] for character in name)
        return name.encode()


class WholeCharacters:
    """Decode ids one by one, like ``Stream``, but without a last character whose bytes are incomplete.

    A text that reaches its length limit may end there. U+FFFD stays where the text itself holds it, and where bytes are
    not valid UTF-8.
    """

    def __init__(self, tokenizer: Tokenizer, after: Iterable[int] = ()) -> None:
        self._stream = Stream(tokenizer, after=after)
        self._bytes = TokenBytes(tokenizer)
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._open: list[int] = []  # tokens since the last whole character

    def add(self, token: int) -> str:
        """Add one id and return the text that is now certain, often none."""
        self._open.append(token)
        self._utf8.decode(self._bytes(token))
        if self._utf8.getstate()[0]:  # an incomplete character
            return ""
        ready, self._open = self._open, []
        return "".join(map(self._stream.add, ready))

    def end(self) -> str:
        """Return the text that was held back, without an incomplete character; nothing can be added afterwards."""
        begun = len(self._utf8.getstate()[0])  # bytes of the incomplete character
        if self._bytes.tokens_of_bytes:  # each is a token of its own, and would change how its neighbours are decoded
            self._open = self._open[: len(self._open) - begun]
        text = "".join([*map(self._stream.add, self._open), self._stream.end()])
        return text.removesuffix("\ufffd") if begun and not self._bytes.tokens_of_bytes else text


class StopFilter:
    """Passes streamed text on, except for stop strings: text that may become one is held back."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.is_stopped = False

    def add(self, text: str) -> str:
        """Add text and return what is now certain to be no part of a stop string."""
        if self.is_stopped:
            return ""
        self._held += text
        kept = cut_at(self._held, self._stops)
        if len(kept) < len(self._held):
            self.is_stopped, self._held = True, ""
            return kept
        safe = len(self._held) - self._partial_stop()
        shown, self._held = self._held[:safe], self._held[safe:]
        return shown

    def end(self) -> str:
        """Return the text that was held back and did not become a stop string."""
        shown, self._held = self._held, ""
        return shown

    def _partial_stop(self) -> int:
        """Return how many characters at the end of the text are the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for size in range(min(longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-size:]) for stop in self._stops):
                return size
        return 0
