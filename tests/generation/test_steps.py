"""Static caches, tokens and beams chosen on the device, compiled steps: the same texts as the dynamic steps."""

import gc
import subprocess
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from glassformer import record
from glassformer.config import LMHead, ModelConfig
from glassformer.generation import steps
from glassformer.generation.api import generate, generate_stream
from glassformer.generation.decoder import Decoder
from glassformer.generation.device_beam import BeamState
from glassformer.generation.device_search import Pending
from glassformer.generation.search import GenerationOutput
from glassformer.generation.settings import GenerationSettings
from glassformer.generation.steps import StepRunner, StepState, choose_decoding, why_not_captured
from glassformer.models.transformer import Transformer
from glassformer.nn.cache import KVCache
from glassformer.nn.kernels import compiler
from glassformer.nn.kernels.static_cache import StaticCache, capacity_for
from tests.configs import CONFIGS, LONGEST, built, random_config, tokens
from tests.helpers import largest_difference, randomise, some_at_once, types_unchecked

WRITERS = [name for name, facts in CONFIGS.items() if facts.decoder is not None and isinstance(facts.head, LMHead)]
PROMPTS = [[1, 2, 3, 4, 5], [7, 8], [9, 1, 2]]
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"eos": (3,)},
    "sample": {"temperature": 1.0, "top_k": 5, "top_p": 0.9, "min_p": 0.01, "samples": 2, "eos": (3, 5)},
    "beam": {"beam_size": 3, "top_beams": 3, "eos": (3,)},
    "processors": {"temperature": 0.7, "min_new_tokens": 4, "repetition_penalty": 1.3, "eos": (3, 4, 5, 6)},
    "alternatives": {"top_alternatives": 2, "record": True, "eos": (3,)},
}


def start_of(model: Transformer) -> dict[str, Any]:
    return {} if model.encoder is None else {"start": [2]}


def assert_same(ours: list[list[GenerationOutput]], theirs: list[list[GenerationOutput]], bound: float = 1e-9) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert (a.ids, a.ended) == (b.ids, b.ended)
            assert a.log_probs == pytest.approx(b.log_probs, abs=bound)
            assert a.score == pytest.approx(b.score, abs=bound)
            assert [[one.token for one in some] for some in a.alternatives] == [
                [one.token for one in some] for some in b.alternatives
            ]


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", some_at_once(WRITERS, lambda name: name in ("gpt2", "t5", "gpt_neo", "llama")))
def test_static_steps_generate_the_same_texts(name: str, kind: str) -> None:
    model = built(name)
    asked = GenerationSettings(max_new_tokens=12, **SETTINGS[kind])
    expected = generate(model, PROMPTS, asked, **start_of(model))
    assert_same(generate(model, PROMPTS, asked, decoding="static", **start_of(model)), expected)


def generates(facts: ModelConfig) -> bool:
    return facts.vocab >= 8 and facts.decoder is not None and isinstance(facts.head, LMHead)


RANDOM = [seed for seed in range(200) if generates(random_config(seed))]


@pytest.mark.parametrize("seed", some_at_once(RANDOM, lambda seed: seed in RANDOM[:12]))
def test_random_models(seed: int) -> None:
    facts = random_config(seed)
    model, prompts = built(facts), [[token % facts.vocab for token in prompt] for prompt in PROMPTS]
    for kind in ("greedy", "sample", "beam"):
        asked = GenerationSettings(max_new_tokens=8, **SETTINGS[kind])
        expected = generate(model, prompts, asked, **start_of(model))
        assert_same(generate(model, prompts, asked, decoding="static", **start_of(model)), expected)


@pytest.mark.parametrize(
    ("early", "penalty", "rule"),
    some_at_once(
        product((True, False, "never"), (-1.0, 0.0, 0.7, 2.0), ("power", "gnmt")),
        lambda given: given[1] in (0.7, -1.0) and given[2] == "power",
    ),
)
def test_beams_on_the_device_follow_the_same_rules(early: Any, penalty: float, rule: Any) -> None:
    for seed, eos in product(range(4), ((3,), (0, 2), ())):
        facts = replace(CONFIGS["gpt2"], vocab=5 + 3 * seed)
        model = built(facts, seed=seed)
        asked = GenerationSettings(
            beam_size=4,
            top_beams=4,
            max_new_tokens=7,
            eos=eos,
            early_stopping=early,
            length_penalty=penalty,
            length_rule=rule,
        )
        prompts = [[1, 2, 3], [4], [0, 1, 2, 3, 4, 0, 1]]
        assert_same(generate(model, prompts, asked, decoding="static"), generate(model, prompts, asked))


def test_rows_that_end_with_the_positions_of_the_model() -> None:
    """The longest prompt has room for 2 tokens; its row is read on with the others, at the last position."""
    model = built("gpt2")
    prompts = [[1] * (LONGEST - 2), [1, 2], [3] * (LONGEST - 9)]
    for options in ({}, {"temperature": 1.0}, {"beam_size": 3}, {"min_new_tokens": 1, "eos": (2,)}):
        asked = GenerationSettings(max_new_tokens=40, **options)
        expected = generate(model, prompts, asked)
        assert {text[0].ended for text in expected} & {"context"}
        assert_same(generate(model, prompts, asked, decoding="static"), expected)


@pytest.mark.parametrize("name", ["llama", "t5"])
def test_a_static_cache_grows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 64 to 128 slots; sampling needs a second set of 64 random numbers before."""
    monkeypatch.setattr(steps, "AHEAD", 8)
    model = built(name)
    for options in ({}, {"temperature": 1.0}, {"beam_size": 2}, {"min_new_tokens": 1, "eos": (30,)}):
        asked = GenerationSettings(max_new_tokens=70, **options)
        expected = generate(model, PROMPTS[:2], asked, **start_of(model))
        assert_same(generate(model, PROMPTS[:2], asked, decoding="static", **start_of(model)), expected)


def test_a_prompt_longer_than_the_window_of_a_cache_that_evicts() -> None:
    model = built("gpt_neo")
    prompts, asked = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [4, 5, 6]], GenerationSettings(max_new_tokens=10)
    for chunk in (None, 2):
        expected = generate(model, prompts, asked, chunk=chunk)
        assert_same(generate(model, prompts, asked, chunk=chunk, decoding="static"), expected)


@pytest.mark.parametrize("path", ["eager", "sdpa"])
def test_a_step_equals_the_whole_text(path: Any) -> None:
    model = built("llama")
    text = tokens(3, 9)
    with torch.inference_mode():
        decoder = Decoder(model, path=path, decoding="static")
        cache, _ = decoder.begin(text[:, :5], None, 4)
        run = StepRunner(decoder, "test", lambda like, capacity: StepState(decoder, like, 3, capacity))
        state = run.begin(cache, 4)
        for at in range(5, 9):
            state.tokens.copy_(text[:, at : at + 1])
            logits = state.feed(model)
            assert largest_difference(logits, model(text[:, : at + 1])[:, -1]) < 1e-12


class Operators(TorchDispatchMode):
    """Notes the operators whose results have a size that depends on values, for which a CUDA graph cannot wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        by_mask = name.startswith(("index", "_index")) and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ())
        )
        # isin calls unique, if there are many values to look for.
        if by_mask or name in ("nonzero", "_local_scalar_dense", "isin", "_unique2", "masked_select", "bincount"):
            self.waiting.add(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neo", "t5"])
def test_no_operator_of_a_step_waits_for_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, run = built(name), Operators(), StepRunner.run

    def watched(self: StepRunner[Any]) -> None:
        with seen:
            run(self)

    monkeypatch.setattr(StepRunner, "run", watched)
    sampling = {"temperature": 0.8, "top_k": 9, "top_p": 0.9, "min_p": 0.01, "typical_p": 0.9}
    for options in ({}, sampling, {"beam_size": 3}):
        asked = GenerationSettings(max_new_tokens=5, eos=(3, 4), **options)
        generate(model, PROMPTS, asked, decoding="static", **start_of(model))
    assert seen.waiting == set()


def test_streams_yield_every_token_and_can_be_closed() -> None:
    model = built("llama")
    asked = GenerationSettings(max_new_tokens=9)
    whole = generate(model, [[1, 2]], asked)[0][0]
    stream = generate_stream(model, [[1, 2]], asked, decoding="static")
    assert [token.token for token in stream] == whole.ids
    stream = generate_stream(model, [[1, 2]], asked, decoding="static")
    assert next(stream).token == whole.ids[0]
    stream.close()


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0}, {"beam_size": 2}], ids=str)
def test_damaged_weights_are_reported_as_in_dynamic_steps(options: dict[str, Any]) -> None:
    in_all_texts, at_a_position = built("gpt2"), built("gpt2")
    with torch.no_grad():
        in_all_texts.decoder.norm.weight[0] = torch.nan
        at_a_position.embed.position.weight[5] = torch.nan  # which the longer prompt alone reaches
    for model, row in ((in_all_texts, 0), (at_a_position, options.get("beam_size", 1))):
        messages = []
        for decoding in ("dynamic", "static"):
            asked = GenerationSettings(max_new_tokens=3, **options)
            with pytest.raises(ValueError, match=f"hold NaN in row {row}") as caught:
                generate(model, [[1, 2], [1, 2, 3, 4, 5, 6]], asked, decoding=decoding)
            messages.append(str(caught.value))
        assert messages[0] == messages[1]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_decodings_that_are_impossible_say_why() -> None:
    model = built("gpt2")
    asked = GenerationSettings(max_new_tokens=2)
    with pytest.raises(ValueError, match="needs a GPU, and the model is on cpu"):
        generate(model, [[1]], asked, decoding="graph")
    with pytest.raises(ValueError, match="decoding must be"), types_unchecked():
        generate(model, [[1]], asked, decoding="quick")  # type: ignore[arg-type]
    for options, why in (
        ({"beam_size": 4, "beam_groups": 2, "diversity": 1.0}, "groups"),
        ({"contrastive_alpha": 0.5, "top_k": 3}, "contrastive"),
        ({"beam_size": 2, "repetition_penalty": 1.2}, "constraints"),
        ({"beam_size": 2, "top_alternatives": 2}, "alternatives"),
    ):
        with pytest.raises(ValueError, match=why):
            generate(model, [[1]], GenerationSettings(max_new_tokens=2, **options), decoding="static")


def test_models_that_run_python_at_each_step_are_not_captured() -> None:
    def why(model: Transformer) -> str:
        return why_not_captured(model, "compiled") or ""

    class Own(nn.Identity):
        pass

    assert why(built("gpt2")) == ""
    hooked = built("gpt2")
    hooked.decoder.blocks[0].register_forward_hook(lambda *_: None)
    assert "hook" in why(hooked)
    other = built("gpt2")
    other.decoder.blocks[0].ffn = Own()
    assert "Own" in why(other)
    replaced = built("gpt2")
    replaced.decoder.forward = lambda *_: None  # type: ignore[method-assign]
    assert "forward" in why(replaced)
    seen = built("gpt2")
    with record(seen):
        for decoding in ("static", "compiled"):
            with pytest.raises(ValueError, match="the model is observed"):
                choose_decoding(seen, decoding)  # type: ignore[arg-type]
        assert choose_decoding(seen, "auto") == "dynamic"


def test_a_changed_config_value_is_another_step() -> None:
    """Captured steps are kept by a fingerprint of the model, which facts and lists of windows are part of."""
    model = built("llama")
    decoder = model.decoder
    assert decoder is not None
    fingerprints = [steps._fingerprint(model)]
    for change in ({"facts": replace(decoder.facts, causal=False)}, {"layer_windows": [2, 3]}):
        vars(decoder).update(change)
        fingerprints.append(steps._fingerprint(model))
    assert len(set(fingerprints)) == 3


def switches_of_pytorch() -> None:
    """In a process of its own, whose switches it sets."""
    model, products = built("gpt2"), torch.backends.cuda.matmul
    fingerprints = [steps._fingerprint(model), steps._fingerprint(model)]
    for switch in (
        lambda: torch.set_float32_matmul_precision("high"),
        lambda: setattr(products, "fp32_precision", "ieee"),
        lambda: setattr(products, "allow_bf16_reduced_precision_reduction", False),
        lambda: setattr(products, "allow_fp16_accumulation", True),
        lambda: torch.use_deterministic_algorithms(True),
        lambda: torch.backends.cuda.enable_flash_sdp(False),
    ):
        switch()
        fingerprints.append(steps._fingerprint(model))
    assert len(set(fingerprints)) == len(fingerprints) - 1


def test_a_switch_of_pytorch_is_another_step() -> None:
    code = "from tests.generation.test_steps import switches_of_pytorch; switches_of_pytorch()"
    subprocess.run([sys.executable, "-c", code], check=True)


class Stream:
    """A CUDA stream that notes which events it waits for, and which tensors it was recorded on."""

    def __init__(self) -> None:
        self.waited: list[Any] = []
        self.recorded: list[torch.Tensor] = []

    def wait_event(self, event: Any) -> None:
        self.waited.append(event.stream)


class Event:
    stream: Stream | None = None

    def record(self, stream: Stream | None = None) -> None:
        self.stream = stream


def test_a_captured_step_goes_from_stream_to_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next stream waits for the last; the memory belongs to the first, which must learn of the others."""
    model, streams = built("t5"), [Stream(), Stream()]
    current = streams[:1]
    monkeypatch.setattr("torch.cuda.current_stream", lambda _: current[0])
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: stream.recorded.append(tensor))
    with torch.inference_mode():
        decoder = Decoder(model, torch.tensor([[1, 2, 3]]), decoding="static")
        cache, _ = decoder.begin(torch.tensor([[2]]), None, 1)
        state = BeamState(decoder, cache, 1, 64, GenerationSettings(max_new_tokens=1), 0)
    captured = steps._Captured.__new__(steps._Captured)
    captured.key, captured.state, captured.fingerprint = "key", state, steps._fingerprint(model)
    vars(captured).update(_device=None, _owner=streams[0], _user=streams[0], _done=Event())
    steps._give_back(model, captured)
    for turn, (stream, before) in enumerate(((1, 0), (0, 1), (0, 0))):
        current[0] = streams[stream]
        assert steps._borrow(model, "another key") is None
        assert steps._borrow(model, "key") is captured
        assert steps._borrow(model, "key") is None
        assert streams[stream].waited[-1] is streams[before]
        current[0] = streams[turn % 2]  # a search may be closed from elsewhere
        steps._give_back(model, captured)
    steps.release(model)
    assert not streams[0].recorded
    cached = [x for layer in state.cache.layers.values() for x in (layer.k, layer.v, *(layer.memory or ()))]
    everything = [*vars(state).values(), *vars(state.cache).values(), *cached]
    expected = {x.untyped_storage().data_ptr() for x in everything if isinstance(x, torch.Tensor)}
    assert {x.untyped_storage().data_ptr() for x in streams[1].recorded} == expected


def test_results_are_fetched_from_the_device_they_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU may be the current one; to wait for a stream of that one would be too early."""
    streams = {torch.device("cuda", 0): Stream(), torch.device("cuda", 1): Stream()}
    monkeypatch.setattr("torch.cuda.Event", Event)
    monkeypatch.setattr("torch.cuda.current_stream", lambda device=None: streams[device or torch.device("cuda", 0)])
    with FakeTensorMode():
        results, copied = torch.zeros(2, 3, device="cuda:1"), torch.zeros(2, 3)
        monkeypatch.setattr("torch.empty", lambda *_, **__: copied)  # memory is pinned only where there is a GPU
        pending = Pending(results)
    event: Any = pending._event
    assert event.stream is streams[torch.device("cuda", 1)]


def test_the_steps_before_a_capture_have_room_for_their_beams() -> None:
    model, asked = built("gpt2"), GenerationSettings(max_new_tokens=1, beam_size=2)
    with torch.inference_mode():
        decoder = Decoder(model, decoding="static")
        cache, _ = decoder.begin(torch.tensor([[1, 2, 3]] * 2), None, 1)
        state = BeamState(decoder, cache, 1, 64, asked, 0)
        for _ in range(steps.WARM_UP):
            state.step(model)
    assert int(state.length) == steps.WARM_UP


@pytest.mark.parametrize(("name", "steps"), [("gpt2", LONGEST), ("bloom", 64)])
def test_beams_take_no_more_memory_than_there_are_positions_and_slots(name: str, steps: int) -> None:
    asked = GenerationSettings(max_new_tokens=10**6, beam_size=2)
    with torch.inference_mode():
        decoder = Decoder(built(name), decoding="static")
        cache, _ = decoder.begin(torch.tensor([[1, 2, 3]] * 2), None, 1)
        state = BeamState(decoder, cache, 1, 64, asked, 0)
    assert (len(state.history), len(state.divisors)) == (steps, steps + 1)


@pytest.mark.parametrize("early", [True, "never"])
@pytest.mark.parametrize("name", ["bloom", "t5"])
def test_the_history_of_beams_grows_with_the_slots(name: str, early: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 64 slots to 128 and 256; a prompt of one token leaves the most of them to the beams."""
    monkeypatch.setattr(steps, "AHEAD", 8)
    sizes, made = [], BeamState.__init__
    monkeypatch.setattr(BeamState, "__init__", lambda self, *of: (made(self, *of), sizes.append(len(self.history)))[0])
    model = built(name)
    asked = GenerationSettings(max_new_tokens=140, beam_size=2, top_beams=2, early_stopping=early, length_penalty=0.5)
    expected = generate(model, [[1], [4]], asked, **start_of(model))
    assert_same(generate(model, [[1], [4]], asked, decoding="static", **start_of(model)), expected)
    assert sizes == [64, 128, 140]


def test_options_are_checked_without_prompts() -> None:
    wrong: Any = {"decoding": "quick"}
    for call in (generate, generate_stream):
        with types_unchecked(), pytest.raises(ValueError, match="decoding must be one of"):
            call(built("gpt2"), [], **wrong)


def test_a_static_cache_refuses_what_it_cannot_do() -> None:
    model = built("gpt2")
    with torch.inference_mode():
        with pytest.raises(ValueError, match="holds at least one token"):
            StaticCache(KVCache(), 8)
        cache = KVCache()
        model.decode(tokens(2, 5), cache=cache)
        static = StaticCache(cache, 8)
        with pytest.raises(ValueError, match="cannot hold the 5 slots"):
            StaticCache(cache, 4).fill(cache)
        static.fill(cache)
        with pytest.raises(ValueError, match="one real token per row"):
            model.decode(tokens(2, 2), cache=static)
        with pytest.raises(ValueError, match="keeps its rows"):
            static.select(torch.tensor([0]))
        with pytest.raises(ValueError, match="cannot be cropped"):
            static.crop(1)


def test_capacities_are_few_and_little_more_than_needed() -> None:
    assert [capacity_for(slots) for slots in (1, 64, 65, 128, 200, 272, 1025)] == [64, 64, 128, 128, 256, 320, 1280]
    assert all(slots <= capacity_for(slots) <= max(64, 1.25 * slots) or slots < 256 for slots in range(1, 5000))


# --- compiled ---------------------------------------------------------------------------------------------------------


def use_backend(backend: str) -> None:
    compiler = torch.compile
    torch.compile = lambda f, **how: compiler(f, backend=backend, **how)  # type: ignore[assignment]


def compiled_steps() -> None:
    """Every kind of step is one graph; run in a process of its own."""
    use_backend("aot_eager")
    for name, kinds in (("llama", ("greedy", "processors")), ("t5", ("beam",)), ("gptj", ("sample",))):
        model = Transformer(CONFIGS[name]).double().eval()
        randomise(model)
        for kind in kinds:
            asked = GenerationSettings(max_new_tokens=6, **SETTINGS[kind])
            expected = generate(model, PROMPTS, asked, **start_of(model))
            assert_same(generate(model, PROMPTS, asked, decoding="compiled", **start_of(model)), expected)


@pytest.mark.slow
def test_compiled_steps_generate_the_same_texts() -> None:
    """The run-time shape checks of the other tests are Python that no compiler can trace."""
    code = "from tests.generation.test_steps import compiled_steps; compiled_steps()"
    subprocess.run([sys.executable, "-c", code], check=True)


def more_compiled_steps_than_versions() -> None:
    """Each batch size is another step; PyTorch's limit holds for each alone, and what is dropped is freed."""
    use_backend("eager")
    compiler.VERSIONS = torch._dynamo.config.recompile_limit = 1
    model = Transformer(CONFIGS["llama"]).eval()
    for rows in range(1, 4):
        generate(model, [[1, 2, 3]] * rows, GenerationSettings(max_new_tokens=3), decoding="compiled")
    gc.collect()
    # PyTorch puts what it compiled among the names of the module that holds the code.
    assert not [name for name in vars(steps) if name.startswith("__compiled_fn")]


@pytest.mark.slow
def test_a_process_compiles_any_number_of_steps() -> None:
    code = "from tests.generation.test_steps import more_compiled_steps_than_versions as test; test()"
    subprocess.run([sys.executable, "-c", code], check=True)
