"""Arrays and strings on their way to the page."""

import json
import re

import numpy as np
import pytest
import torch

from glassformer.viewer.encode import array, decode, plain, script_json, to_json, visible

HOSTILE = (
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "]]>",
    "\u202eabc\u202c\u2066\u2069",
    "\u2028\u2029",
    "\0nul",
    "lone \ud800 and \udfff",
    "👩‍🚀 \U0001f600",
    "&lt;&amp;\"'`${1}",
)


@pytest.mark.parametrize("kind", ["f4", "f2", "u1", "u2", "i4"])
def test_arrays_survive(kind: str) -> None:
    values = torch.tensor([[0, 1, 2], [3, 100, 255]])
    encoded = json.loads(json.dumps(array(values, kind)))
    assert encoded["shape"] == [2, 3]
    np.testing.assert_array_equal(decode(encoded), values)


def test_arrays_of_every_float_are_float32() -> None:
    values = torch.tensor([0.1, -torch.inf, torch.nan])
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        decoded = decode(array(values.to(dtype)))
        assert decoded.dtype == np.dtype("<f4")
        np.testing.assert_array_equal(decoded, values.to(dtype).float())


def test_sparse_arrays() -> None:
    index, value = array([[1, 3], [0, 2]], "u2"), array([[9, 5], [7, 1]], "u1")
    dense = decode({"shape": [2, 4], "type": "u1", "index": index, "value": value})
    np.testing.assert_array_equal(dense, [[0, 9, 0, 5], [7, 0, 1, 0]])


def test_stacked_arrays() -> None:
    one = {"shape": [1, 1, 3], "type": "u1", "index": array([[[2]]], "u2"), "value": array([[[4]]], "u1")}
    stacked = {"shape": [2, 1, 3], "type": "u1", "parts": [array([[[1, 2, 3]]], "u1"), one]}
    np.testing.assert_array_equal(decode(stacked), [[[1, 2, 3]], [[0, 0, 4]]])


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_stay_text(text: str) -> None:
    script = script_json({"text": text, text: 1})
    assert not re.search("[<>&\u2028\u2029\0\ud800-\udfff]", script)
    script.encode("utf-8")
    assert json.loads(script) == {"text": visible(text), visible(text): 1}
    assert json.loads(to_json(text)) == visible(text)


def test_what_utf8_cannot_hold_is_visible() -> None:
    assert visible("a\0b") == "a␀b"
    assert visible("a\ud83d") == "a\\ud83d"
    assert visible("plain, 中文, 😀, \u202e") == "plain, 中文, 😀, \u202e"


def test_numbers_that_json_lacks_are_null() -> None:
    assert plain({"a": [float("nan"), float("inf"), 1.5], "b": (1, None)}) == {"a": [None, None, 1.5], "b": [1, None]}
