"""Chat templates: render messages as the text that a chat model was trained on.

A template is an untrusted Jinja program from the model's folder. It runs in Jinja's sandbox on plain data, without side
effects, but also without a time limit.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn


def render(
    template: str, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True, **variables: Any
) -> str:
    """Render messages, as transformers' ``apply_chat_template`` does.

    Args:
        template: the source of a Jinja template.
        messages: of the form {"role": …, "content": …}.
        add_generation_prompt: end the text where the assistant's reply begins.
        variables: further variables of templates, such as ``bos_token``, ``tools``, ``documents``.
    """
    data = {"messages": list(messages), "tools": None, "documents": None, **variables}
    try:
        plain = json.loads(json.dumps(data))  # the template sees no objects with methods
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
    """Return a function that compiles a template, and the exceptions that a template can raise."""
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.parser import Parser
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ImportError("chat templates need Jinja: pip install 'glassformer[chat]'") from error

    class Generation(Extension):
        """``{% generation %}`` marks the assistant's text for training; its content is rendered unchanged."""

        tags = {"generation"}  # noqa: RUF012  # as Jinja declares them

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
    # Not only Jinja's errors: a template can divide by zero, index out of range, recurse without end, exhaust memory,
    # or compile to invalid Python ({% break %} outside a loop).
    failures = (
        TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError,
        SyntaxError, AssertionError, NotImplementedError,
    )  # fmt: skip
    return lru_cache(maxsize=16)(environment.from_string), failures


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return plain JSON; Jinja's own filter escapes ``<`` as ``\\u003c`` for web pages."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
