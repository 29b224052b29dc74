"""Pages of facts: to JSON and back, refused where they are wrong, and true to the model that is built from them."""

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

from glassformer import config
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
    Model,
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
    leaves,
    look,
    merge,
    shapes,
    to_dict,
)
from glassformer.config.facts import for_json
from glassformer.models.transformer import Transformer
from tests.helpers import types_unchecked
from tests.pages import PAGES, any_page, attention, model, stack

SEEDS = st.integers(0, 10**6)
each_page = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
CLASSES = [
    kind for kind in vars(config).values() if dataclasses.is_dataclass(kind) and kind is not config.EncoderConfig
]


# ---- to JSON and back


def through_json(page: Model) -> Model:
    return from_dict(Model, json.loads(json.dumps(to_dict(page))))


@given(seed=SEEDS)
@settings(max_examples=100)
def test_any_page_survives_json(seed):
    page = any_page(seed)
    again = through_json(page)
    assert again == page
    assert hash(again) == hash(page)  # a list where a tuple was would compare unequal or not hash
    assert [(path, type(value)) for path, value in leaves(again)] == [
        (path, type(value)) for path, value in leaves(page)
    ]


@each_page
def test_each_build_survives_json(page):
    assert through_json(page) == page


def test_a_page_is_plain_data():
    page = to_dict(PAGES["deberta"])

    def look_into(value):
        if isinstance(value, dict):
            assert all(isinstance(key, str) for key in value)
            return [look_into(inner) for inner in value.values()]
        if isinstance(value, list):
            return [look_into(inner) for inner in value]
        assert value is None or type(value) in (str, int, float, bool)
        return None

    look_into(page)


def test_a_part_says_its_type_only_where_there_are_several():
    page = to_dict(PAGES["bert"])
    assert page["head"]["type"] == "PretrainingHead"
    assert "type" not in page["head"]["lm"]
    assert "type" not in page["norm"]
    assert to_dict(PAGES["t5"])["decoder"]["attention"]["score_bias"]["type"] == "BucketBias"
    assert to_dict(PAGES["deberta"])["encoder"]["attention"]["score_bias"]["type"] == "Disentangled"
    assert to_dict(PAGES["bloom"])["decoder"]["attention"]["score_bias"] == {"type": "Alibi"}
    assert page["decoder"] is None


def test_unions_are_read_by_their_type():
    heads = {
        "LMHead": LMHead(scale=0.5),
        "TaskHead": TaskHead(task="tag", labels=("a", "b")),
        "EmbeddingHead": EmbeddingHead(pool="last"),
        "PretrainingHead": PretrainingHead(lm=LMHead(), pair=TaskHead(task="pair", pool="first")),
    }
    for name, head in heads.items():
        page = to_dict(model(encoder=stack(), head=head))
        assert page["head"]["type"] == name
        assert from_dict(Model, page).head == head


def test_windows_of_every_kind_survive():
    windows = (None, 3, BlockSparse(block=4, random=1, semantics="set", seed=2))
    page = model(encoder=stack(attention=attention(windows=windows)))
    assert through_json(page).encoder.attention.windows == windows


def test_what_is_not_said_takes_its_default():
    page = from_dict(
        Model,
        {
            "vocab": 5,
            "width": 4,
            "encoder": {"layers": 1, "attention": {"heads": 1, "head_dim": 4}, "ffn": {"hidden": 3}},
        },
    )
    assert page == Model(
        vocab=5,
        width=4,
        encoder=Stack(layers=1, attention=Attention(heads=1, head_dim=4), ffn=FeedForward(hidden=3)),
    )


def test_whole_numbers_serve_where_a_float_is_asked():
    page = from_dict(Embed, {"scale": 2})
    assert page.scale == 2.0
    assert type(page.scale) is float


# ---- what is refused

PAGE = to_dict(PAGES["llama"]) | {"head": {"type": "LMHead", "tied": False}}


def with_fact(path: str, value: object) -> dict:
    page = json.loads(json.dumps(PAGE))
    *way, last = path.split(".")
    inner = page
    for name in way:
        inner = inner[name]
    inner[last] = value
    return page


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("widht", r"a fact of Model .*'widht'.* Did you mean 'width'\?"),
        ("decoder.layer", r"a fact of decoder .*'layer'.* Did you mean 'layers'\?"),
        ("decoder.attention.head_dims", r"a fact of decoder\.attention .*'head_dims'.* Did you mean 'head_dim'\?"),
        ("decoder.attention.rotary.tetha", r"a fact of decoder\.attention\.rotary .*'tetha'.* Did you mean 'theta'\?"),
        ("head.tie", r"a fact of head .*'tie'.* Did you mean 'tied'\?"),
        ("norm.type", r"a fact of norm .*'type'"),
    ],
)
def test_unknown_facts_are_refused_by_path_with_the_nearest_name(path, says):
    with pytest.raises(ValueError, match=says):
        from_dict(Model, with_fact(path, 1))


@pytest.mark.parametrize("kind", ["LMHaed", "Norm", None, 3])
def test_unknown_types_are_refused(kind):
    page = with_fact("head", {"type": kind})
    with pytest.raises(ValueError, match=rf"head\.type must be one of .*LMHead.*TaskHead; got '{kind}'"):
        from_dict(Model, page)
    with pytest.raises(ValueError, match=r"head\.type must be one of"):
        from_dict(Model, with_fact("head", {}))


def test_missing_facts_are_named_with_their_path():
    with pytest.raises(ValueError, match=r"Model lacks vocab, width"):
        from_dict(Model, {})
    page = with_fact("decoder", {"layers": 2, "ffn": {"hidden": 3}})
    with pytest.raises(ValueError, match=r"decoder lacks attention"):
        from_dict(Model, page)
    with pytest.raises(ValueError, match=r"decoder\.ffn lacks hidden"):
        from_dict(Model, with_fact("decoder.ffn", {}))
    with pytest.raises(ValueError, match=r"head lacks task"):
        from_dict(Model, with_fact("head", {"type": "TaskHead"}))


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("vocab", "30", r"vocab must be int, got '30'"),
        ("vocab", 30.0, r"vocab must be int, got 30\.0"),
        ("vocab", True, r"vocab must be int, got True"),
        ("vocab", None, r"vocab must be int, got None"),
        ("decoder.causal", 1, r"decoder\.causal must be bool, got 1"),
        ("decoder.dropout", "0.1", r"decoder\.dropout must be float, got '0\.1'"),
        ("decoder.dropout", False, r"decoder\.dropout must be float, got False"),
        ("decoder.attention.kv_heads", "2", r"decoder\.attention\.kv_heads must be int or None, got '2'"),
        ("decoder.attention.windows", 3, r"decoder\.attention\.windows must be .*, got 3"),
        ("decoder.attention.windows", ["3"], r"decoder\.attention\.windows must be int.*, got '3'"),
        ("decoder.attention.rotary", 4, r"decoder\.attention\.rotary must be Rotary or None, got 4"),
        (
            "decoder.placement",
            3,
            r"decoder\.placement must be 'pre' or 'post' or .*'parallel_norms', got 3",
        ),
        ("norm", 3, r"norm must be Norm, got 3"),
        ("norm", [], r"norm must be Norm, got \[\]"),
        ("tokens.eos", ["x"], r"tokens\.eos must be int, got 'x'"),
        ("tokens.eos", 1.5, r"tokens\.eos must be int.*, got 1\.5"),
        ("head.transform", 3, r"head\.transform must be str or None, got 3"),
    ],
)
def test_ill_typed_facts_are_named_with_their_path(path, value, says):
    with pytest.raises(TypeError, match=says):
        from_dict(Model, with_fact(path, value))


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
        from_dict(Model, with_fact(path, value))


def test_a_page_that_is_no_table():
    with types_unchecked(), pytest.raises(TypeError, match=r"Model must be a table of facts, got 'x'"):
        from_dict(Model, "x")


def test_wrong_values_are_refused_on_reading_too():
    with pytest.raises(ValueError, match=r"kv_heads=3 does not divide heads=4"):
        from_dict(Model, with_fact("decoder.attention.kv_heads", 3))


# ---- every check teaches: it names the thing and the value

WRONG = [
    (lambda: Norm(kind="batch"), r"norm\.kind must be one of layer, rms; got 'batch'"),
    (lambda: Norm(offset=True), r"offset is for kind='rms'; got kind='layer'"),
    (lambda: Norm(eps=-1.0), r"eps must be .*-1\.0"),
    (lambda: Norm(eps=math.nan), r"eps must be .*nan"),
    (lambda: attention(heads=0), r"heads must be at least 1, got 0"),
    (lambda: attention(heads=2.0), r"heads must be a whole number, got 2\.0"),
    (lambda: attention(head_dim=-4), r"head_dim must be at least 1, got -4"),
    (lambda: attention(kv_heads=3), r"kv_heads=3 does not divide heads=4; .*1, 2, 4"),
    (lambda: attention(kv_heads=0), r"kv_heads must be at least 1, got 0"),
    (lambda: attention(dropout=1.0), r"dropout must be .*1\.0"),
    (lambda: attention(dropout=math.nan), r"dropout must be .*nan"),
    (lambda: attention(biases="qx"), r"q, k, v and o.*'qx'"),
    (lambda: attention(biases="qq"), r"once each; got 'qq'"),
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
    (lambda: Convolution(kernel=4), r"odd kernel.*kernel=4"),
    (lambda: Convolution(kernel=0), r"kernel must be at least 1, got 0"),
    (lambda: Convolution(kernel=3, groups=0), r"groups must be at least 1, got 0"),
    (lambda: Convolution(kernel=3, activation="swish"), r"activation must be .*'swish'"),
    (lambda: Convolution(kernel=3, dropout=2.0), r"dropout must be .*2\.0"),
    (lambda: stack(layers=0), r"layers must be at least 1, got 0"),
    (lambda: stack(unique_layers=0), r"unique_layers must be at least 1, got 0"),
    (lambda: stack(layers=2, unique_layers=3), r"unique_layers=3 .*2 layers"),
    (lambda: stack(placement="mid"), r"placement must be .*'mid'"),
    (lambda: stack(dropout=1.5), r"dropout must be .*1\.5"),
    (lambda: stack(final_dropout=1.5), r"final_dropout must be .*1\.5"),
    (lambda: stack(dropout_on=("fnn",)), r"dropout_on must be .*'fnn'.*Did you mean 'ffn'"),
    (lambda: stack(causal=True, attention=attention(score_bias=Disentangled(span=4))), r"disentangled .*both ways"),
    (lambda: stack(causal=True, attention=attention(windows=(None, BlockSparse()))), r"block-sparse .*both ways"),
    (lambda: stack(causal=True, convolution=Convolution(kernel=3)), r"convolution looks both ways"),
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
    (lambda: Init(residual_scaling=True), "no std is given"),
    (lambda: Init(by_inputs=True), "no std is given"),
    (lambda: TaskHead(task="classify", labels="yes"), "tuple of names, got 'yes'"),
    (lambda: model(encoder=stack(), vocab=0), r"vocab must be at least 1, got 0"),
    (lambda: model(encoder=stack(), width="8"), r"width must be a whole number, got '8'"),
    (lambda: model(), r"an encoder, a decoder or both"),
    (lambda: model(decoder=stack(cross=True)), r"decoder\.cross is True exactly when"),
    (lambda: model(encoder=stack(), decoder=stack()), r"decoder\.cross is True exactly when"),
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
    given = {name: needed[name] for name in names} | ({"encoder": stack()} if kind is Model else {})
    facts = kind(**given)
    field = next((field.name for field in dataclasses.fields(kind)), "anything")  # a mechanism may have no sizes
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(facts, field, getattr(facts, field, None))
    with pytest.raises(TypeError, match="positional"):
        kind(*given.values() or (1,))
    assert hash(facts) == hash(kind(**given))
    assert facts == from_dict(kind, json.loads(json.dumps(to_dict(facts))))


def test_family_and_longest():
    assert {name: page.family for name, page in PAGES.items() if name in ("bert", "gpt2", "t5")} == {
        "bert": "encoder",
        "gpt2": "decoder",
        "t5": "encoder-decoder",
    }
    longest = {name: page.longest for name, page in PAGES.items()}
    assert longest["bert"] == longest["roberta"] == longest["llama"] == 24  # an offset adds no length
    assert longest["t5"] is longest["2017"] is longest["deberta"] is None


@pytest.mark.parametrize(("table", "rotary"), [(9, 12), (12, 9)])
def test_the_shortest_of_all_positions_is_the_longest_input(table, rotary):
    turned = attention(rotary=Rotary(dim=4, length=rotary))
    place = InputPosition(kind="learned", length=table)
    assert model(decoder=stack(causal=True, attention=turned), embed=Embed(position=place)).longest == 9


def test_a_fact_said_in_two_ways_is_one_fact():
    assert attention(heads=4, kv_heads=4) == attention(heads=4)
    assert attention(heads=4, kv_heads=4).kv_heads is None
    assert stack(layers=3, unique_layers=3) == stack(layers=3)
    assert stack(layers=3, unique_layers=3).unique_layers is None
    assert hash(stack(layers=3, unique_layers=3)) == hash(stack(layers=3))
    for page in (attention(heads=4, kv_heads=2), stack(layers=3, unique_layers=1)):
        assert None not in (getattr(page, "kv_heads", 2), getattr(page, "unique_layers", 1))


# ---- looking and changing


@each_page
def test_leaves_are_every_fact_with_its_path(page):
    facts = dict(leaves(page))
    assert len(facts) == len([*leaves(page)])
    for path, value in facts.items():
        assert look(page, path) is value or look(page, path) == value
        assert not dataclasses.is_dataclass(value)
    assert facts["vocab"] == 31
    assert ("decoder" in facts) == (page.decoder is None)
    inside = [field.name for field in dataclasses.fields(Stack)]
    for side in ("encoder", "decoder"):
        if getattr(page, side) is not None:
            assert {path.split(".")[1] for path in facts if path.startswith(f"{side}.")} == {*inside}


def test_look_says_what_is_absent():
    page = PAGES["gpt2"]
    assert look(page, "decoder.attention.heads") == 4
    assert look(page, "decoder.attention") is page.decoder.attention
    assert look(page, "decoder.attention.rotary", absent=7) is None  # there, and None
    assert look(page, "decoder.attention.rotary.dim") is None
    assert look(page, "decoder.attention.rotary.dim", absent=7) == 7
    assert look(page, "encoder.attention.heads", absent=7) == 7
    assert look(page, "nothing.of.the.kind", absent=7) == 7


@given(seed=SEEDS)
def test_change_changes_one_fact(seed):
    page = any_page(seed)
    before = dict(leaves(page))
    changed = change(page, "embed.dropout", 0.25)
    assert dict(leaves(changed)) == before | {"embed.dropout": 0.25}
    assert dict(leaves(page)) == before  # the original is untouched
    assert change(changed, "embed.dropout", page.embed.dropout) == page


def test_change_is_checked():
    page = PAGES["llama"]
    deep = change(page, "decoder.attention.rotary.theta", 5.0)
    assert deep.decoder.attention.rotary == Rotary(dim=4, length=24, theta=5.0)
    assert change(page, "head", None).head is None
    with pytest.raises(ValueError, match="kv_heads=3 does not divide heads=4"):
        change(page, "decoder.attention.kv_heads", 3)
    with pytest.raises(ValueError, match=r"rotary\.dim=6"):
        change(page, "decoder.attention.rotary.dim", 6)
    with pytest.raises(ValueError, match=r"a fact of Stack must be one of .*; got 'width'"):
        change(page, "decoder.width", 3)
    with pytest.raises(ValueError, match="no 'layers' here to change"):
        change(page, "encoder.layers", 3)
    with pytest.raises(ValueError, match=r"got 'layer'\. Did you mean 'layers'"):
        change(PAGES["gpt2"], "decoder.layer", 2)
    with pytest.raises(ValueError, match="no 'layers' here to change: the part before it is None"):
        change(PAGES["gpt2"], "encoder.layers", 2)


def test_data_for_json_has_no_infinities():
    page = Norm(eps=1e-5)
    said = for_json({"norm": page, 1: (math.inf, -math.inf, math.nan, 0.5), "kept": [None, True, 3, "NaN"]})
    assert said == {"norm": dataclasses.asdict(page), "1": [None, None, None, 0.5], "kept": [None, True, 3, "NaN"]}
    assert json.loads(json.dumps(said, allow_nan=False)) == said


def test_what_says_words_is_the_head_or_inside_it():
    words, pair = LMHead(bias=True), TaskHead(task="pair", labels=("no", "yes"), pool="first")
    found = {head: model(encoder=stack(), head=head).lm for head in (words, PretrainingHead(lm=words, pair=pair), pair)}
    assert list(found.values()) == [words, words, None]
    assert model(encoder=stack()).lm is None


# ---- the weights that facts promise


def held(page: Model) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in Transformer(page).state_dict().items()}


@given(seed=SEEDS)
@settings(max_examples=150)
def test_shapes_are_those_of_the_model(seed):
    page = any_page(seed)
    made = Transformer(page)
    actual = {name: tuple(weight.shape) for name, weight in made.state_dict().items()}
    assert shapes(page) == actual
    assert count(page) == sum(parameter.numel() for parameter in made.parameters())


@each_page
def test_shapes_of_each_build(page):
    assert shapes(page) == held(page)
    assert count(page) == sum(prod(shape) for name, shape in held(page).items() if name not in buffers(page))


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("p2c",), ("c2p",), ()], ids=str)
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@pytest.mark.parametrize("norm", [True, False], ids=["norm", "bare"])
@pytest.mark.parametrize("key_bias", [True, False], ids=["key bias", "none"])
def test_shapes_of_disentangled_attention(terms, shared, norm, key_bias):
    relative = Disentangled(span=3, terms=terms, shared_projections=shared, norm_table=norm, key_bias=key_bias)
    page = model(encoder=stack(attention=attention(score_bias=relative)))
    names = held(page)
    assert shapes(page) == names
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
    assert count(PAGES["bert"]) == embed + 2 * layer + head


def test_reading_a_page_needs_no_tensor_library():
    code = f"""
import json, sys
from glassformer.config import *
from glassformer.config import from_dict, to_dict, shapes, count, Model
page = from_dict(Model, json.loads({json.dumps(json.dumps(to_dict(PAGES["deberta_v2"])))}))
assert to_dict(page) and shapes(page)
print(count(page), [name for name in ("torch", "numpy", "einops", "jaxtyping") if name in sys.modules])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(count(PAGES["deberta_v2"])), "[]"]


def test_tokens_may_be_many():
    page = model(encoder=stack(), tokens=Tokens(eos=(1, 2), bos=0))
    assert through_json(page).tokens == Tokens(eos=(1, 2), bos=0)


def test_facts_are_merged_as_a_whole() -> None:
    facts = PAGES["gpt2"]
    merged = merge(facts, {"decoder": {"placement": "post", "attention": {"heads": 2}}, "norm": {"kind": "rms"}})
    by_hand = change(change(facts, "decoder.placement", "post"), "decoder.attention.heads", 2)
    assert merged == change(by_hand, "norm.kind", "rms")
    assert merge(facts, {}) == facts


def test_a_part_of_another_type_takes_the_place_of_the_old_one() -> None:
    facts = PAGES["t5"]
    alibi = merge(facts, {"decoder": {"attention": {"score_bias": {"type": "Alibi"}}}})
    assert isinstance(look(alibi, "decoder.attention.score_bias"), Alibi)
    fewer = merge(facts, {"decoder": {"attention": {"score_bias": {"buckets": 4}}}})
    assert look(fewer, "decoder.attention.score_bias.buckets") == 4
    with pytest.raises(ValueError, match=r"a fact of model\.decoder"):
        merge(facts, {"decoder": {"layer": 1}}, "model")
