"""What a search leaves behind: the texts as token ids, and, if asked, every step that led to them.

Everything here is plain data that ``dataclasses.asdict`` turns into JSON.
"""

from dataclasses import dataclass, field
from typing import Literal

Ended = Literal["eos", "stop", "length", "context"]  # an end token, a stop string, max_new_tokens, the model's length
Fate = Literal["kept", "ended", "dropped"]


@dataclass(frozen=True)
class Alternative:
    """A token that might have been written, and its log-probability under the model."""

    token: int
    log_prob: float


@dataclass(frozen=True)
class Node:
    """One continuation that a search looked at.

    ``parent`` is the number, in ``Record.nodes``, of the one that it continues (None: of the prompt); ``score`` what
    it was ranked by: the sum of log-probabilities so far, penalties of rules and groups included.
    """

    step: int
    parent: int | None
    token: int
    log_prob: float
    score: float
    fate: Fate
    group: int = 0


@dataclass
class Record:
    """All continuations that were looked at for one prompt, in the order of the steps."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> int:
        """Take down a node; its number is returned."""
        self.nodes.append(node)
        return len(self.nodes) - 1


@dataclass(frozen=True)
class GenerationOutput:
    """One text as tokens.

    ``log_probs`` are those of the model itself, before temperature, penalties and filters. ``score`` is their sum, or
    for a beam what the beams were ranked by in the end: with rules applied, and divided by the length penalty.
    """

    ids: list[int]  # the new tokens; the one that ended the text included
    log_probs: list[float]
    score: float
    ended: Ended
    alternatives: list[list[Alternative]] = field(default_factory=list)  # per token, the likeliest first, if asked for
    record: Record | None = None
