"""The special tokens of a vocabulary that is to be trained: their roles, their numbers, and the frame around a text."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from glassformer.config.checks import check_choice
from glassformer.text.vocabularies import ROLES


@dataclass(frozen=True, kw_only=True)
class Special:
    """Which special tokens there are and what is put around a text.

    A token may play several roles. ``first`` lists the tokens with roles and the further ones in the order of their
    numbers; those of ``last`` take the highest numbers of the vocabulary. A text becomes ``start A end``, a pair
    ``start A between B end``.
    """

    roles: Mapping[str, str] = field(default_factory=dict)  # bos, eos, unk, sep, pad, cls, mask -> the token
    further: tuple[str, ...] = ()  # languages, control codes
    last: tuple[str, ...] = ()  # with the highest numbers, in this order
    start: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    second: int = 0  # the segment of a pair's second text: 1 for models that tell the two apart

    def __post_init__(self) -> None:
        for role in self.roles:
            check_choice("a special token's role", role, ROLES)
        tokens = [*dict.fromkeys(self.roles.values()), *self.further, *self.last]
        for number, token in enumerate(tokens):
            if len(token) < 2 or token != token.strip():
                raise ValueError(
                    f"the special token {token!r} cannot be told from text: it needs two letters at least, and no "
                    "white space at its ends; <|name|> is a usual form."
                )
            if token in tokens[:number]:
                raise ValueError(f"the special token {token!r} is there twice; name it once.")
        if strangers := sorted({*self.start, *self.between, *self.end} - {*tokens}):
            raise ValueError(f"a text cannot be framed by {strangers[0]!r}, which is not one of the special tokens.")
        if self.second not in (0, 1):
            raise ValueError(f"second, the segment of a pair's second text, must be 0 or 1; got {self.second}.")

    @property
    def first(self) -> tuple[str, ...]:
        """The tokens with a role, each once, then the further ones."""
        return (*dict.fromkeys(self.roles.values()), *self.further)

    @property
    def tokens(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.first, *self.last)

    def with_further(self, *tokens: str) -> "Special":
        """The same with more tokens, such as ``__en__``."""
        return replace(self, further=(*self.further, *tokens))

    def with_unknown(self) -> "Special":
        """The same with a token for what the vocabulary cannot write, if there is none yet."""
        return self if "unk" in self.roles else replace(self, roles={**self.roles, "unk": "<unk>"})


def sentinels(count: int = 100) -> tuple[str, ...]:
    """``<extra_id_…>``, the highest number first, so that as ``Special.last`` ``<extra_id_0>`` is the last of all."""
    return tuple(f"<extra_id_{number}>" for number in reversed(range(count)))


_BERT = Special(
    roles={"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    start=("[CLS]",),
    between=("[SEP]",),
    end=("[SEP]",),
    second=1,
)
_ROBERTA = Special(
    roles={
        "bos": "<s>", "cls": "<s>", "pad": "<pad>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>",
    },
    start=("<s>",),
    between=("</s>", "</s>"),
    end=("</s>",),
)  # fmt: skip
_T5 = Special(roles={"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, last=sentinels(), between=("</s>",), end=("</s>",))
_TRANSLATION = Special(
    roles={"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}, between=("</s>",), end=("</s>",)
)
# What well-known models do; each goes with any kind of pieces.
STYLES: Mapping[str, Special] = MappingProxyType(
    {
        "gpt": Special(roles={"bos": "<|endoftext|>", "eos": "<|endoftext|>"}),
        "bert": _BERT,
        "roberta": _ROBERTA,
        "t5": _T5,
        "bart": _ROBERTA,
        "translation": _TRANSLATION,
    }
)


def style(name: str) -> Special:
    """One of STYLES by name."""
    check_choice("style", name, STYLES)
    return STYLES[name]
