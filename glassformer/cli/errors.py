"""Errors as a user of the program meets them: one paragraph, exit code 2, no traceback; 130 where the user ends it.

The library speaks of arguments (``beam_size=5``) and counts from 0; the program has options (``--beam-size 5``) and
counts from 1. What turns the one into the other is here alone. A ``SettingError`` keeps its settings as data; in other
errors they are found by their names.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from glassformer.config.checks import Setting, SettingError

# Options by the library's names: those whose name can be nothing else, then words that are options only before a "=".
NAMES = (
    "max_new_tokens", "min_new_tokens", "beam_size", "top_beams", "length_penalty", "length_rule", "early_stopping",
    "beam_groups", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "no_repeat_ngram", "bad_words",
    "logit_bias", "forced_first", "forced_last", "contrastive_alpha", "top_alternatives", "batch_size", "allow_pickle",
    "check_finite", "ignore_keys", "keep_special", "max_answer_tokens", "min_frequency",
)  # fmt: skip
WORDS = (
    "temperature", "samples", "seed", "stop", "eos", "suppress", "diversity", "path", "chunk", "draft", "truncate",
    "blank", "several", "window", "stride", "top", "overlap", "pool", "normalise", "strict", "head", "dtype", "device",
    "to", "source", "target", "record", "on_bad_row",
)  # fmt: skip
MARKED = ("lineage", "fresh", "tokenizer_kind")  # options where a SettingError names them
SPELT = {"bad_words": "--bad-word", "source": "--from", "target": "--to"}
VALUES = {"early_stopping": {"True": "yes", "False": "no"}}
# Whole phrases of errors that are no SettingError yet.
PHRASES = (
    (r"Task\(([^)]*)\)", r"--prefix \1"),
    (r"^vocab_size (?=must be at least \d+ here)", "tokenizer.size "),
    (r"Raise the budget or longest=, or say too_long=.*", "Raise batch.tokens, or lower batch.length."),
    (r"\bsay quoted=True\b", "say data.quoted=true"),
    (r"\bsay quoted=False\b", "say data.quoted=false"),
    (r"\badd it to labels=", "add it to data.columns.labels"),
    (r'^marker= goes with documents="marker"; got documents=(.*), marker=', r"data.marker goes with "
     r"data.documents=marker; got data.documents=\1, data.marker="),
    (r"^separator must be one character", "data.separator must be one character"),
    (r"; say split=, got ", "; data.split says "),
)  # fmt: skip
# Types as a recipe writes them.
TYPES = {
    "str": "a text", "int": "a whole number", "float": "a number", "bool": "true or false", "None": "null",
    "tuple": "a list such as [a, b]", "dict": "a table such as {a: b}", "Aligned": "two files, source and target",
}  # fmt: skip
_GIVEN = re.compile(
    rf"(?<![\w'\"./=-])({'|'.join((*NAMES, *WORDS))})=('[^']*'|\"[^\"]*\"|-?\d+(?:\.\d+)?(?:e-?\d+)?|\w+)?"
)
_NAMED = re.compile(rf"(?<![\w'\"./=-])({'|'.join(NAMES)})(?!\w)")
_SUBJECT = re.compile(rf"^({'|'.join(WORDS)})(?= must )")
_NO_GPU = re.compile(r"no NVIDIA driver|No CUDA GPUs|not compiled with CUDA|invalid device ordinal")
# Only as our messages say it: "text 3.jsonl" is a file.
_COUNTED = re.compile(r"(?<![^ ])(text|prompt|question|source) (\d+)(?=,| (?:must|has|holds|gives|does|is|would)\b)")
_FACTS = re.compile(r"\ba fact of \S+ must be one of ")  # a list of keys, which are no options
_TYPED = re.compile(rf"(?<= must be )(?:{'|'.join(TYPES)})(?: or (?:{'|'.join(TYPES)}))*(?=, got )")


class InputError(ValueError):
    """An error in the program's own words."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn what is wrong with the user's input into a paragraph on standard error; real faults stay tracebacks."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output went away: not an input's fault
        raise
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except (ValueError, TypeError, IndexError, OSError, ImportError, MemoryError, FloatingPointError) as error:
        _end(in_words(error), error)
    except (RuntimeError, AssertionError) as error:
        said = _from_outside(error)
        if said is None:
            raise
        _end(said, error)


def _from_outside(error: BaseException) -> str | None:
    """What memory, devices and other processes did to this one, or None for a fault; types are known by their names,
    so that nothing is imported for it."""
    kind, first = type(error).__name__, str(error).partition("\n")[0]
    if kind == "OutOfMemoryError" or "can't allocate memory" in str(error):
        return "there is not enough memory; take a smaller --batch-size, a shorter text or --dtype bfloat16."
    if kind in ("LostProcessError", "FailedElsewhereError"):
        return in_words(error)
    if _NO_GPU.search(first):
        return f"{first.rstrip('.')}; take the CPU: --device cpu, or run.device=cpu for a recipe."
    return None


def in_words(error: BaseException, before: int = 0) -> str:
    """What an error says, with the program's options and numbers; ``before``: texts that came before those counted."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and error.filename is not None:
        return f"{_text(error.filename)}: {_reason(error)}."
    if isinstance(error, SettingError) and error.values:
        return _count_from_one(error.spell(_spell), before)
    said = str(error) or type(error).__name__
    if _FACTS.search(said):
        return said
    for pattern, remedy in PHRASES:
        said = re.sub(pattern, remedy, said)
    said = _TYPED.sub(lambda found: " or ".join(TYPES[name] for name in found[0].split(" or ")), said)
    said = _GIVEN.sub(_with_value, said)
    said = _NAMED.sub(lambda found: option(found[1]), said)
    said = _SUBJECT.sub(lambda found: option(found[1]), said)
    return _count_from_one(said, before)


def _count_from_one(text: str, before: int) -> str:
    return _COUNTED.sub(lambda found: f"{found[1]} {int(found[2]) + before + 1}", text)


@contextmanager
def counting(before: int) -> Iterator[None]:
    """Let errors about texts that are handed on in parts have the numbers of the input."""
    try:
        yield
    except (ValueError, TypeError, IndexError) as error:
        raise InputError(in_words(error, before)) from error


def option(name: str) -> str:
    """An option as the program spells it, by the library's name."""
    return SPELT.get(name, "--" + name.replace("_", "-"))


def _spell(setting: Setting) -> str:
    """A setting as an option; names that are no option stay as they are."""
    name, value = setting.outside or setting.name, setting.value
    if name not in (*NAMES, *WORDS, *MARKED):
        return str(setting)
    if value is ... or value is None:
        return option(name)
    text = " ".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return _option_with(name, text)


def _with_value(found: re.Match[str]) -> str:
    return _option_with(found[1], (found[2] or "").strip("'\""))


def _option_with(name: str, value: str) -> str:
    value = VALUES.get(name, {}).get(value, value)
    return option(name) if value in ("", "None", "True") else f"{option(name)} {value}"


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "there is no such file"
    if isinstance(error, IsADirectoryError):
        return "this is a folder, not a file"
    if isinstance(error, PermissionError):
        return "permission is denied"
    return str(error.strerror or type(error).__name__).lower()


def _text(name: str | bytes | int) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


def _end(said: str, error: BaseException) -> None:
    typer.echo(f"error: {said}", err=True)
    raise typer.Exit(2) from error
