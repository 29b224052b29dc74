"""The questions that the page can ask: a table from names to functions.

A query about a model takes a ``Subject`` and a dataclass of parameters; one about runs takes the ``Contents`` of the
page, and one about neither only parameters. Parameters are JSON types; the result is data that ``encode.to_json`` can
write. The same table serves the server, the exported file and notebooks.
"""

from collections.abc import Callable
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Any, Literal

from glassformer.config.facts import from_dict
from glassformer.viewer import (
    masks,
    queries_attention,
    queries_generate,
    queries_model,
    queries_positions,
    queries_predict,
    queries_runs,
    queries_sublayer,
    queries_teaching,
    queries_words,
)
from glassformer.viewer.contents import Contents
from glassformer.viewer.subject import QueryError, Subject

Of = Literal["model", "page", "nothing"]


@dataclass(frozen=True)
class Query:
    """A question: the function that answers it, its parameters, and what it is about."""

    function: Callable[..., dict[str, Any]]
    params: type
    of: Of

    @property
    def defaults(self) -> dict[str, Any]:
        """The parameters that may be left out, with their values; those of an input as well."""
        values: dict[str, Any] = {}
        for field in fields(self.params):
            value = field.default_factory() if field.default_factory is not MISSING else field.default
            if value is not MISSING:
                values[field.name] = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
        return values


def _table(of: Of, *modules: Any) -> dict[str, Query]:
    return {
        name: Query(function, params, of) for module in modules for name, (function, params) in module.QUERIES.items()
    }


QUERIES: dict[str, Query] = {
    **_table("model", queries_model, queries_attention, masks, queries_sublayer, queries_positions),
    **_table("model", queries_predict, queries_generate, queries_words),
    **_table("page", queries_runs),
    **_table("nothing", queries_teaching),
}


@dataclass(frozen=True)
class Request:
    """A question with its parameters; ``model`` is the number of the model on the page."""

    name: str
    model: int
    params: Any


def parse(name: str, body: object) -> Request:
    """Check a request against the table; errors say which key is wrong."""
    if name not in QUERIES:
        raise QueryError(f"there is no query {name!r:.40}; there are {', '.join(QUERIES)}.")
    if not isinstance(body, dict):
        raise QueryError("the body of a request is a JSON object.")
    data, kind = dict(body), QUERIES[name].params
    number = data.pop("model", 0)
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1000:
        raise QueryError(f"model must be a number from 0 on, got {number!r:.40}.")
    if "input" not in {field.name for field in fields(kind)}:
        data.pop("input", None)
    try:
        return Request(name, number, from_dict(kind, data))
    except (TypeError, ValueError) as error:
        raise QueryError(str(error)) from error


def answer(contents: Contents, request: Request) -> dict[str, Any]:
    """Return the result of a request. Errors that the user can fix are ``QueryError``."""
    query = QUERIES[request.name]
    try:
        if query.of == "nothing":
            return query.function(request.params)
        if query.of == "page":
            return query.function(contents, request.params)
        if request.model >= len(contents.subjects):
            raise QueryError(f"there is no model {request.model}; this page shows {len(contents.subjects)}.")
        return _answer_about(contents.subjects[request.model], request)
    except QueryError:
        raise
    except ValueError as error:  # the library's own errors are written for readers
        raise QueryError(str(error)) from error


def _answer_about(subject: Subject, request: Request) -> dict[str, Any]:
    try:
        return QUERIES[request.name].function(subject, request.params)
    except QueryError:
        raise
    except ValueError:
        if (given := getattr(request.params, "input", None)) is not None:
            subject.sequences(given)  # where the text itself is the reason, the page has words of its own for it
        raise
