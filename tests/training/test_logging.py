"""A real run is watched as the package's own words say."""

import io
import xml.etree.ElementTree as ET
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from glassformer.inspect.account.hardware import custom_hardware
from glassformer.objectives.causal_lm import NextToken
from glassformer.training.logging.curve import draw_curve
from glassformer.training.logging.progress import ProgressDisplay
from glassformer.training.logging.sinks import RunLog, Sinks, TensorBoard, step_values
from glassformer.training.logging.throughput import Utilisation, flops_per_token, peak_memory, typical_row
from glassformer.training.loop import evaluate
from tests.configs import CONFIGS
from tests.training.a_run import STEPS, Counted, made


def test_a_run_is_watched_from_the_first_step_to_the_picture(tmp_path: Path) -> None:
    trainer, seen, held_out = made(), io.StringIO(), [next(Counted()) for _ in range(2)]
    per_token = flops_per_token(CONFIGS["gpt2"], typical_row(held_out))
    measured = custom_hardware(flops=1e12, bandwidth=1e10)
    busy = Utilisation.known(per_token, torch.device("cpu"), "float32", hardware=measured)
    with (
        ProgressDisplay(Console(file=seen, width=80), steps=STEPS, utilisation=busy) as progress,
        Sinks([TensorBoard(tmp_path / "tensorboard", done=trainer.step)], warn=progress.note) as sinks,
        RunLog(tmp_path / "log.jsonl") as log,
    ):
        for report in trainer:
            log.write("step", report.step, asdict(report))
            progress.step(report, memory=peak_memory("cpu"))
            sinks.step(report.step, step_values(report))
            if report.step % 12 == 0:
                means = evaluate(trainer.model, NextToken(), held_out)
                progress.validation(report.step, means.loss, means.metrics)
                sinks.validation(report.step, {"loss": means.loss, **means.metrics})
                log.write("validation", report.step, {"loss": means.loss})
    draw_curve(tmp_path / "log.jsonl", tmp_path / "loss.svg")

    lines = seen.getvalue().splitlines()
    assert lines[0].startswith("step 1 of 24  4 %  loss ")
    assert "MFU 0." in lines[0]
    assert [line for line in lines if "validation  step 12  loss " in line and "accuracy 0." in line]
    assert lines[-2].startswith("step 24 of 24  100 %  loss ")
    assert lines[-2].endswith("0:00 left")
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/grad_norm")] == list(range(1, STEPS + 1))
    assert [event.step for event in events.Scalars("validation/accuracy")] == [12, 24]
    assert ET.parse(tmp_path / "loss.svg").getroot().tag.endswith("svg")
