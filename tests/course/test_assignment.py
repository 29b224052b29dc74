"""Everything beside the blocks, by the adapters of docs/course.md, against references that share no code with it."""

import io
import math
import time
from collections import Counter
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from glassformer import TransformerLM, course
from glassformer.text.bpe import learn_merges
from tests.course import reference
from tests.course.adapters import adapters
from tests.helpers import types_unchecked

END = "<|endoftext|>"
# Of the public tests: what each adapter is called with.
SIGNATURES = {
    "run_linear": "d_in d_out weights in_features",
    "run_embedding": "vocab_size d_model weights token_ids",
    "run_swiglu": "d_model d_ff w1_weight w2_weight w3_weight in_features",
    "run_scaled_dot_product_attention": "Q K V mask",
    "run_multihead_self_attention": "d_model num_heads q_proj_weight k_proj_weight v_proj_weight o_proj_weight "
    "in_features",
    "run_multihead_self_attention_with_rope": "d_model num_heads max_seq_len theta q_proj_weight k_proj_weight "
    "v_proj_weight o_proj_weight in_features token_positions",
    "run_rope": "d_k theta max_seq_len in_query_or_key token_positions",
    "run_transformer_block": "d_model num_heads d_ff max_seq_len theta weights in_features",
    "run_transformer_lm": "vocab_size context_length d_model num_layers num_heads d_ff rope_theta weights in_indices",
    "run_rmsnorm": "d_model eps weights in_features",
    "run_silu": "in_features",
    "run_get_batch": "dataset batch_size context_length device",
    "run_softmax": "in_features dim",
    "run_cross_entropy": "inputs targets",
    "run_gradient_clipping": "parameters max_l2_norm",
    "get_adamw_cls": "",
    "run_get_lr_cosine_schedule": "it max_learning_rate min_learning_rate warmup_iters cosine_cycle_iters",
    "run_save_checkpoint": "model optimizer iteration out",
    "run_load_checkpoint": "src model optimizer",
    "get_tokenizer": "vocab merges special_tokens",
    "run_train_bpe": "input_path vocab_size special_tokens",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_every_adapter_has_the_arguments_of_the_course(name: str) -> None:
    parameters = signature(getattr(adapters, name)).parameters.values()
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == SIGNATURES[name].split()


# ---- loss, gradients, optimizer, schedule


@pytest.mark.parametrize("scale", [1.0, 1000.0])
@pytest.mark.parametrize("lead", [(8,), (2, 4)], ids=str)
def test_cross_entropy(lead: tuple[int, ...], scale: float) -> None:
    inputs, targets = scale * torch.randn(*lead, 5, dtype=torch.float64), torch.randint(5, lead)
    expected = F.cross_entropy(inputs.flatten(0, -2), targets.flatten())
    assert abs(float(adapters.run_cross_entropy(inputs, targets) - expected)) < 1e-9


def test_cross_entropy_leaves_out_ignored_targets() -> None:
    inputs, targets = torch.randn(4, 5), torch.tensor([1, -100, 3, -100])
    expected = course.cross_entropy(inputs[::2], targets[::2])
    assert course.cross_entropy(inputs, targets) == pytest.approx(expected)
    assert course.cross_entropy(inputs, torch.full((4,), -100)).isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_cross_entropy_of_huge_logits_is_finite(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    inputs = torch.tensor([[largest, -largest, 0.0], [6e4, 6e4, 6e4]], dtype=dtype, requires_grad=True)
    loss = adapters.run_cross_entropy(inputs, torch.tensor([0, 2]))
    loss.backward()
    assert abs(loss.item() - math.log(3) / 2) < 1e-3
    assert inputs.grad is not None
    assert inputs.grad.isfinite().all()


@pytest.mark.parametrize("max_norm", [1e-2, 1e6])
def test_gradient_clipping(max_norm: float) -> None:
    parameters = [nn.Parameter(torch.zeros(3, 2)) for _ in range(4)]
    for parameter in parameters[:3]:  # the last has no gradient
        parameter.grad = torch.randn(3, 2)
    before = [p.grad.clone() for p in parameters[:3] if p.grad is not None]
    norm = math.sqrt(sum(float(g.square().sum()) for g in before))
    adapters.run_gradient_clipping(iter(parameters), max_norm)
    for parameter, gradient in zip(parameters, before, strict=False):
        torch.testing.assert_close(parameter.grad, gradient * min(1.0, max_norm / norm))
    assert parameters[3].grad is None


def test_gradient_clipping_without_any_gradient() -> None:
    parameter = nn.Parameter(torch.ones(2))
    adapters.run_gradient_clipping([parameter], 1.0)
    assert parameter.grad is None
    with pytest.raises(ValueError, match="max_l2_norm must be a finite number above 0"):
        adapters.run_gradient_clipping([parameter], 0.0)


def test_adamw() -> None:
    parameter = nn.Parameter(torch.randn(3, 2, dtype=torch.float64))
    start = parameter.detach().numpy().copy()
    gradients = [torch.randn(3, 2, dtype=torch.float64) for _ in range(20)]
    optimizer = adapters.get_adamw_cls()([parameter], lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.3)
    assert isinstance(optimizer, torch.optim.Optimizer)
    for gradient in gradients:
        parameter.grad = gradient
        optimizer.step()
    expected = reference.adamw(start, [g.numpy() for g in gradients], 1e-2, (0.9, 0.99), 1e-8, 0.3)
    assert np.abs(parameter.detach().numpy() - expected).max() < 1e-12


@given(
    highest=st.one_of(st.just(0.0), st.floats(1e-6, 10.0)),
    share=st.floats(0.0, 1.0),
    warmup=st.integers(0, 40),
    cosine=st.integers(0, 60),
    it=st.integers(0, 200),
)
def test_cosine_schedule(highest: float, share: float, warmup: int, cosine: int, it: int) -> None:
    lowest, end = share * highest, warmup + cosine
    if it < warmup:
        expected = it / warmup * highest
    elif it < end:
        expected = lowest + 0.5 * (1 + math.cos((it - warmup) / cosine * math.pi)) * (highest - lowest)
    else:
        expected = lowest
    rate = adapters.run_get_lr_cosine_schedule(it, highest, lowest, warmup, end)
    assert rate == pytest.approx(expected, abs=1e-12 * highest)
    if it >= end:
        assert rate == lowest


def test_a_warm_up_longer_than_the_cycle_is_an_error() -> None:
    with pytest.raises(ValueError, match="at most cosine_cycle_iters=7; got 8"):
        adapters.run_get_lr_cosine_schedule(0, 1.0, 0.1, 8, 7)
    for rate in (-1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="max_learning_rate must be a finite number of at least 0"):
            adapters.run_get_lr_cosine_schedule(0, rate, 0.1, 3, 7)


# ---- batches


@pytest.mark.parametrize("dtype", [np.uint16, np.int64])
def test_batches_are_uniform_windows_with_their_next_tokens(dtype: type) -> None:
    dataset, rows, length = np.arange(50, dtype=dtype), 64, 7
    starts = Counter[int]()
    for _ in range(200):
        inputs, targets = adapters.run_get_batch(dataset=dataset, batch_size=rows, context_length=length, device="cpu")
        assert inputs.shape == targets.shape == (rows, length)
        assert inputs.dtype == targets.dtype == torch.int64
        assert inputs.is_contiguous()
        assert targets.is_contiguous()
        assert (targets == inputs + 1).all()
        assert (inputs == inputs[:, :1] + torch.arange(length)).all()
        starts.update(inputs[:, 0].tolist())
    assert set(starts) == set(range(50 - length))  # the last window's last target is the last token
    expected, total = 200 * rows / len(starts), 200 * rows
    deviation = math.sqrt(total / len(starts) * (1 - 1 / len(starts)))
    assert all(abs(times - expected) < 5 * deviation for times in starts.values())


def test_a_batch_of_the_only_window_of_a_file(tmp_path: Path) -> None:
    np.arange(5, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    dataset = np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")
    inputs, targets = adapters.run_get_batch(dataset, 2, 4, "cpu")
    assert inputs.tolist() == [[0, 1, 2, 3]] * 2
    assert targets.tolist() == [[1, 2, 3, 4]] * 2
    with pytest.raises(ValueError, match=r"5 tokens has no window of context_length=5"):
        adapters.run_get_batch(dataset, 2, 5, "cpu")


def test_a_batch_goes_to_its_device() -> None:
    inputs, targets = adapters.run_get_batch(np.arange(9), 2, 4, "meta")
    assert inputs.device.type == targets.device.type == "meta"


# ---- checkpoints


def trained(seed: int, steps: int) -> tuple[TransformerLM, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = TransformerLM(11, 8, 16, 1, 2, 16)
    optimizer = course.AdamW(model.parameters(), lr=1e-2 * (seed + 1), betas=(0.8, 0.9))
    advance(model, optimizer, steps)
    return model, optimizer


def advance(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        optimizer.zero_grad()
        course.cross_entropy(model(torch.arange(8)), torch.arange(8) + step % 3).backward()
        optimizer.step()


def equal(a: object, b: object) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b


def check_restored(model: nn.Module, optimizer: torch.optim.Optimizer, src: object) -> None:
    """Another model and optimizer get the same state, and go on the same."""
    other, other_optimizer = trained(1, steps=1)
    assert adapters.run_load_checkpoint(src=src, model=other, optimizer=other_optimizer) == 3
    assert equal(dict(other.state_dict()), dict(model.state_dict()))
    assert equal(other_optimizer.state_dict(), optimizer.state_dict())
    advance(model, optimizer, 2)
    advance(other, other_optimizer, 2)
    assert equal(dict(other.state_dict()), dict(model.state_dict()))


@pytest.mark.parametrize("kind", [str, Path])
def test_a_checkpoint_at_a_path(tmp_path: Path, kind: type) -> None:
    model, optimizer = trained(0, steps=3)
    adapters.run_save_checkpoint(model, optimizer, iteration=3, out=kind(tmp_path / "checkpoint.pt"))
    check_restored(model, optimizer, kind(tmp_path / "checkpoint.pt"))


def test_a_checkpoint_with_an_iteration_of_numpy() -> None:
    model, optimizer = trained(0, steps=3)
    buffer = io.BytesIO()
    with types_unchecked():
        adapters.run_save_checkpoint(model, optimizer, np.int64(3), buffer)
    buffer.seek(0)
    check_restored(model, optimizer, buffer)


def test_a_checkpoint_in_an_open_file(tmp_path: Path) -> None:
    model, optimizer = trained(0, steps=3)
    with (tmp_path / "checkpoint.pt").open("wb") as file:
        adapters.run_save_checkpoint(model, optimizer, iteration=3, out=file)
    with (tmp_path / "checkpoint.pt").open("rb") as file:
        check_restored(model, optimizer, file)


def test_a_checkpoint_in_memory() -> None:
    model, optimizer = trained(0, steps=3)
    buffer = io.BytesIO()
    adapters.run_save_checkpoint(model, optimizer, iteration=3, out=buffer)
    buffer.seek(0)
    check_restored(model, optimizer, buffer)


def test_a_checkpoint_of_a_compiled_model_is_that_of_the_plain_one() -> None:
    model, optimizer = trained(0, steps=1)
    buffer = io.BytesIO()
    course.save_checkpoint(torch.compile(model), optimizer, 1, buffer)  # type: ignore[arg-type]
    for wrap in (lambda module: module, torch.compile):
        other, other_optimizer = trained(1, steps=0)
        buffer.seek(0)
        course.load_checkpoint(buffer, wrap(other), other_optimizer)
        assert equal(dict(other.state_dict()), dict(model.state_dict()))


class Bomb:
    """Unpickling it runs code."""

    def __reduce__(self) -> tuple[object, ...]:
        return exec, ("raise SystemError('code of the checkpoint ran')",)


def test_a_checkpoint_runs_no_code() -> None:
    model, optimizer = trained(0, steps=0)
    buffer = io.BytesIO()
    torch.save({"model": Bomb(), "optimizer": {}, "iteration": 0}, buffer)
    buffer.seek(0)
    with pytest.raises(Exception, match=r"weights_only|Weights only"):
        course.load_checkpoint(buffer, model, optimizer)


# ---- BPE training

LETTERS = st.text(alphabet="aab  \n'.é中1\t" + "x", max_size=60)
SPECIAL = ["<a>", "<a><a>", "x y"]


def trained_bpe(path: Path, text: str, size: int, special: list[str]) -> tuple[dict, list]:
    path.write_bytes(text.encode())
    return adapters.run_train_bpe(path, size, special)


@given(parts=st.lists(st.one_of(LETTERS, st.sampled_from(SPECIAL)), max_size=12), merges=st.integers(0, 30))
def test_merges_are_those_of_counting_anew_each_time(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], merges: int
) -> None:
    text, path = "".join(parts), tmp_path_factory.getbasetemp() / "bpe.txt"
    vocab, learnt = trained_bpe(path, text, 256 + len(SPECIAL) + merges, SPECIAL)
    assert learnt == reference.train_bpe(text, merges, SPECIAL)
    tokens = [token.encode() for token in SPECIAL] + [bytes([byte]) for byte in range(256)]
    assert list(vocab.items()) == list(enumerate([*tokens, *dict.fromkeys(a + b for a, b in learnt)]))


def test_ties_go_to_the_greater_pair_of_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    _, merges = trained_bpe(path, "low low low", 256 + 2, [])
    assert merges == [(b"o", b"w"), (b"l", b"ow")]  # "lo" and "ow" occur three times each
    assert trained_bpe(path, "ab ba", 257, [])[1] == [(b"b", b"a")]
    # Of equals the first token decides, then the second; a token is greater than its own beginning.
    words = {b"ab": 5, b"cc": 3, b"abx": 2, b"ax": 2, b"bx": 2}
    assert learn_merges(words, 5) == [(b"a", b"b"), (b"c", b"c"), (b"b", b"x"), (b"ab", b"x"), (b"a", b"x")]


def test_special_tokens_are_neither_learnt_nor_merged_across(tmp_path: Path) -> None:
    text = f"ab{END}ab{END}{END}cab{END}" * 50
    vocab, merges = trained_bpe(tmp_path / "text.txt", text, 400, [END])
    assert vocab[0] == END.encode()
    assert {a + b for a, b in merges} == {b"ab", b"cab"}
    assert len(vocab) == 259  # smaller than asked for: there are no more pairs


SHAKESPEARE = """First Citizen:
Before we proceed any further, hear me speak.

All:
Speak,  speak.

First Citizen:
You are all resolved rather to die than to famish?   \tYes, 'tis 1595's.
"""


def test_a_file_is_read_in_blocks_without_cutting_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{SHAKESPEARE}{END}\r\n  {SHAKESPEARE}"
    whole = trained_bpe(tmp_path / "text.txt", text, 330, [END])
    assert whole[1] == reference.train_bpe(text, 330 - 257, [END])
    monkeypatch.setattr("glassformer.text.bpe.BLOCK", 3)
    assert adapters.run_train_bpe(tmp_path / "text.txt", 330, [END]) == whole


def test_training_takes_seconds_for_megabytes(tmp_path: Path) -> None:
    """Counting anew at each of these merges takes minutes."""
    generator = np.random.default_rng(0)
    syllables = ["".join(pair) for pair in zip("bcdfghklmnprst" * 6, "aeiou" * 17, strict=False)]
    words = ["".join(generator.choice(syllables, size)) for size in generator.integers(1, 6, 20_000)]
    text = " ".join(words[min(19_999, int(rank))] for rank in generator.zipf(1.2, 300_000))
    start = time.process_time()
    vocab, _ = trained_bpe(tmp_path / "text.txt", text, 3000, [END])
    assert time.process_time() - start < 20
    assert len(vocab) == 3000


def test_errors_of_training(tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    with pytest.raises(ValueError, match="at least 257, bytes and special tokens; got 256"):
        trained_bpe(path, "a", 256, [END])
    # Before the text is read.
    missing = tmp_path / "missing.txt"
    with pytest.raises(ValueError, match="'b' is also a token of the vocabulary"):
        adapters.run_train_bpe(missing, 300, ["b"])
    with pytest.raises(ValueError, match="a special token must have at least one character"):
        adapters.run_train_bpe(missing, 300, ["", END])
    with pytest.raises(TypeError, match="special_tokens must be a list of texts, got the text"):
        adapters.run_train_bpe(missing, 300, END)


def test_a_special_token_is_never_the_result_of_a_merge(tmp_path: Path) -> None:
    special = ["ab", "é", " t"]
    vocab, merges = trained_bpe(tmp_path / "text.txt", "abab aab bab é éé the the tab t t " * 9, 300, special)
    assert merges
    assert len({*vocab.values()}) == len(vocab)


# ---- encoding


def learnt(tmp_path: Path, special: list[str]) -> tuple[dict[int, bytes], list[tuple[bytes, bytes]]]:
    return trained_bpe(tmp_path / "text.txt", SHAKESPEARE * 2 + "aaaa aaa é é 中中", 350, special)


@given(parts=st.lists(st.one_of(LETTERS, st.sampled_from([*SPECIAL, SHAKESPEARE[:80]])), max_size=8), data=st.data())
def test_ids_are_those_of_the_merges_in_order(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], data: st.DataObject
) -> None:
    text = "".join(parts)
    vocab, merges = learnt(tmp_path_factory.getbasetemp(), SPECIAL)
    tokenizer = adapters.get_tokenizer(vocab, merges, SPECIAL)
    ids = tokenizer.encode(text)
    assert ids == reference.encode(text, vocab, merges, SPECIAL)
    assert tokenizer.decode(ids) == text
    # The same ids however the text is divided.
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert list(tokenizer.encode_iterable(pieces)) == ids
    assert list(tokenizer.encode_iterable(text)) == ids  # character by character
    assert list(tokenizer.encode_iterable(text.splitlines(keepends=True))) == ids


def test_of_overlapping_special_tokens_the_longest_counts(tmp_path: Path) -> None:
    special = [END, END + END]
    vocab, merges = learnt(tmp_path, special)
    tokenizer = adapters.get_tokenizer(vocab, merges, special)
    ids = tokenizer.encode(f"a{END}{END}b{END}")
    assert [tokenizer.decode([number]) for number in ids] == ["a", END + END, "b", END]
    assert tokenizer.encode(END + END) == [1]
    assert list(tokenizer.encode_iterable([END, END, "<|end", "oftext|>"])) == [1, 0]
    leftmost = adapters.get_tokenizer(vocab, merges, [*special, "ab", "bcd"])
    assert [leftmost.decode([number]) for number in leftmost.encode("abcd")] == ["ab", "c", "d"]


@pytest.mark.parametrize("text", ["中", "a b"], ids=["no white space", "a special token at every cut"])
def test_encoding_part_by_part_takes_linear_time(tmp_path: Path, text: str) -> None:
    special = ["a b", "b a"]
    vocab, merges = learnt(tmp_path, special)
    tokenizer = adapters.get_tokenizer(vocab, merges, special)
    parts = [character for _ in range(40_000 // len(text)) for character in text]
    start = time.process_time()
    ids = list(tokenizer.encode_iterable(parts))
    ids_of_two = list(tokenizer.encode_iterable([text * 40_000, text]))
    assert time.process_time() - start < 5
    assert ids == tokenizer.encode("".join(parts))
    assert ids_of_two == tokenizer.encode(text * 40_001)


def test_special_tokens_are_added_if_the_vocabulary_lacks_them(tmp_path: Path) -> None:
    vocab, merges = learnt(tmp_path, [])
    with_special = adapters.get_tokenizer(vocab, merges, ["<é b>"])
    assert with_special.encode("é<é b>") == [*with_special.encode("é"), len(vocab)]
    assert with_special.decode([len(vocab)]) == "<é b>"
    plain = adapters.get_tokenizer(vocab, merges)
    assert plain.decode(plain.encode("é<é b>")) == "é<é b>"
    assert len(plain.encode("<é b>")) > 1


def test_the_example_of_the_handout() -> None:
    vocab = dict(enumerate([b" ", b"a", b"c", b"e", b"h", b"t", b"th", b" c", b" a", b"the", b" at"]))
    merges = [(b"t", b"h"), (b" ", b"c"), (b" ", b"a"), (b"th", b"e"), (b" a", b"t")]
    tokenizer = adapters.get_tokenizer(vocab, merges)
    assert tokenizer.encode("the cat ate") == [9, 7, 1, 5, 10, 3]
    assert tokenizer.encode("") == []
    with pytest.raises(ValueError, match="no token for the byte b'b'"):
        tokenizer.encode("the bat")


def test_decoding_bytes_that_are_no_text_and_ids_that_are_no_tokens(tmp_path: Path) -> None:
    vocab, merges = learnt(tmp_path, [END])
    tokenizer = adapters.get_tokenizer(vocab, merges, [END])
    (first,) = [number for number, token in vocab.items() if token == b"\xe4"]
    assert tokenizer.decode([first]) == "\ufffd"
    with pytest.raises(ValueError, match="no token 9999"):
        tokenizer.decode([9999])


def test_files_of_gpt2(tmp_path: Path) -> None:
    vocab, merges = learnt(tmp_path, [END, "<x y>"])
    tokenizer = course.BPETokenizer(vocab, merges, [END, "<x y>"])
    tokenizer.save(tmp_path / "vocab.json", tmp_path / "merges.txt")
    again = course.BPETokenizer.from_files(tmp_path / "vocab.json", tmp_path / "merges.txt", [END])
    assert again.vocab == vocab
    assert again.merges == merges
    text = f"{SHAKESPEARE}{END} é"
    assert again.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize("header", ["", "#version: 0.2\n"])
def test_merges_that_begin_like_the_header_of_their_file(tmp_path: Path, header: str) -> None:
    pairs = [(b"#version", b"s"), (b"#version", b":")]
    tokens = [b"#version", b"s", b":", b"#versions", b"#version:"]
    tokenizer = course.BPETokenizer(dict(enumerate(tokens)), pairs)
    files = tmp_path / "vocab.json", tmp_path / "merges.txt"
    tokenizer.save(*files)
    assert course.BPETokenizer.from_files(*files).merges == pairs
    lines = files[1].read_text().splitlines(keepends=True)
    assert lines.pop(0) == "#version: 0.2\n"
    files[1].write_text(header + "".join(lines))
    assert course.BPETokenizer.from_files(*files).merges == pairs


def test_wrong_vocabularies() -> None:
    with pytest.raises(ValueError, match="2 ids of the vocabulary have the same token, b'a'"):
        course.BPETokenizer({0: b"a", 1: b"b", 2: b"a"}, [])
    with pytest.raises(ValueError, match="at least one character"):
        course.BPETokenizer({0: b"a"}, [], [""])
    with pytest.raises(ValueError, match="'Ġa' is also how the vocabulary writes another token, b' a'; rename it"):
        course.BPETokenizer({0: b" a"}, [], ["Ġb", "Ġa"])
    with pytest.raises(ValueError, match="merge of b'a' and b'b' needs b'ab', which is not in the vocabulary"):
        course.BPETokenizer({0: b"a", 1: b"b"}, [(b"a", b"b")])
    with pytest.raises(ValueError, match="an id must be at least 0; the token b'b' has -1"):
        course.BPETokenizer({0: b"a", -1: b"b"}, [])
    with pytest.raises(TypeError, match="special_tokens must be a list of texts, got the text"):
        course.BPETokenizer({0: b"a"}, [], END)


def test_its_tokenizer_serves_the_rest_of_the_package(tmp_path: Path) -> None:
    vocab, merges = learnt(tmp_path, [END])
    ours = course.BPETokenizer(vocab, merges, [END])
    assert ours.tokenizer.vocab_size == len(vocab)
    assert ours.tokenizer.decode(ours.encode(SHAKESPEARE)) == SHAKESPEARE


def test_targets_that_do_not_fit_the_logits_are_an_error() -> None:
    with types_unchecked(), pytest.raises((ValueError, RuntimeError)):
        course.cross_entropy(torch.zeros(3, 5), torch.zeros(2, dtype=torch.long))
