"""Damage done to files, drawn from a seed: to bytes, and to JSON that stays JSON."""

import copy
import random
from typing import Any

HOSTILE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 7, 255, 2**16, 2**31 - 1, 2**31, 2**62, 10**30, -(2**63), 0.5, 1e308, -1e-30,
    float("nan"), float("inf"), "", "x", "global", "é\u0000", "A" * 1000, [], {}, [None], [[]], {"a": 1}, ["x", "y"],
    [0, 1, 2], {"0": "a"}, "<s>", "1", "-5",
]  # fmt: skip


def damaged_json(original: Any, draw: random.Random) -> Any:
    """A copy with up to three places changed."""
    found = copy.deepcopy(original)
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        holder, key = _place(found, draw)
        if holder is None:
            return copy.deepcopy(draw.choice(HOSTILE))
        _change(holder, key, draw)
    return found


def _place(document: Any, draw: random.Random) -> tuple[Any, Any]:
    """A container in the document and one of its keys; short ways are as likely as long ones."""
    holder, key = None, None
    here = document
    while isinstance(here, dict | list) and here:
        holder = here
        key = draw.choice(list(here)) if isinstance(here, dict) else draw.randrange(len(here))
        here = here[key]
        if draw.random() < 0.25:
            break
    return holder, key


def _change(holder: Any, key: Any, draw: random.Random) -> None:
    value = holder[key]
    kind = draw.randrange(6)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(value, int):
        holder[key] = value + draw.choice((-1, 1, 10, -value, 10**6, -(2**33)))
    elif kind == 2 and isinstance(holder, dict):
        other = draw.choice(list(holder))
        holder[key], holder[other] = holder[other], value
    elif kind == 3 and isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(draw.choice(holder)))
    elif kind == 4:
        holder[key] = [value] if draw.random() < 0.5 else {"a": value}
    else:
        holder[key] = copy.deepcopy(draw.choice(HOSTILE))  # a later change must not reach the list


def damaged_bytes(original: bytes, draw: random.Random, limit: int | None = None) -> bytes:
    """A copy with up to four bytes among the first ``limit`` bytes changed; or a part of it."""
    data = bytearray(original)
    if draw.random() < 0.1:
        return bytes(data[: draw.randrange(len(data) + 1)])
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(max(1, min(len(data), limit or len(data))))
        kind = draw.randrange(5)
        if kind == 0:
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif kind == 1:
            size = draw.choice((1, 2, 4, 8))
            data[at : at + size] = draw.choice((0, 1, 2**31, 2**62, 2**64 - 1)).to_bytes(16, "little")[:size]
        elif kind == 2:
            del data[at : at + draw.randint(1, 9)]
        elif kind == 3:
            data[at:at] = draw.randbytes(draw.randint(1, 9))
        else:
            end = min(len(data), at + draw.randint(1, 30))
            data[at:at] = data[at:end]
    return bytes(data)


TEMPLATE_PIECES = [
    "{% for m in messages %}", "{% endfor %}", "{{ m.content }}", "{{ m['role'] }}", "{% if m.role == 'user' %}",
    "{% else %}", "{% endif %}", "{{ bos_token }}", "{{ messages[0] }}", "{{ messages[-9] }}", "{{ m.a.b.c }}",
    "{{ ''.__class__.__mro__ }}", "{{ self.__init__.__globals__ }}", "{% set x = 9 %}", "{{ x ** 9 }}", "{{ 1 / 0 }}",
    "{% macro f(n) %}", "{{ f(3) }}", "{% endmacro %}", "{{ raise_exception('no') }}", "{{ tools | tojson }}",
    "{% generation %}", "{% endgeneration %}", "{{ range(9) | list }}", "{% break %}", "{% continue %}", "{#", "#}",
    "{%", "%}", "{{", "}}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{{ loop.index }}",
    "{{ namespace(a=1).a }}", "{% raw %}", "{% endraw %}", "{{ 'x' * 9 }}", "{{ m | length }}", "{{ '%d' % 'x' }}",
    "{{ m.content.format(1) }}", "{{ [].append(1) }}", "{{ lipsum(1) }}", "{{ cycler }}", "\x00", "é", "{{ -'x' }}",
    "{{ messages | map(attribute='role') | join(',') }}", "{{ {}['a'] }}", "{{ none + 1 }}", "{{ x.y = 1 }}",
    "{{ 'x' * 10 ** 12 }}", "{% for i in range(10 ** 9) %}", "{{ f(f) }}", "{{ f() }}", "{{ strftime_now('%Y') }}",
]  # fmt: skip


def any_template(draw: random.Random) -> str:
    """Pieces of templates in any order."""
    return "".join(draw.choices(TEMPLATE_PIECES, k=draw.randint(1, 12)))
