"""Text that every machine already has: nothing is downloaded, nothing is shipped."""


def python_documentation() -> bytes:
    """The topics of Python's own ``help()``, about half a megabyte of English and code, as UTF-8 bytes.

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
    lines = "\n\n".join(topics[name] for name in sorted(topics)).splitlines()
    return "\n".join(line for line in lines if not line.startswith(("+-", "+=", "|", "==", "**", "--"))).encode()
