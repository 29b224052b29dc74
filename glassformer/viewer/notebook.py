"""The page in notebooks and as files: ``view``, ``head_view``, ``model_view`` and ``neuron_view``.

Each returns a ``View``, which a notebook shows in a frame of its own. The frame has no access to the notebook; it needs
no server and no network.
"""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os

    from glassformer.loaded import Loaded
    from glassformer.viewer.contents import Contents
    from glassformer.viewer.kinds import AttentionKind
    from glassformer.viewer.tensors import AnyAttention, AnyTokens

HEIGHT = 720  # pixels of the frame
LIMIT = 8_000_000  # bytes of answers in a notebook's page
# The page's theme "auto" follows the colour scheme of its frame, which is that of the notebook: JupyterLab, Notebook,
# VS Code and Colab say theirs. Where a notebook is not trusted, it removes style and frame, and the note is shown.
STYLE = """\
:is([data-jp-theme-light=true], [data-vscode-theme-kind$=light]) .glassformer-frame { color-scheme: light }
:is([data-jp-theme-light=false], [data-vscode-theme-kind$=dark], [data-vscode-theme-kind=vscode-high-contrast], \
[theme=dark]) .glassformer-frame { color-scheme: dark }
.glassformer-note { display: none }"""
NOTE = "Glassformer's page is not shown, because this notebook is not trusted. Trust it, or run the cell again."


class View:
    """A page: shown by a notebook, or saved as a file.

    Args:
        html: the page.
        height: of the frame in a notebook, in pixels.
    """

    def __init__(self, html: str, *, height: int = HEIGHT) -> None:
        self.html, self.height = html, height

    def save(self, path: "str | os.PathLike[str]") -> Path:
        """Write the page as one HTML file, which any browser opens; return its path."""
        from glassformer.weights.saving import write_text

        write_text(Path(path), self.html)
        return Path(path)

    def _repr_html_(self) -> str:
        return (
            f'<style>{STYLE}</style><iframe class="glassformer-frame" sandbox="allow-scripts allow-downloads" '
            f'referrerpolicy="no-referrer" title="Glassformer" width="100%" height="{int(self.height)}" '
            f'style="border: 0" srcdoc="{escape(self.html)}"></iframe><p class="glassformer-note">{escape(NOTE)}</p>'
        )

    def __repr__(self) -> str:
        return f"<View: a page of {len(self.html) / 1e6:.1f} MB; a notebook shows it, save(path) writes it>"


def view(
    model: "Loaded | str",
    text: str | None = None,
    *,
    text_b: str | None = None,
    target: str | None = None,
    compare: "Loaded | str | None" = None,
    heads: Sequence[str] = (),
    height: int = HEIGHT,
) -> View:
    """Visualise what a model computes for a text; ``glassformer view`` shows the same page for any text.

    Args:
        model: what ``load`` returns, or a name that ``load`` takes.
        text: what the model reads; None: an example.
        text_b: a second text, for models that read pairs.
        target: what an encoder-decoder's decoder reads; None: the text that the model generates greedily.
        compare: a second model.
        heads: the heads whose attention is shown in full if not all fit: ``"decoder.0.3"``.
        height: of the frame in a notebook, in pixels.
    """
    from glassformer.viewer.export import exported_page

    models = [model, *([] if compare is None else [compare])]
    contents = _contents(models, {"text": text, "text_b": text_b, "target": target}, {})
    return View(exported_page(contents, heads=heads, limit=LIMIT), height=height)


def head_view(
    attention: "AnyAttention",
    tokens: "AnyTokens",
    sentence_b_start: int | None = None,
    heads: Sequence[int] | None = None,
    layer: int | None = None,
    *,
    height: int = HEIGHT,
) -> View:
    """Show attention as lines between tokens, for weights of any library.

    Args:
        attention: a list with the weights of each layer, (1, heads, queries, keys) as transformers returns them or
            without the first axis (load its models with ``attn_implementation="eager"``, the others return no weights
            or an empty list); for an encoder-decoder a dictionary of such lists, by ``"encoder"``, ``"decoder"``
            and ``"cross"``.
        tokens: a list of tokens; for an encoder-decoder a dictionary by ``"encoder"`` and ``"decoder"``.
        sentence_b_start: index of the first token of the second sentence, if there are two.
        heads: the heads that are chosen at first; None: all.
        layer: the layer that is chosen at first; None: the first.
        height: of the frame in a notebook, in pixels.
    """
    return _tensor_view("heads", attention, tokens, sentence_b_start, heads, layer, height)


def model_view(
    attention: "AnyAttention",
    tokens: "AnyTokens",
    sentence_b_start: int | None = None,
    heads: Sequence[int] | None = None,
    layer: int | None = None,
    *,
    height: int = HEIGHT,
) -> View:
    """Show all heads of all layers at a glance, for weights of any library; arguments are those of ``head_view``."""
    return _tensor_view("grid", attention, tokens, sentence_b_start, heads, layer, height)


def neuron_view(
    model: "Loaded | str",
    text: str | None = None,
    *,
    layer: int = 0,
    head: int = 0,
    kind: "AttentionKind | None" = None,
    text_b: str | None = None,
    target: str | None = None,
    height: int = HEIGHT,
) -> View:
    """Show how the weights of a head come about: queries, keys, their products, the softmax.

    Args:
        model: what ``load`` returns, or a name that ``load`` takes.
        text: what the model reads; None: an example.
        layer: the layer that is chosen at first.
        head: the head that is chosen at first.
        kind: ``"encoder"``, ``"decoder"`` or ``"cross"``; None: the last of these that the model has.
        text_b: a second text, for models that read pairs.
        target: what an encoder-decoder's decoder reads; None: the text that the model generates greedily.
        height: of the frame in a notebook, in pixels.
    """
    from glassformer.viewer.export import exported_page

    state: dict[str, Any] = {"view": "neuron", "layer": layer, "heads": [head]}
    words = {"text": text, "text_b": text_b, "target": target}
    contents = _contents([model], words, state if kind is None else {**state, "kind": kind})
    full = [f"{(contents.state or {})['kind']}.{layer}.{head}"]
    html = exported_page(contents, heads=full, limit=LIMIT, views=("neuron", "heads", "grid"))
    return View(html, height=height)


def _contents(models: "Sequence[Loaded | str]", words: dict[str, str | None], state: dict[str, Any]) -> "Contents":
    from glassformer.hub import load
    from glassformer.loaded import Loaded
    from glassformer.viewer.contents import Contents
    from glassformer.viewer.kinds import check_head, kinds_of
    from glassformer.viewer.subject import Subject

    subjects = []
    for model in models:
        if not isinstance(model, Loaded | str):
            raise TypeError(f"a model is what glassformer.load(...) returns, or a name; got {type(model).__name__}.")
        loaded = model if isinstance(model, Loaded) else load(model, dtype="float32")
        name = model if isinstance(model, str) else loaded.path.name
        subjects.append(Subject(loaded, name))
    given = {key: value for key, value in words.items() if value is not None}
    if "view" in state:
        kind = state.setdefault("kind", kinds_of(subjects[0])[-1])
        check_head(subjects[0], kind, state["layer"], state["heads"][0])
    return Contents(subjects, (), {**given, **state})


def _tensor_view(
    name: str,
    attention: "AnyAttention",
    tokens: "AnyTokens",
    sentence_b_start: int | None,
    heads: Sequence[int] | None,
    layer: int | None,
    height: int,
) -> View:
    from glassformer.viewer.tensors import TensorAttention, tensor_page

    source = TensorAttention(attention, tokens, sentence_b_start)
    kind = list(source.sizes)[-1]
    sizes, number = source.sizes[kind], 0 if layer is None else layer
    if not 0 <= number < sizes.layers:
        raise ValueError(f"layer must be from 0 to {sizes.layers - 1}, got {layer}.")
    if heads is not None and (not heads or any(not 0 <= head < sizes.heads for head in heads)):
        raise ValueError(f"heads are numbers from 0 to {sizes.heads - 1}, got {list(heads)}.")
    chosen = list(range(sizes.heads)) if heads is None else list(heads)
    state = {"view": name, "kind": kind, "layer": number, "heads": chosen}
    full = [] if heads is None else [(kind, number, head) for head in chosen]
    return View(tensor_page(source, state, full), height=height)
