"""Read the JSON files of a tokenizer's folder: ``tokenizer.json``, and the small files that name special tokens."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from glassformer.text.pieces import TokenizerError
from glassformer.text.vocabularies import ROLES, Vocabulary, set_template


@dataclass(frozen=True)
class Folder:
    """A folder, the content of its small JSON files, and the special tokens that they name."""

    path: Path
    options: Mapping[str, Any]  # tokenizer_config.json, and the further special tokens of special_tokens_map.json
    special: Mapping[str, AddedToken]  # one of ROLES -> the token
    added: Mapping[int, AddedToken]  # further tokens by id
    chat_template: str | None
    assumed: frozenset[str] = frozenset()  # roles that no file names, with default tokens

    def token(self, role: str) -> str:
        """Return the token of a role."""
        return str(self.special[role].content)

    def vocabulary(self, backend: Tokenizer, known_tokens: int | None = None) -> Vocabulary:
        """Return the tokenizer with the roles of its tokens.

        ``known_tokens`` as in ``Vocabulary``, by default as saved.
        """
        special = {role: self.token(role) for role in self.special if backend.token_to_id(self.token(role)) is not None}
        return Vocabulary(backend, special, self.chat_template, known_tokens or self.options.get("known_tokens"))


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if there is no file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON ({error}); download the file again.") from error
    if not isinstance(content, dict):
        raise TokenizerError(
            f"{path} should hold a JSON object, found {type(content).__name__}; download the file again."
        )
    return content


def added_token(entry: Any, **flags: bool) -> AddedToken:
    """Return a token of a JSON file: a string, or an object with flags, such as how it treats the spaces around it."""
    if isinstance(entry, dict):
        names = ("lstrip", "rstrip", "single_word", "normalized")
        flags = {"special": True, **flags, **{name: bool(entry[name]) for name in names if name in entry}}
        return AddedToken(entry["content"], **flags)
    return AddedToken(str(entry), **{"special": True, "normalized": False, **flags})


def read_folder(path: Path) -> Folder:
    """Read the small files; all of them may be missing."""
    options = read_json(path / "tokenizer_config.json")
    token_map = read_json(path / "special_tokens_map.json")
    # Tokens with a role; an entry with flags takes precedence over a plain string.
    special: dict[str, AddedToken] = {}
    for role in ROLES:
        entries = [content[f"{role}_token"] for content in (options, token_map) if content.get(f"{role}_token")]
        if entries:
            special[role] = added_token(next((entry for entry in entries if isinstance(entry, dict)), entries[0]))
    # Further tokens with their ids, and those without.
    added = {int(i): added_token(text) for text, i in read_json(path / "added_tokens.json").items()}
    for i, token in options.get("added_tokens_decoder", {}).items():
        added[int(i)] = added_token(token, special=bool(token.get("special", True)))
    options.setdefault("additional_special_tokens", token_map.get("additional_special_tokens"))
    # The chat template: a file of its own, a string, or the default of several.
    template: Any = options.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (path / "chat_template.jinja").exists():
        template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return Folder(path, options, special, added, template)


def read_tokenizer_json(path: Path, folder: Folder) -> Vocabulary:
    """Read ``tokenizer.json``; the files beside it name roles, and whether BOS and EOS are added to a text."""
    _check_merges(path)
    try:
        backend = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises nothing narrower
        raise TokenizerError(
            f"{path} is not a tokenizer.json that this version of tokenizers reads: {error}"
        ) from error
    add_tokens(backend, folder)
    unk = getattr(backend.model, "unk_token", None)
    if unk and "unk" not in folder.special:
        folder = replace(folder, special={**folder.special, "unk": added_token(unk)})
    flags = {role: folder.options.get(f"add_{role}_token") for role in ("bos", "eos")}
    if "cls" not in folder.special and any(flag is not None for flag in flags.values()):
        _apply_bos_eos_flags(backend, folder, flags)
    return folder.vocabulary(backend)


def _check_merges(path: Path) -> None:
    """Raise if the second half of a merge lacks continuing_subword_prefix.

    The library strips the prefix without checking, and aborts the process if that splits a UTF-8 character.
    """
    if not re.search(rb'"continuing_subword_prefix"\s*:\s*"', path.read_bytes()):
        return  # read large files twice only if they have a prefix
    model = read_json(path).get("model")
    prefix, merges = (model.get("continuing_subword_prefix"), model.get("merges")) if model else (None, None)
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        second = merge.split(" ")[-1] if isinstance(merge, str) else merge[-1]
        if not str(second).startswith(prefix):
            raise TokenizerError(
                f"{path} has the merge {merge!r}, whose second half does not start with the "
                f"continuing_subword_prefix {prefix!r}; download the file again."
            )


def _apply_bos_eos_flags(backend: Tokenizer, folder: Folder, flags: Mapping[str, bool | None]) -> None:
    """``add_bos_token`` and ``add_eos_token`` override the post-processor of tokenizer.json, as in transformers."""
    tokens = {role: [folder.token(role)] if flag and role in folder.special else [] for role, flag in flags.items()}
    probe = backend.encode("a", add_special_tokens=True)
    framed = [token for token, extra in zip(probe.tokens, probe.special_tokens_mask, strict=True) if extra]
    if framed != tokens["bos"] + tokens["eos"]:
        set_template(backend, start=tokens["bos"], end=tokens["eos"])


def add_tokens(backend: Tokenizer, folder: Folder) -> None:
    """Add the folder's further tokens with their ids, and make those with a role special tokens."""
    for number, token in sorted(folder.added.items()):
        backend.add_tokens([token])
        if (actual := backend.token_to_id(token.content)) != number:
            raise TokenizerError(
                f"{folder.path}: the added token {token.content!r} should have the id {number}, but would get {actual}"
                ". The vocabulary and the added tokens come from different models."
            )
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for role, token in folder.special.items():
        # A default token is not added to a vocabulary without it: the model has no embedding for it.
        should_add = role not in folder.assumed or backend.token_to_id(token.content) is not None
        if should_add and token.content not in known:
            backend.add_special_tokens([token])
    further = [folder.options.get(f"{name}_special_tokens") or () for name in ("additional", "extra")]
    more = [token for entries in further for token in (entries.values() if isinstance(entries, Mapping) else entries)]
    backend.add_special_tokens([token for token in map(added_token, more) if token.content not in known])
