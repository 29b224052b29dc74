"""What the JSON files of a tokenizer's folder say: ``tokenizer.json``, and the small files that name special tokens."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from glassformer.text.pieces import TokenizerError
from glassformer.text.vocabularies import ROLES, Vocabulary, frame


@dataclass(frozen=True)
class Folder:
    """A folder, what its small JSON files say, and the special tokens they name."""

    path: Path
    options: Mapping[str, Any]  # tokenizer_config.json, and the further special tokens of special_tokens_map.json
    special: Mapping[str, AddedToken]  # one of ROLES -> the token
    added: Mapping[int, AddedToken]  # tokens with numbers of their own
    chat_template: str | None
    assumed: frozenset[str] = frozenset()  # roles that no file names, filled with what is usual

    def token(self, role: str) -> str:
        """The text of the token that plays a role."""
        return str(self.special[role].content)

    def vocabulary(self, backend: Tokenizer, known: int | None = None) -> Vocabulary:
        """The built tokenizer with the roles that its tokens play; ``known`` as in ``Vocabulary``, or as saved."""
        special = {role: self.token(role) for role in self.special if backend.token_to_id(self.token(role)) is not None}
        return Vocabulary(backend, special, self.chat_template, known or self.options.get("known_tokens"))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty where there is no file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise TokenizerError(f"{path} is not JSON ({error}); fetch the file again.") from error
    if not isinstance(found, dict):
        raise TokenizerError(f"{path} should hold a JSON object, found {type(found).__name__}; fetch the file again.")
    return found


def added_token(said: Any, **flags: bool) -> AddedToken:
    """A token as the files write it: its text alone, or an object with how it takes the spaces around it."""
    if isinstance(said, dict):
        names = ("lstrip", "rstrip", "single_word", "normalized")
        flags = {"special": True, **flags, **{name: bool(said[name]) for name in names if name in said}}
        return AddedToken(said["content"], **flags)
    return AddedToken(str(said), **{"special": True, "normalized": False, **flags})


def read_folder(path: Path) -> Folder:
    """Read the small files; all of them may be missing."""
    options = read_json(path / "tokenizer_config.json")
    named = read_json(path / "special_tokens_map.json")
    special: dict[str, AddedToken] = {}
    for role in ROLES:
        said = [found[f"{role}_token"] for found in (options, named) if found.get(f"{role}_token")]
        if said:  # the fuller of two equal statements, else the first
            special[role] = added_token(next((one for one in said if isinstance(one, dict)), said[0]))
    added = {int(i): added_token(text) for text, i in read_json(path / "added_tokens.json").items()}
    for i, token in options.get("added_tokens_decoder", {}).items():
        added[int(i)] = added_token(token, special=bool(token.get("special", True)))
    options.setdefault("additional_special_tokens", named.get("additional_special_tokens"))
    template: Any = options.get("chat_template")
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if (path / "chat_template.jinja").exists():
        template = (path / "chat_template.jinja").read_text(encoding="utf-8")
    return Folder(path, options, special, added, template)


def read_complete(path: Path, folder: Folder) -> Vocabulary:
    """``tokenizer.json``; the files beside it only name roles, and say whether BOS and EOS are put around a text."""
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
        _obey(backend, folder, flags)
    return folder.vocabulary(backend)


def _check_merges(path: Path) -> None:
    """The library cuts the prefix off the second half of every merge unseen: elsewhere in a character it aborts."""
    if not re.search(rb'"continuing_subword_prefix"\s*:\s*"', path.read_bytes()):
        return  # of large files only the few with such a prefix are read twice
    model = read_json(path).get("model")
    prefix, merges = (model.get("continuing_subword_prefix"), model.get("merges")) if model else (None, None)
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        second = merge.split(" ")[-1] if isinstance(merge, str) else merge[-1]
        if not str(second).startswith(prefix):
            raise TokenizerError(
                f"{path} has the merge {merge!r}, whose second half does not start with the "
                f"continuing_subword_prefix {prefix!r}; fetch the file again."
            )


def _obey(backend: Tokenizer, folder: Folder, flags: Mapping[str, bool | None]) -> None:
    """``add_bos_token`` and ``add_eos_token`` overrule the frame in tokenizer.json, as they do in transformers."""
    wanted = {role: [folder.token(role)] if flag and role in folder.special else [] for role, flag in flags.items()}
    probe = backend.encode("a", add_special_tokens=True)
    framed = [token for token, extra in zip(probe.tokens, probe.special_tokens_mask, strict=True) if extra]
    if framed != wanted["bos"] + wanted["eos"]:
        frame(backend, start=wanted["bos"], end=wanted["eos"])


def add_tokens(backend: Tokenizer, folder: Folder) -> None:
    """Give the folder's own tokens their numbers, and make those with a role special wherever they are in text."""
    for number, token in sorted(folder.added.items()):
        backend.add_tokens([token])
        if (got := backend.token_to_id(token.content)) != number:
            raise TokenizerError(
                f"{folder.path} says that the added token {token.content!r} is number {number}; after the vocabulary "
                f"comes number {got}. The vocabulary and the added tokens are not of the same model."
            )
    known = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    for role, token in folder.special.items():
        # A token that is only usual is not added to a vocabulary without it: the model has no embedding for it.
        wanted = role not in folder.assumed or backend.token_to_id(token.content) is not None
        if wanted and token.content not in known:
            backend.add_special_tokens([token])
    further = [folder.options.get(f"{name}_special_tokens") or () for name in ("additional", "extra")]
    more = [token for said in further for token in (said.values() if isinstance(said, Mapping) else said)]
    backend.add_special_tokens([token for token in map(added_token, more) if token.content not in known])
