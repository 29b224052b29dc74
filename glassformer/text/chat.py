"""Chat templates: from messages to the one text that a chat model was trained on.

A template is a small program in Jinja that comes with the model, written by a stranger. It runs in Jinja's sandbox,
sees plain data only, and can change nothing; a template that merely wastes time is not stopped.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn


def render(
    template: str, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
) -> str:
    """The text of ``messages`` under ``template``, as transformers' ``apply_chat_template`` renders it.

    ``add_generation_prompt`` ends the text where the assistant's answer begins. ``variables`` are what templates may
    ask for besides: ``bos_token`` and its like, ``tools``, ``documents``.
    """
    facts = {"messages": list(messages), "tools": None, "documents": None, **variables}
    try:
        plain = json.loads(json.dumps(facts))  # objects with methods of their own do not reach the template
    except (TypeError, ValueError) as error:
        raise ValueError(f"messages must be plain data (text, numbers, lists, dictionaries): {error}") from error
    compile_template, failures = _jinja()
    try:
        return compile_template(template).render(add_generation_prompt=add_generation_prompt, **plain)
    except failures as error:
        line = getattr(error, "lineno", None)
        where = f" in line {line}" if line else ""
        raise ValueError(f"the chat template failed{where}: {type(error).__name__}: {error}") from error


@lru_cache(maxsize=1)
def _jinja() -> tuple[Callable[[str], Any], tuple[type[Exception], ...]]:
    """A function that compiles a template, and the errors that a template can cause."""
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError("chat templates need Jinja: pip install 'glassformer[chat]'") from error

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's words for training; what is inside is rendered as it is."""

        tags = {"generation"}  # noqa: RUF012  # Jinja's own way to declare them

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    def raise_exception(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": raise_exception, "strftime_now": _now}
    # Not only Jinja's own errors: a template can divide by zero, index past an end, call itself for ever, ask for more
    # memory than there is, or become Python that does not compile ({% break %} outside a loop).
    caused = (
        TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError,
        SyntaxError, AssertionError, NotImplementedError,
    )  # fmt: skip
    return lru_cache(maxsize=16)(environment.from_string), caused


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as it is; Jinja's own filter writes ``<`` as ``\\u003c``, for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
