"""Other programs that watch a run: they get every step once, and cannot end it."""

import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from glassformer.training.logging.sinks import Sink, Sinks, TensorBoard, WeightsAndBiases, step_values
from glassformer.training.loop import StepReport


def read(folder: Path) -> EventAccumulator:
    result = EventAccumulator(str(folder))
    result.Reload()
    return result


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in read(folder).Scalars(name)]


def texts(folder: Path) -> list[tuple[int, str]]:
    """As TensorBoard itself reads them: the other reader purges numbers alone."""
    result = plugin_event_accumulator.EventAccumulator(str(folder))
    result.Reload()
    events = result.Tensors("sample/text_summary")
    return [(event.step, event.tensor_proto.string_val[0].decode()) for event in events]


def run_to(sink: Sink, steps: range, shift: float = 0.0) -> None:
    for step in steps:
        sink.step(step, {"loss": step + shift, "mfu": None})
        if step % 2 == 0:
            sink.validation(step, {"loss": 10 * step + shift})
            sink.text(step, f"after {step}\n# as it is")


def test_tensorboard_has_what_it_was_told(tmp_path: Path) -> None:
    sink = TensorBoard(tmp_path)
    run_to(sink, range(1, 5))
    sink.close()
    assert scalars(tmp_path, "train/loss") == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0)]
    assert scalars(tmp_path, "validation/loss") == [(2, 20.0), (4, 40.0)]
    assert texts(tmp_path) == [(2, "    after 2\n    # as it is"), (4, "    after 4\n    # as it is")]
    assert read(tmp_path).Tags()["scalars"] == ["train/loss", "validation/loss"]  # None is not written


@pytest.mark.parametrize("done", [0, 2, 3, 5])
def test_tensorboard_shows_steps_that_are_made_again_once(tmp_path: Path, done: int) -> None:
    """Killed after step 5; goes on from the checkpoint after ``done``, or anew."""
    before = TensorBoard(tmp_path)
    run_to(before, range(6))
    before.close()
    again = TensorBoard(tmp_path, done=done)
    first = done + 1 if done else 0
    run_to(again, range(first, 8), shift=0.5)
    again.close()
    expected = [(step, step + 0.5 * (step >= first)) for step in range(8)]
    assert scalars(tmp_path, "train/loss") == expected
    assert [step for step, _ in scalars(tmp_path, "validation/loss")] == [0, 2, 4, 6]
    assert [step for step, _ in texts(tmp_path)] == [0, 2, 4, 6]


@dataclass
class Service:
    """Stands in for the package wandb: keeps runs by id and, like it, takes no step that lies behind."""

    runs: dict[str, "ServiceRun"] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def init(self, **options: Any) -> "ServiceRun":
        self.asked.append(options)
        run = self.runs.setdefault(options["id"], ServiceRun())
        assert options["resume"] == "allow"
        run.step = max((step for step, _ in run.rows), default=-1) + 1
        return run

    @staticmethod
    def Html(text: str) -> str:  # noqa: N802 - by its name there
        return f"html {text}"


@dataclass
class ServiceRun:
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    step: int = 0
    finished: int = 0

    def log(self, values: dict[str, Any], *, step: int) -> None:
        assert step >= self.step, f"step {step} lies behind {self.step}"
        self.step = step
        self.rows.append((step, values))

    def finish(self) -> None:
        self.finished += 1


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=made.init, Html=made.Html))
    return made


def test_weights_and_biases_has_what_it_was_told(service: Service, tmp_path: Path) -> None:
    sink = WeightsAndBiases(tmp_path / "run", project="letters", name="first", facts={"lr": 0.1})
    run_to(sink, range(1, 3))
    sink.text(2, "a < b", "other")
    sink.close()
    (asked,) = service.asked
    assert asked | {"id": ""} == {
        "project": "letters",
        "name": "first",
        "id": "",
        "resume": "allow",
        "dir": str(tmp_path / "run"),
        "config": {"lr": 0.1},
    }
    run = service.runs[asked["id"]]
    assert run.finished == 1
    assert run.rows == [
        (1, {"train/loss": 1.0}),
        (2, {"train/loss": 2.0}),
        (2, {"validation/loss": 20.0}),
        (2, {"sample": "html <pre>after 2\n# as it is</pre>"}),
        (2, {"other": "html <pre>a &lt; b</pre>"}),
    ]


def test_a_run_that_goes_on_is_the_same_run_there_and_has_each_step_once(service: Service, tmp_path: Path) -> None:
    run_to(WeightsAndBiases(tmp_path, project="letters"), range(1, 6))  # killed: never closed
    run_to(WeightsAndBiases(tmp_path, project="letters", done=3), range(4, 9))
    ((name, run),) = service.runs.items()
    assert service.asked[0]["id"] == service.asked[1]["id"] == name
    steps = Counter(step for step, values in run.rows if "train/loss" in values)
    assert steps == dict.fromkeys(range(1, 9), 1)
    assert Counter(step for step, values in run.rows if "sample" in values) == dict.fromkeys((2, 4, 6, 8), 1)


def test_a_new_run_in_the_same_folder_has_a_new_id(service: Service, tmp_path: Path) -> None:
    for done in (0, 0, 4):
        WeightsAndBiases(tmp_path, project="letters", done=done)
    first, second, third = (asked["id"] for asked in service.asked)
    assert first != second == third


def test_a_run_that_began_without_the_service_gets_an_id_when_it_goes_on(service: Service, tmp_path: Path) -> None:
    for _ in range(2):
        WeightsAndBiases(tmp_path, project="letters", done=4)
    assert len(service.runs) == 1


def test_a_package_that_is_not_there_is_an_error_before_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("wandb", "torch.utils.tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match="Weights & Biases needs the package wandb: pip install wandb, or leave"):
        WeightsAndBiases(tmp_path, project="letters")
    with pytest.raises(ImportError, match="TensorBoard needs the package tensorboard: pip install tensorboard"):
        TensorBoard(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_wrong_numbers_of_steps_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="done must be an integer of at least 0, got -1"):
        TensorBoard(tmp_path, done=-1)


class Broken:
    """Fails from the second call to the fourth."""

    def __init__(self) -> None:
        self.calls = 0

    def _fail(self) -> None:
        self.calls += 1
        if 2 <= self.calls <= 4:
            raise OSError("No space left on device")

    def step(self, step: int, values: object) -> None:
        del step, values
        self._fail()

    def validation(self, step: int, values: object) -> None:
        del step, values
        self._fail()

    def text(self, step: int, text: str, name: str = "sample") -> None:
        del step, text, name
        self._fail()

    def close(self) -> None:
        self._fail()


def test_a_sink_that_fails_is_told_once_and_tried_again(tmp_path: Path) -> None:
    warnings: list[str] = []
    broken = Broken()
    with Sinks([broken, TensorBoard(tmp_path)], warn=warnings.append) as sinks:
        run_to(sinks, range(1, 5))
    assert warnings == ["Broken failed (No space left on device); the run continues, and log.jsonl is complete."]
    assert broken.calls == 9  # four steps, two validations, two texts, the end
    assert len(scalars(tmp_path, "train/loss")) == 4  # the other one has everything


def test_every_sink_is_closed_even_when_the_run_breaks_off() -> None:
    first, second = Broken(), Broken()
    first.calls = 2
    warnings: list[str] = []
    with pytest.raises(KeyboardInterrupt), Sinks([first, second], warn=warnings.append):
        raise KeyboardInterrupt
    assert (first.calls, second.calls, len(warnings)) == (3, 1, 1)


def test_nobody_is_told_without_sinks_and_a_failure_without_warn_is_a_warning() -> None:
    with Sinks([]) as sinks:
        run_to(sinks, range(1, 3))
    with pytest.warns(UserWarning, match="Broken failed"), Sinks([Broken()]) as sinks:
        run_to(sinks, range(1, 3))


def report(terms: dict[str, float]) -> StepReport:
    return StepReport(
        step=3, loss=2.0, terms=terms, metrics={"accuracy": 0.5}, lr=0.1, grad_norm=1.5, tokens=100, tokens_seen=300,
        seconds=0.5, fraction=0.1,
    )  # fmt: skip


def test_values_of_a_step() -> None:
    common = {
        "loss": 2.0, "accuracy": 0.5, "lr": 0.1, "grad_norm": 1.5, "tokens_seen": 300, "tokens_per_second": 200.0,
        "mfu": 0.4, "memory": 7,
    }  # fmt: skip
    assert step_values(report({"next": 2.0}), mfu=0.4, memory=7) == common
    both = step_values(report({"masked": 1.5, "pair": 0.5}))
    assert both == common | {"loss masked": 1.5, "loss pair": 0.5, "mfu": None, "memory": None}
