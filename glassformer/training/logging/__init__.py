"""What people see of a run: live figures or plain lines, how near the hardware's peak it is, other programs, a picture.

Everything here is told plain values and asks nobody, so the one who runs a ``Trainer`` says each thing once::

    busy = Utilisation.known(flops_per_token(model.config, Row(1024)), device, "bfloat16")
    with (
        Progress(Console(), steps=20_000, utilisation=busy) as progress,
        Sinks([TensorBoard(folder / "tensorboard", done=trainer.step)], warn=progress.note) as sinks,
    ):
        for report in trainer:
            progress.step(report, memory=peak_memory(device))
            sinks.step(report.step, step_values(report))
            if report.step % 1000 == 0:
                means = evaluate(model, objective, held_out)
                progress.validation(report.step, means.loss, means.parts)
                sinks.validation(report.step, {"loss": means.loss, **means.parts})
    draw_curve(folder / "log.jsonl", folder / "loss.svg")

Where several processes train, only the first one watches.
"""
