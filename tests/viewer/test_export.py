"""The page as one file: what is in it, how exact, how large, and that nothing comes from elsewhere."""

import base64
import hashlib
import json
import re
import subprocess
import zlib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glassformer.viewer import export, queries
from glassformer.viewer.contents import Contents
from glassformer.viewer.encode import decode, visible
from glassformer.viewer.export import canonical, exported_page, pack, question_key, unpack, write_page
from glassformer.viewer.inputs import Input
from glassformer.viewer.page import static_files
from glassformer.viewer.queries_attention import WHOLE
from tests.page.tools import NO_NODE, node
from tests.viewer.conftest import TEXT, ask, shipped, tiny
from tests.viewer.test_attention_queries import GPT2
from tests.viewer.test_encode import HOSTILE


class Elements(HTMLParser):
    """The elements of a page with their attributes, and the text of its scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[tuple[str, str]] = []
        self._kind: str | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._kind = (dict(attrs).get("type") or tag) if tag in ("script", "style") else None

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self._kind = None

    def handle_data(self, data: str) -> None:
        if self._kind is not None:
            self.inside.append((self._kind, data))


def bootstrap_of(html: str) -> dict[str, Any]:
    (text,) = [data for kind, data in Elements(html).inside if kind == "application/json"]
    return json.loads(text)


def answer_of(bootstrap: dict[str, Any], name: str, body: dict[str, Any]) -> dict[str, Any]:
    held = bootstrap["answers"][question_key(name, body)]
    return json.loads(zlib.decompress(base64.b64decode(held))) if isinstance(held, str) else held


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """A page without the questions about single tokens and the lesson that is trained first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_single_tokens", lambda *_: iter(()))
        patch.setitem(queries.QUERIES, "toy", queries.QUERIES["lineages"])
        yield exported_page(Contents([shipped("stories")]))


def test_nothing_comes_from_elsewhere(page: str) -> None:
    elements = Elements(page)
    for tag, attributes in elements.found:
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")]
        assert "style" not in attributes
    assert [tag for tag, _ in elements.found if tag in ("iframe", "object", "embed", "base", "form")] == []
    (style,) = [data for kind, data in elements.inside if kind == "style"]
    assert "@import" not in style
    assert not re.search(r"url\((?!['\"]?data:)", style)


def test_the_policy_names_the_hashes_of_what_is_inside(page: str) -> None:
    elements = Elements(page)
    policies = [a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"]
    (policy,) = policies
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for kind in ("script", "style"):
        (data,) = [data for found, data in elements.inside if found == kind]
        digest = base64.b64encode(hashlib.sha256(data.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    order = [tag for tag, _ in elements.found]
    assert order.index("meta") < order.index("script"), "the policy comes before what it is for"


def test_answers_are_those_of_the_queries(page: str) -> None:
    bootstrap = bootstrap_of(page)
    assert (bootstrap["mode"], bootstrap["models"]) == ("file", ["stories"])
    text = bootstrap["state"]["text"]
    base = {"model": 0, "input": {"text": text, "text_b": None, "target": None, "ablate": []}}
    for name, params in (
        ("model", {}),
        ("tokens", {}),
        ("attention", {"kind": "decoder", "layer": 2, "heads": None, "rows": None}),
        ("attention_overview", {"kind": "decoder", "size": 48}),
        ("costs", {}),
        ("predict", {}),
        ("steps", {}),
        ("lens", {"top": 5}),
    ):
        held = answer_of(bootstrap, name, {**base, **params})
        expected = json.loads(json.dumps(ask(shipped("stories"), name, text, **params)))
        _same(held, expected)
    assert bootstrap["note"]["approximate"] is False
    defaults = {"input": {**_input(""), "target_ids": None}}
    assert bootstrap["queries"]["tokens"] == {"input": True, "model": True, "defaults": defaults}
    assert bootstrap["queries"]["lineages"]["input"] is False


def _same(held: Any, expected: Any) -> None:
    """Equal up to rounding: two passes may record different layers, and so compute them by different kernels."""
    if isinstance(expected, dict) and "data" in expected:
        np.testing.assert_allclose(decode(held), decode(expected), atol=1e-5)
    elif isinstance(expected, dict):
        assert held.keys() == expected.keys()
        for key in expected.keys() - {"seconds"}:
            _same(held[key], expected[key])
    elif isinstance(expected, list):
        assert len(held) == len(expected)
        for pair in zip(held, expected, strict=True):
            _same(*pair)
    elif isinstance(expected, float):
        assert held == pytest.approx(expected, abs=1e-4)
    else:
        assert held == expected


def _input(text: str) -> dict[str, Any]:
    return {"text": text, "text_b": None, "target": None, "ablate": []}


def test_keys_are_written_as_the_page_writes_them() -> None:
    assert canonical({"b": 1.0, "a": [None, True, "é\ud800"], "c": 0.5}) == '{"a":[null,true,"é\\ud800"],"b":1,"c":0.5}'
    short = question_key("attention", {"model": 0, "input": _input("a"), "kind": "decoder"})
    long = question_key(
        "attention", {"rows": None, "heads": None, "layer": 0, "kind": "decoder", "model": 0, "input": _input("a")}
    )
    assert short == long
    assert question_key("model", {"model": 0, "input": _input("a")}) == 'model {"model":0}'
    assert question_key("lineages", {"model": 1, "input": _input("a")}) == "lineages {}"


def test_of_large_attention_some_heads_are_held_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "EXACT", 1000)
    subject = tiny("gpt2", GPT2)
    text = "a little girl went home with her dog and " * 35
    html = exported_page(Contents([subject], state={"text": text}), heads=["decoder.1.2"], views=["heads"])
    bootstrap = bootstrap_of(html)
    assert bootstrap["note"] | {"left_out": 0} == {
        "approximate": True, "heads": [["decoder", 1, 2]], "top": 16, "bits": 8, "left_out": 0,
    }  # fmt: skip
    exact = subject.weights(Input(text), "decoder", 1).numpy()
    queries_ = exact.shape[1]
    assert queries_ > 256
    for start in range(0, queries_, 128):
        rows = [start, min(start + 128, queries_)]
        body = {"model": 0, "input": _input(text), "kind": "decoder", "layer": 1, "heads": None, "rows": rows}
        held = answer_of(bootstrap, "attention", body)
        weights = decode(held["weights"]) / 255 * decode(held["scale"])[..., None]
        expected = exact[:, rows[0] : rows[1]]
        bound = decode(held["scale"])[..., None] / 509
        assert bool((np.abs(weights[2] - expected[2]) <= bound[2]).all()), "in full"
        kept = weights[0] > 0
        assert kept.sum(-1).max() <= 16
        assert bool((np.abs(weights[0] - expected[0])[kept] <= np.broadcast_to(bound[0], kept.shape)[kept]).all())
        smallest = np.where(kept, expected[0], np.inf).min(-1)
        left = np.where(kept, 0, expected[0]).max(-1)
        assert bool((left <= smallest + 1e-6).all()), "the largest ones are kept"
    with pytest.raises(ValueError, match=r"gpt2 has no head decoder\.7\.0"):
        exported_page(Contents([subject], state={"text": "a"}), heads=["decoder.7.0"])
    with pytest.raises(ValueError, match=r"KIND\.LAYER\.HEAD"):
        exported_page(Contents([subject], state={"text": "a"}), heads=["7.0"])


def test_packed_weights() -> None:
    weights = torch.rand(3, 5, 40).softmax(-1)
    some = unpack(pack(weights, {1}), 1, 4, exact=True)
    assert [part.get("index") is None for part in some["weights"]["parts"]] == [False, True, False]
    dense = decode(some["weights"]) / 255 * decode(some["scale"])[..., None]
    np.testing.assert_allclose(dense[1], weights[1, 1:4], atol=float(weights.max()) / 509)
    assert (dense[0] > 0).sum() == 16 * 3
    all_heads = unpack(pack(weights, {0, 1, 2}), 0, 5, exact=True)
    assert len(all_heads["weights"]["parts"]) == 1


def test_a_page_of_some_views_answers_what_they_ask() -> None:
    html = exported_page(Contents([shipped("stories")], state={"text": "a b"}), views=["heads", "grid"])
    bootstrap = bootstrap_of(html)
    assert bootstrap["views"] == ["heads", "grid"]
    names = {key.split(" ")[0] for key in bootstrap["answers"]}
    assert names == {"model", "tokens", "attention", "attention_overview", "head_stats"}


def test_a_file_has_a_limit() -> None:
    small = exported_page(Contents([shipped("stories")], state={"text": "a b"}), limit=1000)
    bootstrap = bootstrap_of(small)
    assert bootstrap["note"]["left_out"] > 10
    names = {key.split(" ")[0] for key in bootstrap["answers"]}
    assert names >= {"model", "tokens", "attention"}, "these are there in any case"


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_in_a_file_stay_text(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = shipped("stories")
    monkeypatch.setattr(subject, "name", text)
    html = exported_page(Contents([subject], state={"text": text}), limit=1000)
    elements = Elements(html)
    assert [tag for tag, _ in elements.found].count("script") == 2
    assert [tag for tag, _ in elements.found].count("img") == 0
    bootstrap = bootstrap_of(html)
    assert bootstrap["models"] == [visible(text)]
    assert bootstrap["state"]["text"] == visible(text)
    html.encode("utf-8")


def test_two_models_and_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "LIMIT", 1000)
    contents = Contents([shipped("mlm-en"), shipped("ner-en")], state={"text": "a little girl"})
    size = write_page(contents, tmp_path / "page.html", heads=())
    assert size == (tmp_path / "page.html").stat().st_size
    bootstrap = bootstrap_of((tmp_path / "page.html").read_text(encoding="utf-8"))
    for number, subject in enumerate(contents.subjects):
        body = {
            "model": number,
            "input": _input("a little girl"),
            "kind": "encoder",
            "layer": 1,
            "heads": None,
            "rows": None,
        }
        held = answer_of(bootstrap, "attention", body)
        expected = subject.weights(Input("a little girl"), "encoder", 1)
        np.testing.assert_allclose(decode(held["weights"]), expected, atol=1e-6)


@pytest.mark.slow
def test_1024_tokens_of_12_layers_and_12_heads_take_15_mb() -> None:
    config = {"n_embd": 96, "n_layer": 12, "n_head": 12, "n_positions": 1024}
    subject = tiny("gpt2", config)
    words = subject.tokenizer.encode(TEXT["stories"] + " who lived in a big house with her dog. ", special=False)
    text = subject.tokenizer.decode((words * 60)[:1010])
    assert len(subject.sequences(Input(text)).decoder or ()) > 1000
    html = exported_page(Contents([subject], state={"text": text}))
    assert len(html.encode()) < 15_000_000
    note = bootstrap_of(html)["note"]
    assert note["approximate"]
    assert len(note["heads"]) >= 3


def test_questions_of_an_export_are_queries() -> None:
    """A question that no query understands would silently be left out of every file."""
    for name in ("stories", "en-zh", "mlm-en"):
        contents = Contents([shipped(name)])
        for query, body in export._questions(contents):
            queries.parse(query, body)


def test_questions_of_an_export_are_those_that_the_page_asks() -> None:
    """Numbers that the scripts of the page have as well: were they others, an answer would be held in vain."""
    scripts = {name: path.read_text(encoding="utf-8") for name, (path, _) in static_files().items() if "/" in name}
    asked = dict(re.findall(r"export const (WHOLE|BLOCK) = (\d+);", scripts["js/attention.js"]))
    assert asked == {"WHOLE": str(WHOLE), "BLOCK": str(export.BLOCK)}
    assert re.findall(r"export const WHOLE = (\d+);", scripts["js/views/flow_parts.js"]) == [str(export.TOKENS)]
    program = node()
    if program is None:
        pytest.skip(NO_NODE)
    lengths = [None, 1, 8, 20, 64, 100, 512, 4096]
    module = static_files()["js/views/positions_math.js"][0].as_uri()
    print_lengths = f"console.log(JSON.stringify({json.dumps(lengths)}.map((n) => lengthsOf(n).first)))"
    script = f"import {{ lengthsOf }} from '{module}'; {print_lengths}"
    found = subprocess.run([program, "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == [export.first_length(length) for length in lengths]
