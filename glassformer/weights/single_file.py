"""Llama and Qwen 2 models in single files of other programs (GGUF, llama2.c), in Hugging Face's names and layout.

A reader turns such a file into a ``SingleFileModel``: the content of a ``config.json``, and tensors under the names of
Hugging Face's Llama, each read on request, so that loading needs little more memory than the model.

Shapes: ``D`` hidden_size, ``Q`` all query heads or all key heads side by side.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from glassformer.config.checks import check_choice, check_divides, check_eps, check_layers, check_positive_integer

_CLASSES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}


@dataclass(frozen=True)
class SingleFileModel:
    """A model in the file of another program: its config, and a function that reads a tensor."""

    config: dict[str, object]  # the content of config.json
    shapes: dict[str, tuple[int, ...]]  # by Hugging Face's names
    read: Callable[[str], Tensor]  # a new tensor in float32, by its name in shapes
    metadata: dict[str, object]  # other key/values of the file
    file: Path


@dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """The config of a Llama model under the names of ``config.json``, and the shapes that follow from it."""

    model_type: str = "llama"  # "qwen2" is the same with biases on queries, keys and values
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    bos_token_id: int | None
    eos_token_id: int | list[int] | None
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    rope_scaling: dict[str, object] | None = None

    def __post_init__(self) -> None:
        check_choice("model_type", self.model_type, _CLASSES)
        check_layers(num_hidden_layers=self.num_hidden_layers)
        sizes = """hidden_size num_attention_heads num_key_value_heads intermediate_size vocab_size
            max_position_embeddings"""
        check_positive_integer(**{name: getattr(self, name) for name in sizes.split()})
        check_eps(self.rms_norm_eps)
        if self.head_dim is None:
            check_divides("num_attention_heads", self.num_attention_heads, "hidden_size", self.hidden_size)
        key_heads, heads = self.num_key_value_heads, self.num_attention_heads
        check_divides("num_key_value_heads", key_heads, "num_attention_heads", heads)
        if self.head_width % 2:
            raise ValueError(f"rotary positions rotate pairs: the head width must be even, got {self.head_width}.")

    @property
    def head_width(self) -> int:
        """The width of a head."""
        return self.head_dim or self.hidden_size // self.num_attention_heads

    def config(self) -> dict[str, object]:
        """Return the content of ``config.json``.

        BOS and EOS are null if the file has none, so that no default is used.
        """
        optional = ("head_dim", "rope_scaling")
        values = {name: value for name, value in asdict(self).items() if value is not None or name not in optional}
        return {"architectures": [_CLASSES[self.model_type]], **values, "hidden_act": "silu"}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor; ``lm_head`` only if it is not tied."""
        width, vocabulary = self.hidden_size, self.vocab_size
        shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
        for layer in range(self.num_hidden_layers):
            shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in self._layer_shapes().items()}
        shapes["model.norm.weight"] = (width,)
        if not self.tie_word_embeddings:
            shapes["lm_head.weight"] = (vocabulary, width)
        return shapes

    def half_split(self, name: str, stored: Tensor) -> Tensor:
        """Return tensor ``name`` with query and key rows reordered from interleaved rotary pairs to halves.

        The file has pairs (2i, 2i + 1), Hugging Face has (i, i + d/2). Other tensors are returned as they are.
        """
        heads = {"q_proj": self.num_attention_heads, "k_proj": self.num_key_value_heads}
        owner = name.split(".")[-2]
        return half_split_rows(stored, heads[owner]) if owner in heads else stored

    def _layer_shapes(self) -> dict[str, tuple[int, ...]]:
        width, inner = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_width, self.num_key_value_heads * self.head_width
        biases = {"q_proj": queries, "k_proj": keys, "v_proj": keys} if self.model_type == "qwen2" else {}
        return {
            "input_layernorm.weight": (width,),
            "self_attn.q_proj.weight": (queries, width),
            "self_attn.k_proj.weight": (keys, width),
            "self_attn.v_proj.weight": (keys, width),
            **{f"self_attn.{name}.bias": (size,) for name, size in biases.items()},
            "self_attn.o_proj.weight": (width, queries),
            "post_attention_layernorm.weight": (width,),
            "mlp.gate_proj.weight": (inner, width),
            "mlp.up_proj.weight": (inner, width),
            "mlp.down_proj.weight": (width, inner),
        }


def half_split_rows(weight: Float[Tensor, "Q D"], heads: int) -> Float[Tensor, "Q D"]:
    """Return rows of a projection made for rotary pairs (2i, 2i + 1), reordered for pairs (i, i + d/2)."""
    return rearrange(weight, "(head pair two) width -> (head two pair) width", head=heads, two=2)
