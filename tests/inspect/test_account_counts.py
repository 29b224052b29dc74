"""FLOPs and parameters of an account against what a real model does: exactly equal, down to the shapes of products.

Every lineage, every kind of head, both paths of attention, forward, training and decoding; and any config.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import pairwise, product

import pytest
import torch
import torch.nn.functional as F
from _pytest.mark import ParameterSet

from glassformer.config import BlockSparse, ModelConfig, change
from glassformer.families import lineages, presets
from glassformer.inspect.account import Account, account
from glassformer.inspect.account.counts import AttentionShape
from glassformer.inspect.parameters import num_parameters
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels.windows import has_blocks, window_block, window_blocks
from glassformer.nn.masks import Mask
from tests.configs import CONFIGS, encoder_decoder, model, random_config, stack
from tests.configs import attention as attention_facts
from tests.helpers import some_at_once
from tests.inspect.counting import MatrixProduct, Products, inputs, loss, small, without_dropout
from tests.parity.cases import CASES
from tests.parity.harness import Case

PATHS = ("sdpa", "eager")
SHAPES = [(1, 7, 9), (3, 12, 5)]  # rows, tokens, tokens of the source
FIRST_SIZES = {preset.lineage.name: name for name, preset in reversed(presets().items())}


def sizes_of(*at_once: str, decoders: bool = False) -> list[ParameterSet]:
    """The first published size of every lineage; those of ``at_once`` in quick runs, the others marked slow."""
    assert set(at_once) <= FIRST_SIZES.keys()
    chosen = {lineage: name for lineage, name in FIRST_SIZES.items() if not decoders or presets()[name].facts.decoder}
    marks = {lineage: () if lineage in at_once else pytest.mark.slow for lineage in chosen}
    return [pytest.param(name, id=name, marks=marks[lineage]) for lineage, name in chosen.items()]


def config_of(case: Case) -> ModelConfig:
    """The facts of a tiny model, without dropout."""
    for lineage in lineages().values():
        for kind, form in lineage.heads.items():
            if form.architecture == case.architecture:
                return without_dropout(lineage.facts(case.config, kind))
    raise LookupError(case.architecture)


def blocks(semantics: str) -> ModelConfig:
    """Blocks of two tokens: more than 14 are not attended in full."""
    return model(
        encoder=stack(attention=attention_facts(windows=(BlockSparse(block=2, random=1, semantics=semantics),)))
    )


SPARSE = {semantics: blocks(semantics) for semantics in ("reference", "set")}


def passed(built: Transformer, path: str, shape: tuple[int, int, int]) -> Products:
    """The products of one pass."""
    model_inputs, built.fused = inputs(built.config, *shape), path == "sdpa"
    with Products() as products, torch.no_grad():
        built(**model_inputs, path=path)
    return products


def trained(built: Transformer, path: str, shape: tuple[int, int, int]) -> tuple[int, Products]:
    """FLOPs of the pass forward in a step of training, and the products of the whole step."""
    model_inputs, built.fused = inputs(built.config, *shape), path == "sdpa"
    with Products() as products:
        answer = built(**model_inputs, path=path)
        forward = products.flops
        loss(answer).backward()
    return forward, products


def check(facts: ModelConfig, shape: tuple[int, int, int], kernels: Iterable[str] = PATHS) -> None:
    """Parameters, and FLOPs of a pass and of a step of training on both paths, or on one of them."""
    built = Transformer(facts).train()
    sizes = dict(zip(("batch", "context", "source"), shape, strict=True))
    for kernel in kernels:
        counted = account(facts, **sizes, attention=kernel, mode="train")
        forward, products = trained(built, kernel, shape)
        assert counted.parameters == num_parameters(built)
        assert counted.forward_flops == forward, kernel
        assert counted.flops == 3 * forward
        assert counted.flops + counted.recomputed_flops == products.flops, kernel
        assert kernel == "sdpa" or counted.recomputed_flops == 0
        assert kernel == "eager" or account(facts, **sizes).flops == forward


# ---- the counter itself


def test_the_counter_records_every_kind_of_product():
    a, b, c = torch.ones(3, 5), torch.ones(5, 7), torch.ones(2, 3, 5)
    with Products() as products:
        a @ b
        torch.addmm(torch.ones(7), a, b)
        c @ b  # one product of six rows
        torch.einsum("bij,bjk->bik", c, torch.ones(2, 5, 7))
        torch.baddbmm(torch.ones(2, 3, 7), c, torch.ones(2, 5, 7))
        F.linear(a, b.T)
        a @ torch.ones(5)
        torch.linalg.vecdot(a, a)  # no product of matrices
        a * a
    assert products.shapes == {(3, 5, 7): 1 + 1 + 2 + 2 + 1, (6, 5, 7): 1, (3, 5, 1): 1}
    assert products.flops == 2 * 105 * 7 + 2 * 210 + 2 * 15
    with torch.inference_mode(), Products() as inside:
        c @ b
        F.scaled_dot_product_attention(*[torch.ones(2, 4, 6, 8)] * 3)
    assert inside.recorded == [MatrixProduct(6, 5, 7), MatrixProduct(6, 8, 6, 8), MatrixProduct(6, 6, 8, 8)]


def test_the_counter_records_attention_and_its_backward_pass():
    q, k, v = (torch.ones(2, heads, tokens, 8, requires_grad=True) for heads, tokens in ((4, 5), (2, 9), (2, 9)))
    with Products() as products:
        F.scaled_dot_product_attention(q, k, v, enable_gqa=True).sum().backward()
    one = 2 * (2 * 4) * 5 * 9 * 8
    assert [product.flops for product in products.recorded] == [one] * 7


@pytest.mark.parametrize("refused", [lambda x: x @ x, lambda x: F.conv1d(x[None, None], x[None, None])])
def test_the_counter_refuses_unknown_kernels(refused):
    with pytest.raises(AssertionError, match="is not counted"), Products():
        refused(torch.ones(4))


# ---- every lineage


each_kernel = pytest.mark.parametrize("kernel", ["sdpa", pytest.param("eager", marks=pytest.mark.slow)])
AT_ONCE = ("bert", "gpt2", "llama", "t5", "deberta_v2", "bloom")  # the account runs the model: one of a kind will do
some_builds = pytest.mark.parametrize("name", some_at_once(CONFIGS, {"gpt2", "t5", "deberta_v2", "llama"}.__contains__))


def some_cases(cases: Iterable[Case]) -> list[ParameterSet]:
    """The first tiny model of these lineages at once, all others with the long tests."""
    first: dict[str, str] = {}
    for case in cases:
        first.setdefault(case.id.partition("-")[0], case.id)
    chosen = {first[lineage] for lineage in AT_ONCE if lineage in first}
    return some_at_once(cases, lambda case: case.id in chosen)


@each_kernel
@pytest.mark.parametrize("case", some_cases(CASES))
def test_every_lineage_and_head(case, kernel):
    check(config_of(case), SHAPES[1], [kernel])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_lineage_and_head_with_one_row(case):
    check(config_of(case), SHAPES[0])


@pytest.mark.parametrize("name", sizes_of("mistral"))
def test_every_lineage_in_small(name):
    """The published facts with other sizes: 30 tokens are beyond every window, and beyond what blocks see in full."""
    check(small(presets()[name].facts), (2, 30, 33))


@pytest.mark.parametrize("kernel", ["eager", pytest.param("sdpa", marks=pytest.mark.slow)])
@some_builds
def test_every_build(name, kernel):
    check(without_dropout(CONFIGS[name]), (2, 13, 6), [kernel])


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 100))])
def test_any_facts(seed):
    check(without_dropout(random_config(seed)), (2, 11, 7))


@pytest.mark.parametrize(
    ("semantics", "tokens"),
    some_at_once(product(("reference", "set"), (14, 15, 16, 21, 24)), lambda case: case == ("set", 15)),
)
def test_blocks(semantics, tokens):
    """Up to 14 tokens are attended in full; beyond, the last block may be shorter than the others."""
    check(blocks(semantics), (2, tokens, tokens))


@pytest.mark.slow
def test_a_shared_layer_has_no_convolution_beside_it():
    """The model leaves its loop with the last layer, before it comes to the convolution beside the first."""
    deberta, convolution = CONFIGS["deberta"], CONFIGS["deberta_v2"].encoder.convolution
    one_layer = change(change(deberta, "encoder.layers", 1), "encoder.convolution", convolution)
    check(one_layer, (2, 9, 9))
    check(change(one_layer, "encoder.layers", 2), (2, 9, 9))


@pytest.mark.parametrize("name", sizes_of("gpt2", "albert", "t5"))
def test_published_sizes_have_as_many_parameters_as_the_built_model(name):
    facts = presets()[name].facts
    assert account(facts, context=8).parameters == num_parameters(Transformer(facts, device="meta"))


def test_tied_and_shared_weights_count_once():
    tied, untied = (change(CONFIGS["gpt2"], "head.tied", tied) for tied in (True, False))
    assert account(untied).parameters - account(tied).parameters == tied.vocab * tied.width
    one, all_own = (change(CONFIGS["albert"], "encoder.unique_layers", unique) for unique in (1, None))
    assert account(one).parameters < account(all_own).parameters
    assert account(one, context=8).flops == account(all_own, context=8).flops


# ---- decoding


def step(facts: ModelConfig, shape: tuple[int, int, int], path: str) -> Products:
    """The products of one new token, when all before it lie in the cache."""
    batch, tokens, source = shape
    built = Transformer(facts).eval()
    built.fused = path == "sdpa"
    ids = torch.randint(facts.vocab, (batch, tokens))
    with torch.no_grad():
        memory = None if facts.encoder is None else built.encode(torch.randint(facts.vocab, (batch, source)))
        cache = KVCache(capacity=tokens)
        built.decode(ids[:, :-1], memory=memory, cache=cache, path=path)
        with Products() as products:
            built.apply_head(built.decode(ids[:, -1:], memory=memory, cache=cache, path=path))
    return products


def check_step(facts: ModelConfig, shape: tuple[int, int, int], kernels: Iterable[str] = PATHS) -> None:
    """The account runs the model's own step, on either path."""
    for kernel in kernels:
        sizes = {"batch": shape[0], "context": shape[1], "source": shape[2]}
        counted = account(facts, **sizes, mode="decode", attention=kernel)
        assert counted.flops == step(facts, shape, kernel).flops, kernel
        assert counted.recomputed_flops == counted.backward_flops == 0


@each_kernel
@pytest.mark.parametrize("case", some_cases([case for case in CASES if config_of(case).decoder is not None]))
def test_one_new_token(case, kernel):
    check_step(config_of(case), SHAPES[1], [kernel])


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [case for case in CASES if config_of(case).decoder is not None], ids=lambda case: case.id
)
def test_one_new_token_of_one_row(case):
    check_step(config_of(case), SHAPES[0])


@pytest.mark.parametrize("name", sizes_of("gpt-neo", "mistral", decoders=True))
def test_one_new_token_beyond_every_window(name):
    check_step(small(presets()[name].facts), (2, 30, 33))


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2, 100))])
def test_one_new_token_of_any_facts(seed):
    facts = random_config(seed)
    if facts.decoder is not None:
        check_step(facts, (2, 11, 7))


# ---- product by product


def shapes(counted: Account) -> Counter[tuple[int, int, int]]:
    """How many products of each shape (m, n, p) the account has."""
    shapes: Counter[tuple[int, int, int]] = Counter()
    for part in counted.root.walk():
        for multiplication in part.products:
            m, n, p, times, *_ = multiplication.product
            shapes[m, n, p] += times * multiplication.runs
    return shapes


@pytest.mark.parametrize(
    ("name", "kernel"),
    some_at_once(
        product(("gpt2", "t5", "deberta_v2", "albert", "reference", "set"), PATHS),
        {
            ("gpt2", "eager"),
            ("t5", "sdpa"),
            ("deberta_v2", "sdpa"),
            ("albert", "eager"),
            ("reference", "sdpa"),
        }.__contains__,
    ),
)
def test_product_by_product(name, kernel):
    facts = without_dropout({**CONFIGS, **SPARSE}[name])
    real = passed(Transformer(facts), kernel, (3, 17, 9))
    assert shapes(account(facts, batch=3, context=17, source=9, attention=kernel)) == real.shapes


@pytest.mark.parametrize(
    ("name", "kernel"),
    some_at_once(product(("gpt2", "bart"), PATHS), {("gpt2", "eager"), ("bart", "sdpa")}.__contains__),
)
def test_product_by_product_in_the_backward_pass(name, kernel):
    """A · B has two products in the backward pass, with Bᵀ for dA and with Aᵀ for dB, in either order."""
    facts = without_dropout(CONFIGS[name])
    _, real = trained(Transformer(facts), kernel, (3, 17, 9))
    counted = account(facts, batch=3, context=17, source=9, attention=kernel, mode="train")
    expected: Counter[tuple[int, int, int]] = Counter()
    for part in counted.root.walk():
        for multiplication in part.products:
            m, n, p, times, *_ = multiplication.product
            times *= multiplication.runs
            recomputed = times if kernel == "sdpa" and part.name == "scores" else 0
            for shape, count in (((m, n, p), times + recomputed), ((m, p, n), times), ((n, m, p), times)):
                expected[_either_way(*shape)] += count
    shapes: Counter[tuple[int, int, int]] = Counter()
    for (m, n, p), count in real.shapes.items():
        shapes[_either_way(m, n, p)] += count
    assert shapes == expected


def _either_way(m: int, n: int, p: int) -> tuple[int, int, int]:
    """A · B and its transpose Bᵀ · Aᵀ are the same work."""
    return min(m, p), n, max(m, p)


# ---- unmasked pairs, and growth with the context


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2, 3, 7, 8, 9, 100])
def test_unmasked_pairs(causal, window):
    for tokens in (1, 2, 3, 7, 8, 9, 20):
        shape = AttentionShape(tokens, tokens, causal, window)
        assert shape.pairs == int(Mask(causal=causal, window=window).dense((tokens, tokens)).sum())
        last = AttentionShape(1, tokens, causal=True, window=window)
        assert last.pairs == int(Mask(causal=True, window=window).dense((1, tokens)).sum())
    assert AttentionShape(5, 8).pairs == 40  # across


def computed_pairs(mask, length):
    """All pairs, or those of the blocks of a window."""
    if not has_blocks(mask, length, length):
        return length**2
    blocks = window_blocks(length, mask.window, causal=mask.causal, block=window_block(mask.window))
    return sum(each.number * each.queries * each.keys for each in blocks)


WINDOWED = {
    "causal window": change(CONFIGS["llama"], "decoder.attention.windows", (3,)),
    "window": change(CONFIGS["bert"], "encoder.attention.windows", (3, None, 8)),
}


@pytest.mark.parametrize("tokens", [11, 12, 38])
@pytest.mark.parametrize("name", ["gpt_neo", "llama", "bert", "bart", *WINDOWED])
def test_exact_counts_only_unmasked_pairs(name, tokens):
    """Beyond a window, the dense count is that of the blocks."""
    facts = {**CONFIGS, **WINDOWED}[name]
    dense, exact = (
        account(facts, batch=3, context=tokens, source=7, causal=how, mode="train") for how in ("dense", "exact")
    )
    saved = 0
    for each in (facts.encoder, facts.decoder):
        if each is None:
            continue
        length = tokens if each.causal or facts.decoder is None else 7
        for layer in range(each.layers):
            seen = Mask(causal=each.causal, window=each.attention.windows[layer % len(each.attention.windows)])
            hidden = computed_pairs(seen, length) - int(seen.dense((length, length)).sum())
            saved += 4 * 3 * each.attention.heads * each.attention.head_dim * hidden
    assert dense.forward_flops - exact.forward_flops == saved
    assert dense.backward_flops - exact.backward_flops == 2 * saved
    assert (saved > 0) == (facts.decoder is not None or name in WINDOWED)


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("tokens", [4, 11, 24])
def test_windows_by_blocks(name, tokens):
    """Products that reach the kernels, at lengths with and without blocks, and a last query alone."""
    check(without_dropout(WINDOWED[name]), (2, tokens, 1), ["sdpa"])


def test_windows_grow_linearly():
    """Half a window of tokens more: the same FLOPs and the same bytes, whatever the length."""
    facts = without_dropout(change(CONFIGS["llama"], "decoder.attention.windows", (64,)))
    counted = [account(facts, context=tokens, mode="train") for tokens in (640, 672, 704, 2048, 2080)]
    flops, peaks = [each.flops for each in counted], [each.memory.peak for each in counted]
    for values in (flops, peaks):
        assert values[1] - values[0] == values[2] - values[1] == values[4] - values[3]


@pytest.mark.parametrize(
    ("name", "mode"),
    some_at_once(
        [*product(("bert", "deberta", "llama", "t5"), ["forward"]), ("gpt2", "train")], lambda case: "llama" in case
    ),
)
def test_the_square_of_the_context_is_attention(name, mode):
    """FLOPs are a · T² + b · T (+ c): the second difference is 2 · a, and a · T² is what scores and sums cost."""
    facts, context = CONFIGS[name], 100

    def flops(tokens: int) -> int:
        return account(facts, batch=2, context=tokens, mode=mode).flops

    second = flops(context + 2) - 2 * flops(context + 1) + flops(context)
    parts = account(facts, batch=2, context=context).root.walk()
    square = sum(part.flops for part in parts if part.name in ("scores", "weighted_sum") and not part.parts)
    steps = 3 if mode == "train" else 1
    assert second * context**2 == 2 * steps * square > 0
    assert flops(context + 3) - 2 * flops(context + 2) + flops(context + 1) == second


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["reference", "set"])
def test_block_sparse_attention_grows_linearly(semantics):
    facts, block = SPARSE[semantics], 2
    counted = {tokens: account(facts, context=tokens).flops for tokens in (16, 18, 20, 56, 58)}  # beyond the full 14
    assert len({counted[tokens + block] - counted[tokens] for tokens in (16, 18, 56)}) == 1
    full = [account(facts, context=tokens).flops for tokens in (10, 12, 14)]
    assert full[2] - 2 * full[1] + full[0] > 0


@pytest.mark.slow
@pytest.mark.parametrize("causal", ["dense", "exact"])
def test_decoding_grows_with_the_context_until_the_window(causal):
    facts = change(CONFIGS["llama"], "decoder.attention.windows", (16,))
    counted = [account(facts, context=tokens, mode="decode", causal=causal).flops for tokens in range(13, 20)]
    steps = [after - before for before, after in pairwise(counted)]
    one_key = 2 * 2 * 16 * facts.decoder.layers  # a product of two vectors and a sum, heads · head wide
    assert steps == [one_key] * 3 + [0] * 3


def test_an_encoder_decoder_counts_both_lengths():
    facts = encoder_decoder(stack())
    wide, long = account(facts, context=8, source=4), account(facts, context=4, source=8)
    assert wide.find("decoder.blocks.0.cross.k").flops == 2 * 4 * 16 * 16
    assert long.find("decoder.blocks.0.cross.k").flops == 2 * 8 * 16 * 16
    assert wide.find("decoder.blocks.0.cross.scores").flops == long.find("decoder.blocks.0.cross.scores").flops
    assert wide.find("encoder").flops < long.find("encoder").flops


@pytest.mark.parametrize("name", some_at_once(["gpt2", "bert-base-uncased", "llama-2-7b"], {"gpt2"}.__contains__))
def test_a_kernel_takes_as_many_steps_as_its_formula(name):
    """Norms, feed-forward networks and heads; it is the bytes that are fewer."""

    def work(kernel, field):
        root = account(small(presets()[name].facts), context=24, attention=kernel).root
        return {part.path: getattr(part, field) for part in root.walk() if part.name.endswith(("norm", "ffn", "head"))}

    assert work("sdpa", "elementwise") == work("eager", "elementwise")
    fewer, more = work("sdpa", "bytes_moved"), work("eager", "bytes_moved")
    assert all(fewer[path] <= more[path] for path in more)
    assert sum(fewer.values()) < sum(more.values())
