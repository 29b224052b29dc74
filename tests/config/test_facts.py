"""Configs: to JSON and back, refused where they are wrong, and true to the model that is built from them."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from math import prod

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glassformer import config as config_module
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
    change,
    count,
    from_dict,
    get_fact,
    leaves,
    merge,
    shapes,
    to_dict,
)
from glassformer.config.facts import for_json
from glassformer.models.transformer import Transformer
from tests.configs import CONFIGS, attention, model, random_config, stack
from tests.helpers import types_unchecked

SEEDS = st.integers(0, 10**6)
each_config = pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
CLASSES = [
    kind
    for kind in vars(config_module).values()
    if dataclasses.is_dataclass(kind) and kind is not config_module.EncoderConfig
]


# ---- to JSON and back


def through_json(config: ModelConfig) -> ModelConfig:
    return from_dict(ModelConfig, json.loads(json.dumps(to_dict(config))))


@given(seed=SEEDS)
@settings(max_examples=100)
def test_random_config_survives_json(seed):
    config = random_config(seed)
    again = through_json(config)
    assert again == config
    assert hash(again) == hash(config)  # a list where a tuple was would compare unequal or not hash
    assert [(path, type(value)) for path, value in leaves(again)] == [
        (path, type(value)) for path, value in leaves(config)
    ]


@each_config
def test_each_build_survives_json(config):
    assert through_json(config) == config


def test_a_config_is_plain_data():
    config = to_dict(CONFIGS["deberta"])

    def look_into(value):
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            return [look_into(inner) for inner in value.values()]
        if isinstance(value, list):
            return [look_into(inner) for inner in value]
        assert value is None or type(value) in (str, int, float, bool)
        return None

    look_into(config)


def test_a_part_says_its_type_only_where_there_are_several():
    config = to_dict(CONFIGS["bert"])
    assert config["head"]["type"] == "PretrainingHead"
    assert "type" not in config["head"]["lm"]
    assert "type" not in config["norm"]
    assert to_dict(CONFIGS["t5"])["decoder"]["attention"]["score_bias"]["type"] == "BucketBias"
    assert to_dict(CONFIGS["deberta"])["encoder"]["attention"]["score_bias"]["type"] == "Disentangled"
    assert to_dict(CONFIGS["bloom"])["decoder"]["attention"]["score_bias"] == {"type": "Alibi"}
    assert config["decoder"] is None


def test_unions_are_read_by_their_type():
    heads = {
        "LMHead": LMHead(scale=0.5),
        "TaskHead": TaskHead(task="tag", labels=("a", "b")),
        "EmbeddingHead": EmbeddingHead(pool="last"),
        "PretrainingHead": PretrainingHead(lm=LMHead(), pair=TaskHead(task="pair", pool="first")),
    }
    for name, head in heads.items():
        config = to_dict(model(encoder=stack(), head=head))
        assert config["head"]["type"] == name
        assert from_dict(ModelConfig, config).head == head


def test_windows_of_every_kind_survive():
    windows = (None, 3, BlockSparse(block=4, random=1, semantics="set", seed=2))
    config = model(encoder=stack(attention=attention(windows=windows)))
    assert through_json(config).encoder.attention.windows == windows


def test_missing_facts_take_their_defaults():
    config = from_dict(
        ModelConfig,
        {
            "vocab": 5,
            "width": 4,
            "encoder": {"layers": 1, "attention": {"heads": 1, "head_dim": 4}, "ffn": {"hidden": 3}},
        },
    )
    assert config == ModelConfig(
        vocab=5,
        width=4,
        encoder=Stack(layers=1, attention=Attention(heads=1, head_dim=4), ffn=FeedForward(hidden=3)),
    )


def test_integers_are_accepted_as_floats():
    config = from_dict(Embed, {"scale": 2})
    assert config.scale == 2.0
    assert type(config.scale) is float


# ---- what is refused

CONFIG = to_dict(CONFIGS["llama"]) | {"head": {"type": "LMHead", "tied": False}}


def with_fact(path: str, value: object) -> dict:
    config = json.loads(json.dumps(CONFIG))
    *way, last = path.split(".")
    inner = config
    for name in way:
        inner = inner[name]
    inner[last] = value
    return config


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("widht", r"a ModelConfig has no field .*'widht'.* Did you mean 'width'\?"),
        ("decoder.layer", r"decoder has no field .*'layer'.* Did you mean 'layers'\?"),
        ("decoder.attention.head_dims", r"decoder\.attention has no field .*'head_dims'.* Did you mean 'head_dim'\?"),
        ("decoder.attention.rotary.tetha", r"decoder\.attention\.rotary has no field 'tetha'.* Did you mean 'theta'\?"),
        ("head.tie", r"head has no field .*'tie'.* Did you mean 'tied'\?"),
        ("norm.type", r"norm has no field .*'type'"),
    ],
)
def test_unknown_facts_are_refused_by_path_with_the_nearest_name(path, says):
    with pytest.raises(ValueError, match=says):
        from_dict(ModelConfig, with_fact(path, 1))


@pytest.mark.parametrize("kind", ["LMHaed", "Norm", None, 3])
def test_unknown_types_are_refused(kind):
    config = with_fact("head", {"type": kind})
    with pytest.raises(ValueError, match=rf"head\.type must be one of .*LMHead.*TaskHead; got '{kind}'"):
        from_dict(ModelConfig, config)
    with pytest.raises(ValueError, match=r"head needs a key `type`: one of .*LMHead.*TaskHead"):
        from_dict(ModelConfig, with_fact("head", {}))


def test_missing_facts_are_named_with_their_path():
    with pytest.raises(ValueError, match=r"ModelConfig lacks vocab, width"):
        from_dict(ModelConfig, {})
    config = with_fact("decoder", {"layers": 2, "ffn": {"hidden": 3}})
    with pytest.raises(ValueError, match=r"decoder lacks attention"):
        from_dict(ModelConfig, config)
    with pytest.raises(ValueError, match=r"decoder\.ffn lacks hidden"):
        from_dict(ModelConfig, with_fact("decoder.ffn", {}))
    with pytest.raises(ValueError, match=r"head lacks task"):
        from_dict(ModelConfig, with_fact("head", {"type": "TaskHead"}))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("vocab", "30", r"vocab must be an int, got '30'"),
        ("vocab", 30.0, r"vocab must be an int, got 30\.0"),
        ("vocab", True, r"vocab must be an int, got True"),
        ("vocab", None, r"vocab must be an int, got None"),
        ("decoder.causal", 1, r"decoder\.causal must be a bool, got 1"),
        ("decoder.dropout", "0.1", r"decoder\.dropout must be a float, got '0\.1'"),
        ("decoder.dropout", False, r"decoder\.dropout must be a float, got False"),
        ("decoder.attention.kv_heads", "2", r"decoder\.attention\.kv_heads must be an int or None, got '2'"),
        ("decoder.attention.windows", 3, r"decoder\.attention\.windows must be .*, got 3"),
        ("decoder.attention.windows", ["3"], r"decoder\.attention\.windows must be an int.*, got '3'"),
        ("decoder.attention.rotary", 4, r"decoder\.attention\.rotary must be Rotary or None, got 4"),
        (
            "decoder.placement",
            3,
            r"decoder\.placement must be 'pre' or 'post' or .*'parallel_norms', got 3",
        ),
        ("norm", 3, r"norm must be Norm, got 3"),
        ("norm", [], r"norm must be Norm, got \[\]"),
        ("tokens.eos", ["x"], r"tokens\.eos must be an int, got 'x'"),
        ("tokens.eos", 1.5, r"tokens\.eos must be an int.*, got 1\.5"),
        ("head.transform", 3, r"head\.transform must be a str or None, got 3"),
    ],
)
def test_ill_typed_facts_are_named_with_their_path(path, value, says):
    with pytest.raises(TypeError, match=rf"^{says}"):
        from_dict(ModelConfig, with_fact(path, value))
    with pytest.raises(TypeError, match=rf"^{says}"):
        change(from_dict(ModelConfig, with_fact("vocab", 30)), path, value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("decoder.placement", "parallell", r"decoder\.placement must be one of .*'parallell'.*Did you mean 'parallel'"),
        ("norm.kind", "batch", r"norm\.kind must be one of layer, rms; got 'batch'"),
        ("head", {"type": "TaskHead", "task": "tag", "pool": "frist"}, r"head\.pool .*'frist'.*Did you mean 'first'"),
    ],
)
def test_a_word_that_is_none_of_those_known_is_refused_with_the_nearest(path, value, says):
    with pytest.raises(ValueError, match=says):
        from_dict(ModelConfig, with_fact(path, value))


def test_a_config_that_is_no_table():
    with types_unchecked(), pytest.raises(TypeError, match=r"ModelConfig must be a mapping, got 'x'"):
        from_dict(ModelConfig, "x")


def test_wrong_values_are_refused_on_reading_too():
    with pytest.raises(ValueError, match=r"kv_heads=3 does not divide heads=4"):
        from_dict(ModelConfig, with_fact("decoder.attention.kv_heads", 3))


# ---- every check teaches: it names the thing and the value

WRONG = [
    (lambda: Norm(kind="batch"), r"norm\.kind must be one of layer, rms; got 'batch'"),
    (lambda: Norm(offset=True), r"offset is for kind='rms'; got kind='layer'"),
    (lambda: Norm(eps=-1.0), r"eps must be .*-1\.0"),
    (lambda: Norm(eps=math.nan), r"eps must be .*nan"),
    (lambda: attention(heads=0), r"heads must be at least 1, got 0"),
    (lambda: attention(heads=2.0), r"heads must be an integer, got 2\.0"),
    (lambda: attention(head_dim=-4), r"head_dim must be at least 1, got -4"),
    (lambda: attention(kv_heads=3), r"kv_heads=3 does not divide heads=4; .*1, 2, 4"),
    (lambda: attention(kv_heads=0), r"kv_heads must be at least 1, got 0"),
    (lambda: attention(dropout=1.0), r"dropout must be .*1\.0"),
    (lambda: attention(dropout=math.nan), r"dropout must be .*nan"),
    (lambda: attention(biases="qx"), r"q, k, v and o.*'qx'"),
    (lambda: attention(biases="qq"), r"at most once; got 'qq'"),
    (lambda: attention(windows=()), r"windows needs at least one entry"),
    (lambda: attention(windows=(3, 0)), r"window must be at least 1, got 0"),
    (lambda: attention(rotary=Rotary(dim=6, length=8)), r"rotary\.dim=6 .*head_dim=4"),
    (lambda: attention(kv_heads=2, score_bias=Disentangled(span=4)), r"disentangled .*2 for 4"),
    (lambda: attention(kv_heads=2, windows=(BlockSparse(),)), r"block-sparse .*2 for 4"),
    (lambda: attention(qk_norm=Norm(), score_bias=Disentangled(span=4)), r"disentangled .*takes no qk_norm"),
    (lambda: attention(windows=(BlockSparse(),), score_bias=BucketBias()), r"block-sparse .*score_bias.*BucketBias"),
    (lambda: FeedForward(hidden=0), r"hidden must be at least 1, got 0"),
    (lambda: FeedForward(hidden=4, activation="gleu"), r"activation must be .*'gleu'.*Did you mean 'gelu'"),
    (lambda: FeedForward(hidden=4, dropout=-0.1), r"dropout must be .*-0\.1"),
    (lambda: Convolution(kernel=4), r"kernel must be odd.*got 4"),
    (lambda: Convolution(kernel=0), r"kernel must be at least 1, got 0"),
    (lambda: Convolution(kernel=3, groups=0), r"groups must be at least 1, got 0"),
    (lambda: Convolution(kernel=3, activation="swish"), r"activation must be .*'swish'"),
    (lambda: Convolution(kernel=3, dropout=2.0), r"dropout must be .*2\.0"),
    (lambda: stack(layers=0), r"layers must be at least 1, got 0"),
    (lambda: stack(unique_layers=0), r"unique_layers must be at least 1, got 0"),
    (lambda: stack(layers=2, unique_layers=3), r"unique_layers=3 .*layers=2"),
    (lambda: stack(placement="mid"), r"placement must be .*'mid'"),
    (lambda: stack(dropout=1.5), r"dropout must be .*1\.5"),
    (lambda: stack(final_dropout=1.5), r"final_dropout must be .*1\.5"),
    (lambda: stack(dropout_on=("fnn",)), r"dropout_on must be .*'fnn'.*Did you mean 'ffn'"),
    (lambda: stack(causal=True, attention=attention(score_bias=Disentangled(span=4))), r"disentangled .*bidirectional"),
    (lambda: stack(causal=True, attention=attention(windows=(None, BlockSparse()))), r"block-sparse .*bidirectional"),
    (lambda: stack(causal=True, convolution=Convolution(kernel=3)), r"convolution is bidirectional"),
    (lambda: stack(attention=attention(score_bias=BucketBias(buckets=3))), r"buckets=3 .*\b4\b"),
    (lambda: stack(causal=True, attention=attention(score_bias=BucketBias(buckets=1))), r"buckets=1 .*\b2\b"),
    (
        lambda: stack(causal=True, attention=attention(score_bias=BucketBias(buckets=8, max_distance=4))),
        r"max_distance=4 .*\b4 near",
    ),
    (lambda: Embed(width=0), r"width must be at least 1, got 0"),
    (lambda: Embed(scale=0.0), r"scale must be .*0\.0"),
    (lambda: Embed(scale=math.inf), r"scale must be .*inf"),
    (lambda: Embed(segments=-1), r"segments must be .*-1"),
    (lambda: Embed(languages=-2), r"languages must be .*-2"),
    (lambda: Embed(dropout=1.0), r"dropout must be .*1\.0"),
    (lambda: InputPosition(kind="rotary", length=4), r"position\.kind .*learned, sinusoidal; got 'rotary'"),
    (lambda: InputPosition(kind="learned", length=0), r"length must be at least 1, got 0"),
    (lambda: InputPosition(kind="learned", length=4, offset=-1), r"offset must be .*-1"),
    (lambda: InputPosition(kind="sinusoidal", length=4, layout="half"), r"position\.layout .*'half'.*'halves'"),
    (lambda: RotaryScaling(kind="ntk", factor=2.0), r"rotary\.scaling\.kind .*'ntk'"),
    (lambda: RotaryScaling(kind="linear", factor=0.0), r"factor must be .*0\.0"),
    (lambda: RotaryScaling(kind="yarn", factor=2.0), r"'yarn' needs original_length"),
    (lambda: RotaryScaling(kind="smooth", factor=2.0, original_length=-8), r"original_length must be .*-8"),
    (
        lambda: RotaryScaling(kind="smooth", factor=2.0, original_length=8, low=4.0, high=4.0),
        r"high=4\.0, not above low=4\.0",
    ),
    (lambda: RotaryScaling(kind="linear", factor=2.0, attention=-1.0), r"attention must be .*-1\.0"),
    (lambda: Rotary(dim=3, length=4), r"rotary\.dim must be even; got 3"),
    (lambda: Rotary(dim=4, length=0), r"length must be at least 1, got 0"),
    (lambda: Rotary(dim=4, length=4, theta=0.0), r"theta must be .*0\.0"),
    (lambda: Rotary(dim=4, length=4, pairing="half"), r"rotary\.pairing .*'half'.*'halves'"),
    (lambda: BucketBias(buckets=0), r"buckets must be at least 1, got 0"),
    (lambda: BucketBias(max_distance=0), r"max_distance must be at least 1, got 0"),
    (lambda: Disentangled(span=0), r"span must be at least 1, got 0"),
    (lambda: Disentangled(span=4, terms=("c2c",)), r"terms must be one of c2p, p2c; got 'c2c'"),
    (lambda: Disentangled(span=4, buckets=-1), r"buckets must be .*-1"),
    (lambda: Disentangled(span=4, buckets=1), r"buckets=1"),
    (lambda: Disentangled(span=4, buckets=8, max_distance=5), r"buckets=8, max_distance=5"),
    (lambda: Disentangled(span=4, dropout=1.0), r"dropout must be .*1\.0"),
    (lambda: BlockSparse(block=0), r"block must be at least 1, got 0"),
    (lambda: BlockSparse(random=-1), r"random must be .*-1"),
    (lambda: BlockSparse(semantics="sets"), r"semantics .*'sets'.*'set'"),
    (lambda: MaskDecoder(length=0), r"length must be at least 1, got 0"),
    (lambda: MaskDecoder(length=4, steps=0), r"steps must be at least 1, got 0"),
    (lambda: LMHead(transform="glu"), r"transform must be .*'glu'"),
    (lambda: LMHead(transform=""), r"transform must be .*''"),
    (lambda: LMHead(scale=-1.0), r"scale must be .*-1\.0"),
    (lambda: TaskHead(task="classfy"), r"task must be .*'classfy'.*Did you mean 'classify'"),
    (lambda: TaskHead(task="tag", pool="max"), r"pool must be .*'max'"),
    (lambda: TaskHead(task="tag", pool=""), r"pool must be .*''"),
    (lambda: TaskHead(task="tag", hidden=""), r"hidden must be .*''"),
    (lambda: TaskHead(task="tag", hidden="than"), r"hidden must be .*'than'.*'tanh'"),
    (lambda: TaskHead(task="tag", dropout=1.0), r"dropout must be .*1\.0"),
    (lambda: TaskHead(task="tag", input_dropout=1.0), r"input_dropout must be .*1\.0"),
    (lambda: EmbeddingHead(pool="max"), r"pool must be .*'max'"),
    (lambda: PretrainingHead(lm=LMHead(), pair=TaskHead(task="tag")), r"pair\.pool .*None"),
    (lambda: Init(std=0.0), r"std must be .*0\.0"),
    (lambda: Init(residual_scaling=True), "set init.std as well"),
    (lambda: Init(by_inputs=True), "set init.std as well"),
    (lambda: TaskHead(task="classify", labels="yes"), "tuple of names, got 'yes'"),
    (lambda: model(encoder=stack(), vocab=0), r"vocab must be at least 1, got 0"),
    (lambda: model(encoder=stack(), width="8"), r"width must be an integer, got '8'"),
    (lambda: model(), r"an encoder, a decoder or both"),
    (lambda: model(decoder=stack(cross=True)), r"decoder\.cross must be True if the model has an encoder"),
    (lambda: model(encoder=stack(), decoder=stack()), r"decoder\.cross must be True if the model has an encoder"),
    (lambda: model(encoder=stack(cross=True)), r"encoder\.cross must be False"),
    (lambda: model(encoder=stack(), embed=Embed(width=6), head=LMHead()), r"width 6 needs a transform from width 16"),
    (lambda: model(encoder=stack(convolution=Convolution(kernel=3, groups=3))), r"groups=3 does not divide width=16"),
    (
        lambda: model(decoder=stack(causal=True), head=LMHead(mask_decoder=MaskDecoder(length=4))),
        r"mask_decoder .*decoder",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[re.sub(r"\\", "", says)[:50] for _, says in WRONG])
def test_wrong_facts_are_refused_by_name_and_value(wrong, says):
    with types_unchecked(), pytest.raises((ValueError, TypeError), match=says):
        wrong()


def test_right_facts_at_the_edge_are_accepted():
    attention(kv_heads=4, rotary=Rotary(dim=4, length=1), dropout=0.0)
    stack(layers=3, unique_layers=3)
    stack(causal=True, attention=attention(score_bias=BucketBias(buckets=2, max_distance=2)))
    stack(attention=attention(score_bias=BucketBias(buckets=4, max_distance=2)))
    Disentangled(span=1, buckets=2, max_distance=3)
    model(encoder=stack(), embed=Embed(width=16), head=LMHead())
    model(encoder=stack(), embed=Embed(width=6), head=LMHead(tied=False))
    Norm(eps=0.0)


# ---- values


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_facts_are_frozen_and_named(kind):
    needed = {
        "kind": "learned" if kind is InputPosition else "linear",
        "task": "tag",
        "length": 4,
        "factor": 2.0,
        "dim": 2,
        "span": 4,
        "kernel": 3,
        "hidden": 4,
        "heads": 2,
        "head_dim": 4,
        "layers": 1,
        "attention": attention(),
        "ffn": FeedForward(hidden=4),
        "lm": LMHead(),
        "pair": TaskHead(task="pair", pool="first"),
        "vocab": 3,
        "width": 4,
    }
    names = [
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    values = {name: needed[name] for name in names} | ({"encoder": stack()} if kind is ModelConfig else {})
    facts = kind(**values)
    field = next((field.name for field in dataclasses.fields(kind)), "anything")  # a mechanism may have no sizes
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(facts, field, getattr(facts, field, None))
    with pytest.raises(TypeError, match="positional"):
        kind(*values.values() or (1,))
    assert hash(facts) == hash(kind(**values))
    assert facts == from_dict(kind, json.loads(json.dumps(to_dict(facts))))


def test_family_and_longest():
    assert {name: config.family for name, config in CONFIGS.items() if name in ("bert", "gpt2", "t5")} == {
        "bert": "encoder",
        "gpt2": "decoder",
        "t5": "encoder-decoder",
    }
    longest = {name: config.max_length for name, config in CONFIGS.items()}
    assert longest["bert"] == longest["roberta"] == longest["llama"] == 24  # an offset adds no length
    assert longest["t5"] is longest["2017"] is longest["deberta"] is None


@pytest.mark.parametrize(("table", "rotary"), [(9, 12), (12, 9)])
def test_the_shortest_of_all_positions_is_the_longest_input(table, rotary):
    turned = attention(rotary=Rotary(dim=4, length=rotary))
    place = InputPosition(kind="learned", length=table)
    assert model(decoder=stack(causal=True, attention=turned), embed=Embed(position=place)).max_length == 9


def test_two_spellings_of_a_fact_are_equal():
    assert attention(heads=4, kv_heads=4) == attention(heads=4)
    assert attention(heads=4, kv_heads=4).kv_heads is None
    assert stack(layers=3, unique_layers=3) == stack(layers=3)
    assert stack(layers=3, unique_layers=3).unique_layers is None
    assert hash(stack(layers=3, unique_layers=3)) == hash(stack(layers=3))
    assert Norm(kind="rms", bias=False) == Norm(kind="rms")
    assert Norm(kind="layer", bias=False) != Norm(kind="layer")
    learned = InputPosition(kind="learned", length=9)
    assert InputPosition(kind="learned", length=9, layout="halves") == learned
    for config in (attention(heads=4, kv_heads=2), stack(layers=3, unique_layers=1)):
        assert None not in (getattr(config, "kv_heads", 2), getattr(config, "unique_layers", 1))


# ---- looking and changing


@each_config
def test_leaves_are_every_fact_with_its_path(config):
    facts = dict(leaves(config))
    assert len(facts) == len([*leaves(config)])
    for path, value in facts.items():
        assert get_fact(config, path) is value or get_fact(config, path) == value
        assert not dataclasses.is_dataclass(value)
    assert facts["vocab"] == 31
    assert ("decoder" in facts) == (config.decoder is None)
    inside = [field.name for field in dataclasses.fields(Stack)]
    for side in ("encoder", "decoder"):
        if getattr(config, side) is not None:
            assert {path.split(".")[1] for path in facts if path.startswith(f"{side}.")} == {*inside}


def test_get_fact_returns_the_default_where_a_part_is_absent():
    config = CONFIGS["gpt2"]
    assert get_fact(config, "decoder.attention.heads") == 4
    assert get_fact(config, "decoder.attention") is config.decoder.attention
    assert get_fact(config, "decoder.attention.rotary", default=7) is None  # there, and None
    assert get_fact(config, "decoder.attention.rotary.dim") is None
    assert get_fact(config, "decoder.attention.rotary.dim", default=7) == 7
    assert get_fact(config, "encoder.attention.heads", default=7) == 7
    assert get_fact(config, "nothing.of.the.kind", default=7) == 7


@given(seed=SEEDS)
def test_change_changes_one_fact(seed):
    config = random_config(seed)
    before = dict(leaves(config))
    changed = change(config, "embed.dropout", 0.25)
    assert dict(leaves(changed)) == before | {"embed.dropout": 0.25}
    assert dict(leaves(config)) == before  # the original is untouched
    assert change(changed, "embed.dropout", config.embed.dropout) == config


def test_change_is_checked():
    config = CONFIGS["llama"]
    deep = change(config, "decoder.attention.rotary.theta", 5.0)
    assert deep.decoder.attention.rotary == Rotary(dim=4, length=24, theta=5.0)
    assert change(config, "head", None).head is None
    with pytest.raises(ValueError, match=r"^decoder\.attention: kv_heads=3 does not divide heads=4"):
        change(config, "decoder.attention.kv_heads", 3)
    with pytest.raises(ValueError, match=r"^vocab must be at least 1"):
        change(config, "vocab", 0)
    with pytest.raises(ValueError, match=r"rotary\.dim=6"):
        change(config, "decoder.attention.rotary.dim", 6)
    with pytest.raises(ValueError, match=r"a Stack has no field 'width'\. It has attention, "):
        change(config, "decoder.width", 3)
    with pytest.raises(ValueError, match=r"cannot set encoder\.layers"):
        change(config, "encoder.layers", 3)
    with pytest.raises(ValueError, match=r"^an Attention has no field 'head'\. Did you mean 'heads'"):
        change(CONFIGS["gpt2"], "decoder.attention.head", 2)
    with pytest.raises(ValueError, match=r"has no field 'layer'\. Did you mean 'layers'"):
        change(CONFIGS["gpt2"], "decoder.layer", 2)
    with pytest.raises(ValueError, match=r"cannot set encoder\.layers: encoder is None\."):
        change(CONFIGS["gpt2"], "encoder.layers", 2)


def test_data_for_json_has_no_infinities():
    config = Norm(eps=1e-5)
    data = for_json({"norm": config, 1: (math.inf, -math.inf, math.nan, 0.5), "kept": [None, True, 3, "NaN"]})
    assert data == {"norm": dataclasses.asdict(config), "1": [None, None, None, 0.5], "kept": [None, True, 3, "NaN"]}
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_what_says_words_is_the_head_or_inside_it():
    words, pair = LMHead(bias=True), TaskHead(task="pair", labels=("no", "yes"), pool="first")
    heads = {head: model(encoder=stack(), head=head).lm for head in (words, PretrainingHead(lm=words, pair=pair), pair)}
    assert list(heads.values()) == [words, words, None]
    assert model(encoder=stack()).lm is None


# ---- the weights that facts promise


def held(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in Transformer(config).state_dict().items()}


@given(seed=SEEDS)
@settings(max_examples=150)
def test_shapes_are_those_of_the_model(seed):
    config = random_config(seed)
    made = Transformer(config)
    actual = {name: tuple(weight.shape) for name, weight in made.state_dict().items()}
    assert shapes(config) == actual
    assert count(config) == sum(parameter.numel() for parameter in made.parameters())


@each_config
def test_shapes_of_each_build(config):
    assert shapes(config) == held(config)
    assert count(config) == sum(prod(shape) for name, shape in held(config).items() if name not in buffers(config))


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("p2c",), ("c2p",), ()], ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "bare"])
@pytest.mark.parametrize("key_bias", [True, False], ids=["key bias", "none"])
def test_shapes_of_disentangled_attention(terms, shared, norm, key_bias):
    relative = Disentangled(span=3, terms=terms, shared_projections=shared, norm_table=norm, key_bias=key_bias)
    config = model(encoder=stack(attention=attention(score_bias=relative)))
    names = held(config)
    assert shapes(config) == names
    block = "encoder.blocks.1.attention"
    assert (f"{block}.position_q.weight" in names) == ("p2c" in terms and not shared)
    assert (f"{block}.position_k.weight" in names) == ("c2p" in terms and not shared)
    assert (f"{block}.position_k.bias" in names) == ("c2p" in terms and not shared and key_bias)
    assert ("encoder.relative_norm.weight" in names) == norm
    assert names["encoder.relative.weight"] == (6, 16)


def test_counts_by_hand():
    """BERT of two layers, every number added up from the paper's figure."""
    d, f, v = 16, 20, 31
    embed = v * d + 2 * d + 24 * d + 2 * d
    layer = 4 * (d * d + d) + 2 * d * f + f + d + 4 * d
    head = (d * d + d) + 2 * d + v + (d * d + d) + (2 * d + 2)
    assert count(CONFIGS["bert"]) == embed + 2 * layer + head


def test_reading_a_config_needs_no_tensor_library():
    code = f"""
import json, sys
from glassformer.config import *
from glassformer.config import from_dict, to_dict, shapes, count, ModelConfig
config = from_dict(ModelConfig, json.loads({json.dumps(json.dumps(to_dict(CONFIGS["deberta_v2"])))}))
assert to_dict(config) and shapes(config)
print(count(config), [name for name in ("torch", "numpy", "einops", "jaxtyping") if name in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(count(CONFIGS["deberta_v2"])), "[]"]


def test_tokens_may_be_many():
    config = model(encoder=stack(), tokens=Tokens(eos=(1, 2), bos=0))
    assert through_json(config).tokens == Tokens(eos=(1, 2), bos=0)


def test_facts_are_merged_as_a_whole() -> None:
    facts = CONFIGS["gpt2"]
    merged = merge(facts, {"decoder": {"placement": "post", "attention": {"heads": 2}}, "norm": {"kind": "rms"}})
    by_hand = change(change(facts, "decoder.placement", "post"), "decoder.attention.heads", 2)
    assert merged == change(by_hand, "norm.kind", "rms")
    assert merge(facts, {}) == facts


def test_a_part_of_another_type_replaces_the_old_one() -> None:
    facts = CONFIGS["t5"]
    alibi = merge(facts, {"decoder": {"attention": {"score_bias": {"type": "Alibi"}}}})
    assert isinstance(get_fact(alibi, "decoder.attention.score_bias"), Alibi)
    fewer = merge(facts, {"decoder": {"attention": {"score_bias": {"buckets": 4}}}})
    assert get_fact(fewer, "decoder.attention.score_bias.buckets") == 4
    with pytest.raises(ValueError, match=r"model\.decoder has no field"):
        merge(facts, {"decoder": {"layer": 1}}, "model")
