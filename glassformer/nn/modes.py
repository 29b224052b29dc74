"""The mode that a model is in: training, with dropout, or evaluation."""

from torch import nn


class Evaluating:
    """The model in evaluation mode; afterwards every part is in the mode it was in before. Can be entered again.

    A text that is handed out token by token enters it for each: what the caller does to the model between two tokens,
    training it, say, is the caller's.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parts = list(model.modules())
        self._training: list[nn.Module] = []

    def __enter__(self) -> None:
        self._training = [part for part in self._parts if part.training]
        for part in self._training:
            part.training = False

    def __exit__(self, *_: object) -> None:
        for part in self._training:
            part.training = True
