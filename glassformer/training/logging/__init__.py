"""Logging of a run: progress on the terminal, throughput, a log file, TensorBoard and Weights & Biases, a loss curve.

Everything here receives plain values; whoever runs a ``Trainer`` passes them on::

    utilisation = Utilisation.known(flops_per_token(model.config, RowLength(1024)), device, "bfloat16")
    with (
        ProgressDisplay(Console(), steps=20_000, utilisation=utilisation) as progress,
        Sinks([TensorBoard(folder / "tensorboard", done=trainer.step)], warn=progress.note) as sinks,
    ):
        for report in trainer:
            progress.step(report, memory=peak_memory(device))
            sinks.step(report.step, step_values(report))
            if report.step % 1000 == 0:
                means = evaluate(model, objective, held_out)
                progress.validation(report.step, means.loss, means.metrics)
                sinks.validation(report.step, {"loss": means.loss, **means.metrics})
    draw_curve(folder / "log.jsonl", folder / "loss.svg")

With several processes, only the first logs.
"""
