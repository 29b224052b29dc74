"""The names by which the page knows mechanisms; one without a name is an error that says where to add it.

The scripts know the same names: ``static/js/mechanisms.js``, and the words in ``static/js/i18n/``. Facts that are words
already, such as the placement of norms, reach the page as they are.
"""

from typing import Literal

from glassformer.config import Alibi, BlockSparse, BucketBias, Disentangled
from glassformer.config.positions import ScoreBias

SCORE_BIASES: dict[type, str] = {BucketBias: "buckets", Alibi: "alibi", Disentangled: "disentangled"}


def score_bias_name(facts: ScoreBias) -> str:
    """Return the name of a kind of bias on the scores."""
    if type(facts) not in SCORE_BIASES:
        raise TypeError(
            f"the page has no name for {type(facts).__name__} as score_bias; add it to SCORE_BIASES in "
            f"viewer/mechanisms.py, and its words to viewer/static/js/i18n/."
        )
    return SCORE_BIASES[type(facts)]


def window_name(window: int | BlockSparse | None) -> Literal["full", "window", "block-sparse"]:
    """Return the name of what a layer may see."""
    match window:
        case None:
            return "full"
        case int():
            return "window"
        case BlockSparse():
            return "block-sparse"
        case unknown:
            raise TypeError(
                f"the page has no name for {type(unknown).__name__} as a window; add it to window_name in "
                f"viewer/mechanisms.py, to WINDOWS in viewer/static/js/mechanisms.js, and its words to "
                f"viewer/static/js/i18n/."
            )
