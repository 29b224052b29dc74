"""The stem of an English word: Porter's algorithm (1980), in the form that ROUGE figures are published with.

That form is NLTK's default. Its departures from the paper are marked below: died is die; fly, like flies, is fli.

The *measure* of a word is how often a vowel is followed by a consonant in it: tree 0, trouble 1, oaten 2.
"""

from collections.abc import Sequence
from functools import lru_cache

# Departure: words that are looked up.
_IRREGULAR = {
    **dict.fromkeys(("sky", "skies"), "sky"),
    "dying": "die",
    "lying": "lie",
    "tying": "tie",
    **dict.fromkeys(("innings", "inning"), "inning"),
    **dict.fromkeys(("outings", "outing"), "outing"),
    **dict.fromkeys(("cannings", "canning"), "canning"),
    **{word: word for word in ("news", "howe", "proceed", "exceed", "succeed")},
}

Rules = Sequence[tuple[str, str]]

_PLURALS: Rules = (("sses", "ss"), ("ies", "i"), ("ss", "ss"), ("s", ""))
_DOUBLE_SUFFIXES: Rules = (
    ("ational", "ate"),
    ("tional", "tion"),
    ("enci", "ence"),
    ("anci", "ance"),
    ("izer", "ize"),
    ("bli", "ble"),  # departure, Porter's own: the paper has abli
    ("entli", "ent"),
    ("eli", "e"),
    ("ousli", "ous"),
    ("ization", "ize"),
    ("ation", "ate"),
    ("ator", "ate"),
    ("alism", "al"),
    ("iveness", "ive"),
    ("fulness", "ful"),
    ("ousness", "ous"),
    ("aliti", "al"),
    ("iviti", "ive"),
    ("biliti", "ble"),
    ("fulli", "ful"),  # departure
)
_ENDINGS: Rules = (
    ("icate", "ic"),
    ("ative", ""),
    ("alize", "al"),
    ("iciti", "ic"),
    ("ical", "ic"),
    ("ful", ""),
    ("ness", ""),
)
_LAST_SUFFIXES: Rules = tuple(
    (suffix, "")
    for suffix in (
        *("al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent"),
        *("ou", "ism", "ate", "iti", "ous", "ive", "ize"),
    )
)


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a word in lower case."""
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) <= 2:
        return word
    word = _without_y(_without_past(_without_plural(word)))
    word = _with_single_suffix(word)
    word = _replaced(word, _ENDINGS, above=0)
    word = _without_last_suffix(word)
    return _without_e(word)


def _without_plural(word: str) -> str:
    """Step 1a."""
    if len(word) == 4 and word.endswith("ies"):  # departure
        return word[:-1]
    return _replaced(word, _PLURALS, above=None)


def _without_past(word: str) -> str:
    """Step 1b: the endings of agreed, plastered, motoring."""
    if word.endswith("ied"):  # departure
        return word[:-1] if len(word) == 4 else word[:-2]
    if word.endswith("eed"):
        return _replaced(word, (("eed", "ee"),), above=0)
    for suffix in ("ed", "ing"):
        before = word.removesuffix(suffix)
        if before != word and "v" in _pattern(before):
            return _mended(before)
    return word


def _mended(word: str) -> str:
    """What is left of a word without ed or ing, as it is spelt: conflat → conflate, hopp → hop, fil → file."""
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if len(word) >= 2 and word[-1] == word[-2] and _pattern(word)[-1] == "c":
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _is_short(word) else word


def _without_y(word: str) -> str:
    """Step 1c. Departure: what counts is the consonant before y, so that enjoy stays and fly → fli."""
    before = word.removesuffix("y")
    return before + "i" if before != word and len(before) > 1 and _pattern(before)[-1] == "c" else word


def _with_single_suffix(word: str) -> str:
    """Step 2."""
    if word.endswith("alli") and _measure(word[:-4]) > 0:  # departure: what it becomes may have another
        word = word[:-2]
    if word.endswith("logi"):  # departure: the l counts as part of the stem, for geologi, theologi
        return word[:-1] if _measure(word[:-3]) > 0 else word
    return _replaced(word, _DOUBLE_SUFFIXES, above=0)


def _without_last_suffix(word: str) -> str:
    """Step 4; of sion and tion, the s and the t stay."""
    if word.endswith(("sion", "tion")):
        return word[:-3] if _measure(word[:-3]) > 1 else word
    return _replaced(word, _LAST_SUFFIXES, above=1)


def _without_e(word: str) -> str:
    """Step 5: the e of probate goes, and one of the two l that are left of controlled."""
    if word.endswith("e"):
        before = word[:-1]
        if _measure(before) > 1 or (_measure(before) == 1 and not _is_short(before)):
            word = before
    return word[:-1] if word.endswith("ll") and _measure(word[:-1]) > 1 else word


def _replaced(word: str, rules: Rules, *, above: int | None) -> str:
    """The first suffix that the word has is replaced if what stands before it has a measure above this."""
    for suffix, replacement in rules:
        if word.endswith(suffix):
            before = word.removesuffix(suffix)
            return before + replacement if above is None or _measure(before) > above else word
    return word


def _pattern(word: str) -> str:
    """A c for each consonant and a v for each vowel; y is a vowel after a consonant."""
    found = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and found.endswith("c"))
        found += "v" if is_vowel else "c"
    return found


def _measure(word: str) -> int:
    return _pattern(word).count("vc")


def _is_short(word: str) -> bool:
    """Whether it ends like hop: consonant, vowel, consonant other than w, x, y; or (departure) is like at."""
    pattern = _pattern(word)
    return pattern == "vc" or (pattern.endswith("cvc") and word[-1] not in "wxy")
