"""Configs for tests: one tiny model of each build by name, and random ones by their seed."""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any, get_args, get_type_hints

import torch

from glassformer.config import (
    Alibi,
    Attention,
    BlockSparse,
    BucketBias,
    Convolution,
    Disentangled,
    Embed,
    EmbeddingHead,
    FeedForward,
    Head,
    Init,
    InputPosition,
    LMHead,
    MaskDecoder,
    ModelConfig,
    Norm,
    PretrainingHead,
    Rotary,
    RotaryScaling,
    Stack,
    TaskHead,
    Tokens,
    buffers,
)
from glassformer.config.parts import ACTIVATION_NAMES, PLACEMENTS, Pool, Task
from glassformer.config.positions import (
    Pairing,
    PositionKind,
    ScalingKind,
    ScoreBias,
    SinusoidLayout,
    SparseSemantics,
)
from glassformer.models.transformer import Transformer
from tests.helpers import randomise

VOCAB, WIDTH, LONGEST = 31, 16, 24
RMS = Norm(kind="rms", eps=1e-6)
LEARNED = InputPosition(kind="learned", length=LONGEST)


def attention(**more: Any) -> Attention:
    return Attention(**{"heads": 4, "head_dim": 4, **more})


def stack(*, layers: int = 2, ffn: FeedForward | None = None, **more: Any) -> Stack:
    attends = more.pop("attention", attention())
    return Stack(layers=layers, attention=attends, ffn=ffn or FeedForward(hidden=20), **more)


def model(**more: Any) -> ModelConfig:
    return ModelConfig(**{"vocab": VOCAB, "width": WIDTH, **more})


def encoder_decoder(encoder: Stack, decoder: Stack | None = None, **more: Any) -> ModelConfig:
    decoder = replace(encoder if decoder is None else decoder, causal=True, cross=True)
    return model(encoder=encoder, decoder=decoder, **more)


def _disentangled(**more: Any) -> Stack:
    return stack(placement="post", final_norm=False, attention=attention(score_bias=Disentangled(**more)))


_POST = stack(placement="post", final_norm=False)
_T5 = stack(
    attention=attention(biases="", scale=1.0, score_bias=BucketBias(buckets=8, max_distance=12)),
    ffn=FeedForward(hidden=20, activation="gelu_tanh", gated=True, bias=False),
)

CONFIGS: dict[str, ModelConfig] = {
    "bert": model(
        encoder=_POST,
        embed=Embed(segments=2, position=LEARNED, norm=True),
        head=PretrainingHead(
            lm=LMHead(transform="gelu", bias=True),
            pair=TaskHead(task="pair", labels=("yes", "no"), pool="first", hidden="tanh"),
        ),
    ),
    "roberta": model(
        encoder=_POST,
        embed=Embed(position=InputPosition(kind="learned", length=LONGEST, offset=2), norm=True),
        head=LMHead(transform="gelu", bias=True),
    ),
    "albert": model(
        encoder=stack(layers=4, unique_layers=2, placement="post", final_norm=False),
        embed=Embed(width=6, segments=2, position=LEARNED, norm=True),
        head=LMHead(transform="gelu", bias=True),
    ),
    "deberta": model(
        encoder=_disentangled(span=4),
        embed=Embed(norm=True),
        head=LMHead(transform="gelu", bias=True, mask_decoder=MaskDecoder(length=LONGEST)),
    ),
    "deberta_v2": model(
        encoder=stack(
            placement="post",
            final_norm=False,
            attention=attention(
                score_bias=Disentangled(span=6, buckets=6, max_distance=12, shared_projections=True, norm_table=True)
            ),
            convolution=Convolution(kernel=3, groups=2),
        ),
        embed=Embed(norm=True),
        head=TaskHead(task="classify", labels=("a", "b", "c"), pool="mean"),
    ),
    "gpt2": model(decoder=stack(causal=True), embed=Embed(position=LEARNED), head=LMHead()),
    "gpt_neo": model(
        decoder=stack(layers=3, causal=True, attention=attention(biases="o", scale=1.0, windows=(None, 3))),
        embed=Embed(position=LEARNED),
        head=LMHead(),
    ),
    "bloom": model(
        decoder=stack(causal=True, attention=attention(heads=6, head_dim=2, score_bias=Alibi())),
        embed=Embed(norm=True),
        head=LMHead(),
    ),
    "alibi_pair": encoder_decoder(stack(attention=attention(kv_heads=2, score_bias=Alibi())), head=LMHead()),
    "gptj": model(
        decoder=stack(
            causal=True,
            placement="parallel",
            attention=attention(biases="", rotary=Rotary(dim=2, length=LONGEST, pairing="interleaved")),
        ),
        head=LMHead(tied=False, bias=True),
    ),
    "gpt_neox": model(
        decoder=stack(
            causal=True, placement="parallel_norms", attention=attention(rotary=Rotary(dim=2, length=LONGEST))
        ),
        head=LMHead(tied=False),
    ),
    "llama": model(
        norm=RMS,
        decoder=stack(
            causal=True,
            attention=attention(kv_heads=2, biases="", rotary=Rotary(dim=4, length=LONGEST)),
            ffn=FeedForward(hidden=24, activation="silu", gated=True, bias=False),
        ),
        head=LMHead(tied=False),
    ),
    "qwen3": model(
        norm=RMS,
        decoder=stack(
            causal=True,
            attention=attention(head_dim=6, kv_heads=2, biases="", qk_norm=RMS, rotary=Rotary(dim=6, length=LONGEST)),
            ffn=FeedForward(hidden=24, activation="silu", gated=True, bias=False),
        ),
        head=LMHead(),
    ),
    "t5": encoder_decoder(_T5, norm=RMS, head=LMHead(scale=0.25)),
    "bart": encoder_decoder(
        _POST,
        embed=Embed(position=InputPosition(kind="learned", length=LONGEST, offset=2), norm=True, scale=4.0),
        head=LMHead(bias=True, bias_trained=False),
    ),
    "2017": encoder_decoder(
        _POST,
        embed=Embed(position=InputPosition(kind="sinusoidal", length=LONGEST), scale=4.0),
        head=LMHead(),
    ),
}
DECODERS = tuple(name for name, config in CONFIGS.items() if config.decoder is not None)
ENCODERS = tuple(name for name, config in CONFIGS.items() if config.encoder is not None)
PAIRS = tuple(name for name in DECODERS if name in ENCODERS)
ONE_OF_EACH = ("bert", "llama", "t5")


def built(config: str | ModelConfig, dtype: torch.dtype = torch.float64, seed: int = 0) -> Transformer:
    """A model in evaluation mode with every parameter, and every stored buffer, drawn anew."""
    made = Transformer(CONFIGS[config] if isinstance(config, str) else config)
    randomise(made, seed)
    for name in buffers(made.config):
        made.get_buffer(name).normal_(0, 0.15, generator=torch.Generator().manual_seed(seed + 1))
    return made.to(dtype).eval()


def tokens(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def at_token(answer: Any) -> torch.Tensor:
    """The answers per token, where a head gives several."""
    return answer[0] if isinstance(answer, tuple) else answer


# ---- random configs


class _Draw(Random):
    """Draws of one seed. (Not a strategy of hypothesis: the type checks of the facts draw numbers themselves.)"""

    def flag(self) -> bool:
        return self.random() < 0.5

    def share(self) -> float:
        return self.choice([0.0, 0.1, 0.5])

    def few(self, low: int, high: int) -> int:
        return self.randint(low, high)


def _disentangled_bias(r: _Draw) -> Disentangled:
    return Disentangled(
        span=r.few(1, 5),
        terms=r.choice([("c2p", "p2c"), ("p2c",), ("c2p",), ()]),
        buckets=r.choice([0, 4, 6]),
        max_distance=r.few(8, 20),
        shared_projections=r.flag(),
        key_bias=r.flag(),
        norm_table=r.flag(),
        dropout=r.share(),
    )


SCORE_BIASES: dict[type, Callable[[_Draw], ScoreBias]] = {
    BucketBias: lambda r: BucketBias(buckets=r.few(4, 9), max_distance=r.few(8, 20)),
    Alibi: lambda _: Alibi(),
    Disentangled: _disentangled_bias,
}
assert set(SCORE_BIASES) == set(get_args(ScoreBias)), "each kind of score_bias needs a draw, so that tests cover it"


def score_biases() -> list[ScoreBias]:
    """One of each kind."""
    return [draw(_Draw(0)) for draw in SCORE_BIASES.values()]


def _score_bias(r: _Draw, causal: bool) -> ScoreBias | None:
    kinds = [None, *(kind for kind in SCORE_BIASES if not (causal and kind is Disentangled))]
    kind = r.choice(kinds)
    return None if kind is None else SCORE_BIASES[kind](r)


def _rotary(r: _Draw, head_dim: int) -> Rotary:
    scaling = RotaryScaling(
        kind=r.choice(get_args(ScalingKind)),
        factor=r.uniform(1, 8),
        original_length=r.few(8, 64),
        attention=r.uniform(0.5, 1.5),
    )
    return Rotary(
        dim=r.choice(range(2, head_dim + 1, 2)),
        length=r.few(16, 64),
        theta=r.uniform(10, 1e6),
        pairing=r.choice(get_args(Pairing)),
        scaling=scaling if r.flag() else None,
    )


def _norm(r: _Draw) -> Norm:
    kind = r.choice(get_args(get_type_hints(Norm)["kind"]))
    return Norm(kind=kind, eps=r.choice([1e-12, 1e-5]), bias=r.flag(), offset=kind == "rms" and r.flag())


def _attention(r: _Draw, causal: bool) -> Attention:
    heads, head_dim, bias = r.choice([1, 2, 4]), r.choice([2, 4, 6]), _score_bias(r, causal)
    sparse = not causal and bias is None and r.flag()
    windows = [r.choice([None, r.few(1, 9)]) for _ in range(r.few(1, 3))]
    if sparse:
        windows.append(BlockSparse(block=2, random=r.few(0, 2), semantics=r.choice(get_args(SparseSemantics))))
    qk_norm = _norm(r)
    grouped = not sparse and not isinstance(bias, Disentangled) and r.flag()
    return Attention(
        heads=heads,
        head_dim=head_dim,
        kv_heads=r.choice([n for n in (1, 2, 4) if heads % n == 0]) if grouped else None,
        biases="".join(letter for letter in "qkvo" if r.flag()),
        scale=r.uniform(0.1, 2) if r.flag() else None,
        qk_norm=qk_norm if r.flag() and not isinstance(bias, Disentangled) else None,
        rotary=_rotary(r, head_dim) if r.flag() else None,
        score_bias=bias,
        windows=tuple(windows),
        dropout=r.share(),
    )


def _stack(r: _Draw, *, causal: bool, cross: bool) -> Stack:
    layers = r.few(1, 4)
    convolution = Convolution(
        kernel=r.choice([1, 3, 5]), groups=r.choice([1, 2, 4]), activation=r.choice(ACTIVATION_NAMES), dropout=r.share()
    )
    return Stack(
        layers=layers,
        attention=_attention(r, causal),
        ffn=FeedForward(
            hidden=r.few(1, 9), activation=r.choice(ACTIVATION_NAMES), gated=r.flag(), bias=r.flag(), dropout=r.share()
        ),
        causal=causal,
        cross=cross,
        placement=r.choice(PLACEMENTS),
        final_norm=r.flag(),
        unique_layers=r.few(1, layers) if r.flag() else None,
        dropout=r.share(),
        final_dropout=r.share(),
        convolution=convolution if not causal and r.flag() else None,
    )


def _head(r: _Draw, *, is_encoder: bool, factorised: bool) -> Head | None:
    tied, bias = r.flag(), r.flag()
    lm = LMHead(
        transform=r.choice(ACTIVATION_NAMES) if r.flag() or (tied and factorised) else None,
        bias=bias,
        bias_trained=r.flag() or not bias,
        scale=r.uniform(0.1, 2),
        tied=tied,
        mask_decoder=MaskDecoder(length=r.few(12, 20), steps=r.few(1, 3)) if is_encoder and r.flag() else None,
    )
    kind = r.choice(get_args(Task))
    pooled = {"classify": True, "pair": True, "pool": r.flag()}.get(kind, False)
    task = TaskHead(
        task=kind,
        labels=tuple(r.choice(["", "a", "é", "no"]) for _ in range(r.few(0, 4))),
        pool=r.choice(get_args(Pool)) if pooled else None,
        hidden=r.choice([None, *ACTIVATION_NAMES]),
        bias=r.flag(),
        dropout=r.share(),
        input_dropout=r.share(),
    )
    embedding = EmbeddingHead(pool=r.choice(get_args(Pool)), normalise=r.flag())
    pair = replace(task, task="pair", pool=task.pool or "first")
    return r.choice([None, lm, task, embedding, PretrainingHead(lm=lm, pair=pair)])


def random_config(seed: int) -> ModelConfig:
    """The config with this number: each fact that a Transformer can have takes part in some of them."""
    r = _Draw(seed)
    family, width = r.choice(["encoder", "decoder", "encoder-decoder"]), r.choice([4, 8, 12])
    position = InputPosition(
        kind=r.choice(get_args(PositionKind)),
        length=r.few(12, 20),
        offset=r.few(0, 3),
        layout=r.choice(get_args(SinusoidLayout)),
    )
    embed = Embed(
        width=r.few(1, 9) if r.flag() else None,
        scale=r.uniform(0.5, 4),
        scale_in_dtype=r.flag(),
        segments=r.few(0, 3),
        languages=r.few(0, 3),
        position=position if r.flag() else None,
        norm=r.flag(),
        dropout=r.share(),
    )
    return ModelConfig(
        vocab=r.few(1, 40),
        width=width,
        norm=_norm(r),
        embed=embed,
        encoder=None if family == "decoder" else _stack(r, causal=False, cross=False),
        decoder=None if family == "encoder" else _stack(r, causal=True, cross=family == "encoder-decoder"),
        head=_head(r, is_encoder=family == "encoder", factorised=embed.width not in (None, width)),
        tokens=Tokens(bos=r.choice([None, 3]), eos=r.choice([None, 0, (1, 2)]), pad=r.choice([None, 1])),
        init=Init(std=r.uniform(0.001, 1), residual_scaling=r.flag()) if r.flag() else Init(),
    )
