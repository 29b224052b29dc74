"""The output of a search: texts as token ids and, on request, every step of the search.

All of it is plain data that ``dataclasses.asdict`` turns into JSON.
"""

from dataclasses import dataclass, field
from typing import Literal

# Why a text ended: an end token, a stop string, max_new_tokens, the end of the model's positions.
Ended = Literal["eos", "stop", "length", "context"]
Fate = Literal["kept", "ended", "dropped"]


@dataclass(frozen=True)
class Alternative:
    """A possible next token and its log-probability under the model."""

    token: int
    log_prob: float


@dataclass(frozen=True)
class Node:
    """One continuation that a search considered.

    ``parent`` is the index, in ``Record.nodes``, of the node that it continues (None: the prompt); ``score`` is what it
    was ranked by: the sum of log-probabilities so far, including penalties of rules and groups.
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
    """All continuations that a search considered for one prompt, in the order of the steps."""

    nodes: list[Node] = field(default_factory=list)

    def add(self, node: Node) -> int:
        """Add a node and return its index."""
        self.nodes.append(node)
        return len(self.nodes) - 1


@dataclass(frozen=True)
class GenerationOutput:
    """One generated text as tokens.

    ``log_probs`` are the model's own, before temperature, penalties and filters. ``score`` is their sum or, for a beam,
    the final score that beams are ranked by: with rules applied, and divided by the length penalty.
    """

    ids: list[int]  # the new tokens, including the end token
    log_probs: list[float]
    score: float
    ended: Ended
    alternatives: list[list[Alternative]] = field(
        default_factory=list
    )  # per token, the most probable first, if requested
    record: Record | None = None
