"""The error of a query that cannot be answered."""

from typing import Any


class QueryError(ValueError):
    """A query that cannot be answered, with the reason for the reader of the page.

    Args:
        message: the reason, in English.
        code: names the sentence ``error.CODE`` of the page's own words, which says the same in the page's language;
            for what readers can cause, which is answered with status 200. None: the page shows the message.
        values: what is filled into that sentence.
    """

    def __init__(self, message: str, code: str | None = None, **values: Any) -> None:
        super().__init__(message)
        self.code, self.values = code, values
