"""Text generation: ``generate`` and ``generate_stream`` take token ids and ``GenerationSettings``.

For text, ``glassformer.generate`` (here ``text.generate_text``) puts a tokenizer around them. Names are loaded when
first used, so that importing the settings does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.generation.api import generate as generate
    from glassformer.generation.api import generate_stream as generate_stream
    from glassformer.generation.search import GenerationOutput as GenerationOutput
    from glassformer.generation.settings import GenerationSettings as GenerationSettings
    from glassformer.generation.speculative import ModelDraft as ModelDraft
    from glassformer.generation.speculative import PromptLookup as PromptLookup

_MODULE_OF = {
    "generate": "api",
    "generate_stream": "api",
    "GenerationOutput": "search",
    "GenerationSettings": "settings",
    "ModelDraft": "speculative",
    "PromptLookup": "speculative",
}

__all__ = [*_MODULE_OF]  # noqa: PLE0604  # strings all of them


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'glassformer.generation' has no attribute {name!r}")
    return getattr(import_module(f"glassformer.generation.{_MODULE_OF[name]}"), name)
