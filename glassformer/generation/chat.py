"""Conversations: the tokenizer's own chat template before a reply, whole or as it is written."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from glassformer.generation.prompts import check_loaded
from glassformer.generation.text import Text, generate_text, stream_text
from glassformer.hub import Loaded

REPLY_LENGTH = 512  # new tokens where nobody says how many


def reply(loaded: Loaded, messages: Sequence[Mapping[str, Any]], **options: Any) -> Text:
    """The model's next message. ``messages``: of the form {"role": "user", "content": "…"}; options as for texts."""
    check_loaded(loaded)
    ids = loaded.tokenizer.chat(messages)  # the template brings the special tokens, so that none is put around it
    return generate_text(loaded, [ids], **{"default_length": REPLY_LENGTH, **options})[0][0]


def stream_reply(loaded: Loaded, messages: Sequence[Mapping[str, Any]], **options: Any) -> Generator[str, None, Text]:
    """Like ``reply``, piece by piece as it is written."""
    check_loaded(loaded)
    ids = loaded.tokenizer.chat(messages)
    return stream_text(loaded, ids, **{"default_length": REPLY_LENGTH, **options})
