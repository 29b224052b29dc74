"""What the folder of a published model recommends for writing with it, joined with what the user asks for.

Recommendations stand in ``generation_config.json``, in older folders among the keys of ``config.json``. They are of two
kinds: *rules* (end tokens, forced and forbidden tokens …) hold whatever the search; the *kind of search* (draw, beams
and what belongs to them) holds unless the user chooses another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from glassformer.generation.settings import OF_BEAMS, GenerationSettings, published, settings
from glassformer.hub import Loaded
from glassformer.text.tokenizer_folder import read_json

DEFAULT_LENGTH = 64  # new tokens where nobody says how many
# The options that choose a kind of search, each with the kind.
CHOICES = {"contrastive_alpha": "contrastive", "beam_size": "beam", "temperature": "sample"}
# Recommendations that belong to a kind of search; all others are rules.
OF_THE_SEARCH = (
    *CHOICES,
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "samples",
    "top_beams",
    "length_penalty",
    "early_stopping",
    "beam_groups",
    "diversity",
)


@dataclass(frozen=True)
class Advice:
    """What a folder recommends. The two lengths count the prompt too, or an encoder-decoder's start token."""

    where: str = ""  # the file that says so
    options: Mapping[str, Any] = field(default_factory=dict)  # for ``settings``
    max_length: int | None = None
    min_length: int | None = None
    notes: tuple[str, ...] = ()


def advice(loaded: Loaded, task: Mapping[str, Any] | None = None) -> Advice:
    """What the folder of a model recommends; ``task`` is what its ``config.json`` says of one task, and goes first."""
    path, said = _read(loaded.folder)
    found = published({**said, **(task or {})})
    unknown = found.pop("unknown")
    notes = []
    if unknown:
        notes.append(f"{path.name} asks for {', '.join(unknown)}, which is not done here.")
    ends = loaded.config.tokens.eos
    if "eos" not in found and ends is not None:
        found["eos"] = ends if isinstance(ends, tuple) else (ends,)
    longest, shortest = found.pop("max_length", None), found.pop("min_length", None)
    return Advice(path.name, found, longest, shortest, tuple(notes))


def settings_for(
    loaded: Loaded,
    *,
    begun: int | None = None,
    default_length: int = DEFAULT_LENGTH,
    task: Mapping[str, Any] | None = None,
    advised: Advice | None = None,
    **options: Any,
) -> tuple[GenerationSettings, list[str]]:
    """The settings to write with, and notes on recommendations that are not followed.

    Args:
        loaded: a model with its folder.
        begun: tokens that a text begins with, which a recommended ``max_length`` counts: those of a decoder's prompt,
            or of an encoder-decoder's start. Unless given, none and one.
        default_length: new tokens where neither user nor folder says how many.
        task: recommendations for one task, as ``config.json`` writes them.
        advised: ``advice(loaded, task)``, for whoever has read it already.
        options: the user's; see ``settings.Settings``.
    """
    advised = advice(loaded, task) if advised is None else advised
    if begun is None:
        begun = 0 if loaded.config.encoder is None else 1
    kept, notes = _kept(advised, options)
    ends = loaded.config.longest if loaded.config.encoder is None else None
    lengths = _lengths(advised, begun, ends, default_length, options)
    if options.get("beam_size", kept.get("beam_size", 1)) == 1:  # what a folder says of beams, should there be any
        kept = {name: value for name, value in kept.items() if name not in OF_BEAMS}
    try:
        return settings(**{**kept, **lengths, **options}), [*advised.notes, *notes]
    except (TypeError, ValueError) as error:
        used = {name: value for name, value in kept.items() if name not in options and name != "eos"}
        if not used or not advised.where:
            raise
        said = ", ".join(f"{name}={value}" for name, value in used.items())
        raise type(error)(f"{error} ({advised.where} of the model recommends {said}.)") from error


def notes_for(loaded: Loaded, *, task: Mapping[str, Any] | None = None, **options: Any) -> list[str]:
    """The notes of ``settings_for`` alone, which are the same for all prompts."""
    advised = advice(loaded, task)
    return [*advised.notes, *_kept(advised, options)[1]]


def _read(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "generation_config.json"
    if not path.is_file():
        path = folder / "config.json"
    return path, read_json(path)


def _kept(advised: Advice, options: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The recommendations to follow, and a word on those that another kind of search makes void."""
    kind = _kind(advised.options)
    asked = _kind(options)
    refused = any(name in options and CHOICES[name] == kind for name in CHOICES)
    if asked == kind or (asked is None and not refused):
        return dict(advised.options), []
    void = [name for name in OF_THE_SEARCH if name in advised.options]
    kept = {name: value for name, value in advised.options.items() if name not in void}
    told = [f"{name}={advised.options[name]}" for name in void if name not in options]
    note = (
        f"{advised.where} recommends {', '.join(told)}; that is left aside, since another kind of search is asked for."
    )
    return kept, [note] if told else []


def _kind(options: Mapping[str, Any]) -> str | None:
    """The kind of search that options choose; None: they choose none."""
    usual = {name: getattr(GenerationSettings(), name) for name in CHOICES}
    chosen = [kind for name, kind in CHOICES.items() if options.get(name, usual[name]) != usual[name]]
    return chosen[0] if chosen else None


def _lengths(
    advised: Advice, begun: int, ends: int | None, default_length: int, options: Mapping[str, Any]
) -> dict[str, int]:
    """max_new_tokens and min_new_tokens as recommended, as far as the user leaves them open.

    ``ends``: where a decoder's positions end. A recommendation that reaches so far is the same for all prompts: as many
    tokens as fit.
    """
    found: dict[str, int] = {}
    most = options.get("max_new_tokens", advised.options.get("max_new_tokens"))
    if most is None and advised.max_length is None:
        most = default_length
    elif most is None and advised.max_length is not None:
        most = _most(advised, begun, ends)
    found["max_new_tokens"] = most
    fewest = advised.options.get("min_new_tokens")
    if fewest is None and advised.min_length is not None:
        fewest = max(0, advised.min_length - begun)
    if fewest is not None and isinstance(most, int):
        found["min_new_tokens"] = min(fewest, most)  # a user's shorter text outdoes a recommended minimum
    return found


def _most(advised: Advice, begun: int, ends: int | None) -> int:
    assert advised.max_length is not None
    if ends is not None and advised.max_length >= ends:
        return ends
    if advised.max_length <= begun:
        raise ValueError(
            f"{advised.where} of the model recommends texts of at most {advised.max_length} tokens (max_length), and "
            f"this one begins with {begun}; say max_new_tokens."
        )
    return advised.max_length - begun
