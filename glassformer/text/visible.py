"""Text that is safe to show."""

import unicodedata


def visible(text: str, keep: str = "\n\t") -> str:
    """Text that is safe on a terminal: control characters, but for those to keep, show as a dot."""
    return "".join(c if c in keep or unicodedata.category(c) not in ("Cc", "Cs") else "·" for c in text)


def counted(number: int, thing: str) -> str:
    """So many of a thing: ``1 layer``, ``12 layers``."""
    return f"{number:,} {thing if number == 1 else thing + 's'}"
