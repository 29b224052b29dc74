"""All cases of all lineages: the modules ``cases_*`` of this folder."""

import re
from importlib import import_module
from pathlib import Path

from _pytest.mark import ParameterSet

from tests.helpers import some_at_once
from tests.parity.harness import Case

CASES: list[Case] = [
    case
    for path in sorted(Path(__file__).parent.glob("cases_*.py"))
    for case in import_module(f"tests.parity.{path.stem}").CASES
]


def lineage_of_case(case: Case) -> str:
    """The name of the lineage in the name of the reference's class."""
    return re.split("For|(With)?LMHead|(Encoder)?ModelConfig", case.architecture)[0]


def _answer(case: Case) -> str:
    return f"{case.architecture.removeprefix(lineage_of_case(case))} {case.answer}"


# The first of each lineage and the first of each kind of answer. `make parity` measures all of them in every type.
FIRST: set[str] = {
    case.id for kind in (lineage_of_case, _answer) for case in {kind(c): c for c in reversed(CASES)}.values()
}

# Those with the most different mechanisms: each position scheme, placement, pattern of attention and family is in it.
FEW: set[str] = {
    "bert-BertForMaskedLM", "deberta_v2-DebertaV2ForMaskedLM", "bigbird-BigBirdForMaskedLM", "xlm-XLMWithLMHeadModel",
    "gpt2-GPT2LMHeadModel", "gpt-neo-GPTNeoForCausalLM", "gpt-j-GPTJForCausalLM", "bloom-BloomForCausalLM",
    "llama-LlamaForCausalLM", "qwen3-Qwen3ForCausalLM", "t5-T5ForConditionalGeneration",
    "bart-BartForConditionalGeneration",
}  # fmt: skip
assert FEW <= FIRST


def a_few_of(cases: list[Case]) -> list[ParameterSet]:
    """The cases as parameters of a test: a few at once, the others with the long tests."""
    return some_at_once(cases, lambda case: case.id in FEW)


def one_of_each(cases: list[Case]) -> list[ParameterSet]:
    """The cases as parameters of a test: the first of each kind at once, the others with the long tests."""
    return some_at_once(cases, lambda case: case.id in FIRST)
