"""Text that every machine already has: nothing is downloaded, nothing is shipped."""


def python_topics() -> list[str]:
    """The topics of Python's own ``help()``, about half a megabyte of English and code.

    Tables and underlines are left out: they are drawings, not sentences. The text differs a little between versions
    of Python. Minimal installations leave it out; the error says so.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise RuntimeError(
            "this Python comes without pydoc_data.topics, the text of help(). On Debian and Ubuntu install "
            "libpython3-stdlib; elsewhere use a full Python."
        ) from error
    return [_sentences(topics[name]) for name in sorted(topics)]


def _sentences(topic: str) -> str:
    drawings = ("+-", "+=", "|", "==", "**", "--")
    return "\n".join(line for line in topic.splitlines() if not line.startswith(drawings))


def python_documentation() -> bytes:
    """All topics one after the other, as UTF-8 bytes."""
    return "\n\n".join(python_topics()).encode()
