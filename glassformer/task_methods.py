"""The methods of ``Loaded`` for tasks on texts: fill, score, embed, classify, tag, answer.

Each takes one text, which gives one result, or a list, which gives a list, as the function of the same name does. Tasks
are built on top of ``Loaded``, so methods import them when called.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, cast, overload

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.generation.settings import Side
    from glassformer.loaded import Loaded
    from glassformer.tasks.answer import Answered
    from glassformer.tasks.batches import Pair, Progress
    from glassformer.tasks.classify import Classified
    from glassformer.tasks.fill import Filled
    from glassformer.tasks.score import Score
    from glassformer.tasks.tag import Tagged


class TaskMethods:
    """The methods of a loaded model that read texts."""

    @property
    def _loaded(self) -> "Loaded":
        return cast("Loaded", self)  # its only subclass

    @overload
    def fill(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
        self,
        texts: str,
        *,
        top: int = 5,
        blank: str | None = None,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Filled": ...

    @overload
    def fill(
        self,
        texts: Sequence[str],
        *,
        top: int = 5,
        blank: str | None = None,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "list[Filled]": ...

    def fill(
        self,
        texts: str | Sequence[str],
        *,
        top: int = 5,
        blank: str | None = None,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Filled | list[Filled]":
        """Predict the masked tokens of a text, or of a list of texts; see ``glassformer.fill``."""
        from glassformer.tasks.fill import fill

        return fill(
            self._loaded, texts, top=top, blank=blank, truncate=truncate, batch_size=batch_size, progress=progress
        )

    @overload
    def score(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
        self,
        texts: str,
        *,
        window: int | None = None,
        stride: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Score": ...

    @overload
    def score(
        self,
        texts: "Sequence[str | Pair]",
        *,
        window: int | None = None,
        stride: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "list[Score]": ...

    def score(
        self,
        texts: "str | Sequence[str | Pair]",
        *,
        window: int | None = None,
        stride: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Score | list[Score]":
        """Return log-probabilities, perplexity and bits per byte of a text, or of each of a list.

        See ``glassformer.score``.
        """
        from glassformer.tasks.score import score

        return score(self._loaded, texts, window=window, stride=stride, batch_size=batch_size, progress=progress)

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        pool: Literal["mean", "first", "last"] | None = None,
        normalise: bool | None = None,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Tensor":
        """Return the vector of a text (width), or of a list of texts (texts, width); see ``glassformer.embed``."""
        from glassformer.tasks.embed import embed

        return embed(
            self._loaded,
            texts,
            pool=pool,
            normalise=normalise,
            truncate=truncate,
            batch_size=batch_size,
            progress=progress,
        )

    @overload
    def classify(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
        self,
        texts: str,
        *,
        multi_label: bool = False,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Classified": ...

    @overload
    def classify(
        self,
        texts: "Sequence[str | Pair]",
        *,
        multi_label: bool = False,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "list[Classified]": ...

    def classify(
        self,
        texts: "str | Sequence[str | Pair]",
        *,
        multi_label: bool = False,
        truncate: "Side | None" = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Classified | list[Classified]":
        """Return the labels of a text with probabilities, or those of a list of texts or pairs of texts.

        See ``glassformer.classify``.
        """
        from glassformer.tasks.classify import classify

        return classify(
            self._loaded, texts, multi_label=multi_label, truncate=truncate, batch_size=batch_size, progress=progress
        )

    @overload
    def tag(  # type: ignore[overload-overlap]  # a str is a Sequence[str]; the first overload holds for it
        self,
        texts: str,
        *,
        overlap: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Tagged": ...

    @overload
    def tag(
        self,
        texts: Sequence[str | Sequence[str]],
        *,
        overlap: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "list[Tagged]": ...

    def tag(
        self,
        texts: str | Sequence[str | Sequence[str]],
        *,
        overlap: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Tagged | list[Tagged]":
        """Return a label for every word of a text, and the entities that the labels mark; or those of a list of texts.

        See ``glassformer.tag``.
        """
        from glassformer.tasks.tag import tag

        return tag(self._loaded, texts, overlap=overlap, batch_size=batch_size, progress=progress)

    @overload
    def answer(
        self,
        questions: "Pair",
        *,
        top: int = 1,
        max_answer_tokens: int = 30,
        no_answer: bool = False,
        stride: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Answered": ...

    @overload
    def answer(
        self,
        questions: "Sequence[Pair]",
        *,
        top: int = 1,
        max_answer_tokens: int = 30,
        no_answer: bool = False,
        stride: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "list[Answered]": ...

    def answer(
        self,
        questions: "Pair | Sequence[Pair]",
        *,
        top: int = 1,
        max_answer_tokens: int = 30,
        no_answer: bool = False,
        stride: int | None = None,
        batch_size: int | None = None,
        progress: "Progress | None" = None,
    ) -> "Answered | list[Answered]":
        """Answer a pair (question, context) by a span of the context, or each pair of a list.

        See ``glassformer.answer``.
        """
        from glassformer.tasks.answer import answer

        return answer(
            self._loaded,
            questions,
            top=top,
            max_answer_tokens=max_answer_tokens,
            no_answer=no_answer,
            stride=stride,
            batch_size=batch_size,
            progress=progress,
        )
