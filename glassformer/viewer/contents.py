"""What one page shows: models, the folders of runs, and the text to begin with."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.hub import Loaded
from glassformer.training.checkpoint_folders import step_of
from glassformer.viewer.subject import Subject

RUNS = 16  # run folders inside one folder, the newest ones
TEXTS = 4  # to begin with
WORDS = 12  # of a text that the model wrote itself
CHARACTERS = 400
MARKED = re.compile(r"\[[^\[\]:]+: ([^\[\]]*)\]")  # [PER: Marie Curie], as samples of a tagger have it


@dataclass(frozen=True)
class Contents:
    """What one page shows.

    Args:
        subjects: the models.
        runs: folders of ``glassformer train``.
        state: what the page has chosen at first: ``text``, ``view``, ``kind``, ``layer``, ``heads`` …
    """

    subjects: Sequence[Subject] = ()
    runs: Sequence[Path] = ()
    state: dict[str, Any] | None = None

    def bootstrap(self) -> dict[str, Any]:
        """Return what the script of the page begins from."""
        return {
            "models": [subject.name for subject in self.subjects],
            "runs": [run.name for run in self.runs],
            "state": self.state or {},
        }


def open_contents(
    names: Sequence[str],
    load: Callable[[str], Loaded],
    *,
    max_tokens: int = 1024,
    state: dict[str, Any] | None = None,
) -> Contents:
    """Load what a page shows.

    Args:
        names: models as ``load`` takes them, run folders, or folders with run folders. A run that has no model yet is
            shown without one.
        load: loads a model.
        max_tokens: the longest input that is accepted.
        state: see ``Contents``. A page whose first name is a run opens *Learn*, unless this names a text or a view.
    """
    subjects: list[Subject] = []
    runs: list[Path] = []
    for name in names:
        found = run_folders(Path(name).expanduser())
        runs += [run for run in found if run not in runs]
        models = [model for run in found if (model := model_of(run)) is not None]
        where = name if not found else str(models[-1]) if models else None
        if where is not None:
            shown = (
                name if not found else f"{models[-1].parent.name}" if models[-1].name == "model" else models[-1].name
            )
            loaded = load(where)
            texts = run_texts(_run_of(models[-1]), loaded.tokenizer.special.get("mask")) if found else ()
            subjects.append(Subject(loaded, shown, max_tokens=max_tokens, texts=texts))
    begins_with_run = bool(names) and bool(run_folders(Path(names[0]).expanduser()))
    if begins_with_run and not {"text", "view"} & set(state or {}):
        state = {"view": "learn", **(state or {})}
    return Contents(tuple(subjects), tuple(runs), state)


def run_folders(path: Path) -> list[Path]:
    """Return the run folders that a path names: itself, or those inside it, oldest first; none if it names a model."""
    if _is_run(path):
        return [path]
    if not path.is_dir() or any(path.glob("*.safetensors")) or (path / "config.json").is_file():
        return []
    inside = [child for child in path.iterdir() if _is_run(child)]
    return sorted(inside, key=lambda run: (run / "recipe.yaml").stat().st_mtime)[-RUNS:]


def _is_run(path: Path) -> bool:
    return (path / "recipe.yaml").is_file()


def _run_of(model: Path) -> Path:
    """Return the run of a folder that ``model_of`` found."""
    return model.parent if model.name == "model" else model.parent.parent


def model_of(run: Path) -> Path | None:
    """Return the folder of a run's model, or of its newest checkpoint; None where there is neither yet."""
    if (run / "model").is_dir():
        return run / "model"
    checkpoints = [path for path in (run / "checkpoints").glob("step-*") if (path / "manifest.json").is_file()]
    return max(checkpoints, key=step_of, default=None)


# ---- texts to begin with


def run_texts(run: Path, mask: str | None) -> list[str]:
    """Return the texts of a run's last samples; none where it has no samples yet.

    ``mask``: the mask token, which takes the place of blanks.
    """
    newest = dict(_samples(run / "log.jsonl"))
    texts = [read_text(newest[number], mask) for number in sorted(newest)]
    return list(dict.fromkeys(filter(None, texts)))[:TEXTS]


def read_text(sample: str, mask: str | None) -> str:
    """Return what a sample was made from: its first line, or the beginning of a text that a language model wrote."""
    from glassformer.objectives.masking import BLANK

    if sample.startswith("→ "):  # the sentence of a tagger, with its tags
        text = MARKED.sub(r"\1", sample[2:].partition("\n")[0])
    elif "\n  " in sample.lstrip("\n"):  # the text, and what the model made of it in further lines
        text = sample.lstrip("\n").partition("\n")[0].partition(" | ")[0]
    else:
        line = next((line for line in sample.splitlines() if line.strip()), "")
        text = " ".join(line.split()[:WORDS])
    return (text if mask is None else text.replace(BLANK, mask)).strip()[:CHARACTERS]


def _samples(log: Path) -> Iterator[tuple[int, str]]:
    """Yield number and text of the samples of a log, as far as it can be read."""
    if not log.is_file():
        return
    with log.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if '"sample"' not in line:
                continue
            try:
                read = json.loads(line)
                yield int(read.get("number", 1)), str(read.get("text", ""))
            except (ValueError, AttributeError):  # half a line of a run that goes on, or another file
                return
