"""A local page that visualises what a model computes: ``view``, ``head_view``, ``model_view``, ``neuron_view``.

``glassformer view`` serves it, and its ``--export`` writes it as a file. Names are loaded when first used.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.viewer.notebook import View as View
    from glassformer.viewer.notebook import head_view as head_view
    from glassformer.viewer.notebook import model_view as model_view
    from glassformer.viewer.notebook import neuron_view as neuron_view
    from glassformer.viewer.notebook import view as view

__all__ = ["View", "head_view", "model_view", "neuron_view", "view"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'glassformer.viewer' has no attribute {name!r}")
    from glassformer.viewer import notebook

    return getattr(notebook, name)
