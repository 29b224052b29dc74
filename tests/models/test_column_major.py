"""Column-major weights: the same model, the same files; only the order in memory, and rounding, may differ."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer import hub
from glassformer.cli.options import LoadingOptions
from glassformer.models.column_major import decodes_faster_column_major, to_column_major
from glassformer.models.quantize import quantize
from glassformer.models.transformer import Transformer
from glassformer.nn.linear import Linear
from tests.configs import CONFIGS
from tests.helpers import randomise, relative_difference, types_unchecked

BOUND = 1e-5  # float32: another order of summation


def built(name: str) -> Transformer:
    model = Transformer(CONFIGS[name]).eval()
    randomise(model)
    return model


def outputs(model: Transformer) -> torch.Tensor:
    ids = torch.randint(1, model.config.vocab, (2, 7), generator=torch.Generator().manual_seed(1))
    target = {"target": ids} if model.family == "encoder-decoder" else {}
    output = model(ids, **target)
    return output[0] if isinstance(output, tuple) else output


def is_column_major(weight: torch.Tensor) -> bool:
    return weight.t().is_contiguous()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_model_keeps_its_weights_and_outputs(name: str) -> None:
    model = built(name)
    with torch.no_grad():
        expected, parameters = outputs(model), dict(model.named_parameters())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_column_major(model)
    # The same parameters with the same values; an optimizer that holds them keeps them.
    assert all(model.get_parameter(name) is parameter for name, parameter in parameters.items())
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    with torch.no_grad():
        assert relative_difference(outputs(model), expected) < BOUND
        assert relative_difference(outputs(deepcopy(model)), expected) < BOUND
    # Every matrix that a decoding step multiplies, and no other.
    decoder = [] if model.decoder is None else [m.weight for m in model.decoder.modules() if isinstance(m, Linear)]
    encoder = [] if model.encoder is None else [m.weight for m in model.encoder.modules() if isinstance(m, Linear)]
    assert all(is_column_major(weight) for weight in decoder)
    assert all(weight.is_contiguous() for weight in encoder)
    assert decodes_faster_column_major(model) == bool(decoder)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_the_matrix_of_the_head_is_column_major_tied_or_not(name: str) -> None:
    model = built(name)
    to_column_major(model)
    head = model.head.out.weight if model.head.out is not None else model.embed.token.weight
    assert is_column_major(head)


@pytest.mark.parametrize(("name", "to"), [("gpt2", "hf"), ("gpt2", "glassformer"), ("llama", "hf"), ("bart", "hf")])
def test_saved_files_are_the_same_to_the_byte(name: str, to: str, tmp_path: Path) -> None:
    model = built(name)
    hub.save(model, tmp_path / "rows", to=to, lineage=name)
    to_column_major(model)
    hub.save(model, tmp_path / "columns", to=to, lineage=name)
    for file in (tmp_path / "rows").iterdir():
        assert file.read_bytes() == (tmp_path / "columns" / file.name).read_bytes(), file.name


def test_gradients_are_those_of_row_major_weights() -> None:
    rows = built("gpt2")
    columns = deepcopy(rows)
    to_column_major(columns)
    for model in (rows, columns):
        outputs(model).square().mean().backward()
    for name, parameter in rows.named_parameters():
        gradient = columns.get_parameter(name).grad
        assert gradient.stride() == columns.get_parameter(name).stride()
        assert relative_difference(gradient, parameter.grad) < 10 * BOUND, name


def test_compiled_code_gives_the_same_outputs() -> None:
    model = built("gpt2")
    with torch.no_grad(), types_unchecked():  # compiled code cannot check them
        expected = outputs(model)
        to_column_major(model)
        ids = torch.randint(1, model.config.vocab, (2, 7), generator=torch.Generator().manual_seed(1))
        assert relative_difference(torch.compile(model, backend="aot_eager")(ids), expected) < BOUND


@pytest.mark.parametrize("options", [{}, {"column_major": False}])
def test_load_keeps_rows_unless_told_otherwise(options: dict[str, bool], tmp_path: Path) -> None:
    """A training run goes on to the bit after a restart: its weights must lie in memory as they did before."""
    hub.save(built("gpt2"), tmp_path)
    assert all(parameter.is_contiguous() for parameter in hub.load(tmp_path, **options).model.parameters())


def test_load_takes_the_option(tmp_path: Path) -> None:
    model = built("gpt2")
    hub.save(model, tmp_path)
    loaded = hub.load(tmp_path, column_major=True).model
    assert is_column_major(loaded.decoder.blocks[0].attention.q.weight)
    with torch.no_grad():
        assert relative_difference(outputs(loaded), outputs(model)) < BOUND


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_refused(dtype: torch.dtype, tmp_path: Path) -> None:
    """Their kernels are slower by it; in float16 more than ten times."""
    model = built("gpt2").to(dtype)
    assert not decodes_faster_column_major(model)
    with pytest.raises(ValueError, match=f"float32 weights on a CPU; these are {dtype!s} on cpu"):
        to_column_major(model)
    assert all(parameter.is_contiguous() for parameter in model.parameters())
    hub.save(model, tmp_path)
    with pytest.raises(ValueError, match="load the model with dtype=float32, or without column_major"):
        hub.load(tmp_path, column_major=True)


def test_int8_weights_are_refused() -> None:
    model = built("gpt2")
    quantize(model)
    assert not decodes_faster_column_major(model)
    with pytest.raises(ValueError, match="int8 weights have an order of their own"):
        to_column_major(model)


def test_the_program_generates_with_column_major_weights_where_they_are_faster() -> None:
    loading = LoadingOptions(start={})
    weight = "decoder.blocks.0.attention.q.weight"
    assert is_column_major(loading.load_to_generate("stories").model.get_parameter(weight))
    assert loading.load("stories").model.get_parameter(weight).is_contiguous()
    half = LoadingOptions(start={}, dtype="bfloat16").load_to_generate("stories")
    assert half.model.get_parameter(weight).is_contiguous()
    assert glassformer.generate(half, "Once", max_new_tokens=2).text is not None
    int8 = LoadingOptions(start={}, quantize="int8").load_to_generate("stories")
    assert glassformer.generate(int8, "Once", max_new_tokens=2).text is not None
