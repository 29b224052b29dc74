"""Trains a shipped model by its recipe, saves it for Hugging Face in bfloat16, and evaluates what was saved.

Usage: python -m benchmarks.pretrained.build NAME --data DIR --out DIR [--minutes M] [--start MODEL] [--peer]
[KEY=VALUE ...], where NAME is en-zh, stories, mlm-en or ner-en, and DIR holds the files of ``prepare``. OUT then holds
model.tar (the folder), results.json, log.jsonl.gz, loss.svg and recipe.yaml. Training that takes longer than
``--minutes`` stops there, with the best model so far; evaluation comes on top. ``--start`` is the mlm-en folder, or its
model.tar, that ner-en starts from. ``--peer`` trains a ``torch.nn.Transformer`` of the same size instead (en-zh only),
and writes results.json alone. KEY=VALUE changes the recipe, for trials: run.steps=20 data.limit=200.
"""

import argparse
import gzip
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import glassformer
from benchmarks.pretrained import evaluate
from benchmarks.pretrained.peer import next_logits_of, train_peer, translate
from glassformer import hub
from glassformer.config import ModelConfig, shapes
from glassformer.models.transformer import Transformer
from glassformer.recipes.files import read_recipe
from glassformer.recipes.recipe import Recipe
from glassformer.text.vocabularies import set_template
from glassformer.training import parallel
from glassformer.training.logging.curve import draw_curve
from glassformer.training.logging.progress import Monitor
from glassformer.training.session import Session, StoppedError

FILES: dict[str, dict[str, Any]] = {
    "en-zh": {part: {"source": f"{part}.en", "target": f"{part}.zh"} for part in ("train", "valid")},
    "stories": {part: f"{part}.txt" for part in ("train", "valid")},
    "mlm-en": {part: f"{part}.txt" for part in ("train", "valid")},
    "ner-en": {part: f"{part}.conll" for part in ("train", "valid")},
}
# How to generate unless the user chooses otherwise.
GENERATION: dict[str, dict[str, Any]] = {
    "en-zh": {"num_beams": 4, "max_new_tokens": 64},
    "stories": {"do_sample": True, "temperature": 0.8, "top_p": 0.95, "max_new_tokens": 256},
}


def log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def recipe_for(name: str, data: Path, changes: list[str], start: Path | None) -> Recipe:
    """The recipe with the files of a folder, and the model to start from."""
    values: dict[str, Any] = {}
    for part, files in FILES[name].items():
        paths = {side: str(data / file) for side, file in files.items()} if isinstance(files, dict) else None
        values[f"data.{part}"] = paths or str(data / files)
    if start is not None:
        values["model.start"] = str(start)
    return read_recipe(name, changes, **values)


def train(recipe: Recipe, folder: Path, minutes: float) -> dict[str, Any]:
    """Train in a folder, at most for so many minutes; what the results page states about the run."""
    begin = time.perf_counter()
    stop = threading.Timer(60 * minutes, lambda: os.kill(os.getpid(), signal.SIGINT))
    stop.daemon = True
    facts: dict[str, Any] = {"stopped by the time limit": False}
    with parallel.start(recipe.run.chosen_device) as process:
        session = Session(recipe, folder, process, Monitor(None, recipe.name))
        facts["seconds before the first step"] = round(time.perf_counter() - begin, 1)
        log(f"training {recipe.name} on {process.device}, {recipe.run.steps:,} steps")
        stop.start()
        try:
            outcome = session.train()
            facts |= {"steps": outcome.step, "training results": outcome.results}
        except StoppedError as error:
            facts |= {"steps": error.step, "stopped by the time limit": True}
            draw_curve(folder / "log.jsonl", folder / "loss.svg")
        finally:
            stop.cancel()
    return facts | {"training seconds": round(time.perf_counter() - begin, 1)}


def without_dropout(facts: ModelConfig) -> ModelConfig:
    """The same model without dropout outside attention, which some lineages cannot state; outputs are the same."""
    assert facts.decoder is not None
    return replace(facts, embed=replace(facts.embed, dropout=0.0), decoder=replace(facts.decoder, dropout=0.0))


def export(folder: Path, out: Path, name: str) -> Path:
    """Save a trained model in bfloat16 for Hugging Face, with its tokenizer and how to generate with it."""
    loaded = glassformer.load(folder, dtype=torch.bfloat16)
    if loaded.config.family == "decoder":
        model = Transformer(without_dropout(loaded.config)).to(torch.bfloat16)
        model.load_state_dict(loaded.model.state_dict())
        loaded.model, loaded.config = model.eval(), model.config
        set_template(loaded.tokenizer.backend, start=[loaded.tokenizer.special["bos"]], end=[])  # as it was trained
    hub.save(loaded, out, to="hf")
    if name in GENERATION:
        tokens, known = loaded.config.tokens, GENERATION[name]
        ids = {"bos_token_id": tokens.bos, "eos_token_id": tokens.eos, "pad_token_id": tokens.pad}
        ids |= {"decoder_start_token_id": tokens.start} if loaded.config.family == "encoder-decoder" else {}
        page = known | {key: number for key, number in ids.items() if number is not None}
        (out / "generation_config.json").write_text(json.dumps(page, indent=2) + "\n", encoding="utf-8")
    if loaded.config.embed.segments:  # so that transformers' tokenizer returns the segments of a pair
        settings = json.loads((out / "tokenizer_config.json").read_text(encoding="utf-8"))
        settings["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
        (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    # The vocabulary in one line: a third of the bytes.
    vocabulary = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    text = json.dumps(vocabulary, ensure_ascii=False, separators=(",", ":"))
    (out / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
    return out


def unpacked(start: Path | None, folder: Path) -> Path | None:
    """The folder of a model that may be packed as a tar file."""
    if start is None or start.is_dir():
        return start
    with tarfile.open(start) as archive:
        archive.extractall(folder, filter="data")
    return next(path.parent for path in sorted(folder.rglob("config.json")))


def build(name: str, data: Path, out: Path, minutes: float, changes: list[str], start: Path | None = None) -> None:
    """Train, export, evaluate, pack."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        recipe = recipe_for(name, data, changes, unpacked(start, Path(work) / "start"))
        run, folder = Path(work) / "run", Path(work) / name
        facts = train(recipe, run, minutes)
        log(f"trained in {facts['training seconds']} s; exporting")
        export(run / "model", folder, name)
        # Small files first: whatever happens later, they are there.
        for file in ("loss.svg", "recipe.yaml"):
            if (run / file).exists():
                shutil.copy(run / file, out / file)
        with (run / "log.jsonl").open("rb") as source, gzip.open(out / "log.jsonl.gz", "wb") as packed:
            shutil.copyfileobj(source, packed)
        with tarfile.open(out / "model.tar", "w") as archive:
            archive.add(folder, arcname=name)
        begin = time.perf_counter()
        loaded = glassformer.load(folder, dtype=torch.float32, device=device_of(recipe))
        facts |= {"parameters": sum(map(_size, shapes(loaded.config).values()))}
        facts |= {"bytes": {path.name: path.stat().st_size for path in sorted(folder.iterdir())}}
        write_results(out, name, facts)
        facts["evaluation"] = evaluate.EVALUATE[name](loaded, data)
        facts["evaluation seconds"] = round(time.perf_counter() - begin, 1)
        write_results(out, name, facts)


def build_peer(data: Path, out: Path, minutes: float, changes: list[str]) -> None:
    """The torch.nn.Transformer of the same size, evaluated like en-zh."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as work:
        recipe = recipe_for("en-zh", data, changes, None)
        peer, run, facts = train_peer(recipe, Path(work), minutes, log)
        device, logits = next(peer.parameters()).device, next_logits_of(peer)
        options = {"start": run.context.start, "device": device}
        facts["evaluation"] = evaluate.evaluate_translation(
            lambda texts, source, target: translate(logits, run.context.tokenizer, texts, (source, target), **options),
            data,
        )
        write_results(out, "en-zh peer", facts)


def device_of(recipe: Recipe) -> str:
    return recipe.run.chosen_device or ("cuda" if torch.cuda.is_available() else "cpu")


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def write_results(out: Path, name: str, facts: dict[str, Any]) -> None:
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    page = {"name": name, "hardware": hardware, "torch": torch.__version__, **facts}
    (out / "results.json").write_text(json.dumps(page, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=FILES)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=6.0)
    parser.add_argument("--start", type=Path)
    parser.add_argument("--peer", action="store_true")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_intermixed_args()
    if options.name == "ner-en" and options.start is None:
        parser.error("ner-en starts from mlm-en: say --start FOLDER, or --start its model.tar")
    options.out.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    if options.peer:
        build_peer(options.data, options.out, options.minutes, options.changes)
    else:
        build(options.name, options.data, options.out, options.minutes, options.changes, options.start)
    page = json.loads((options.out / "results.json").read_text(encoding="utf-8"))
    print(json.dumps(_short(page), indent=1, ensure_ascii=False))
    log(
        f"done in {time.perf_counter() - begin:.0f} s: {', '.join(sorted(path.name for path in options.out.iterdir()))}"
    )


def _short(page: Any) -> Any:
    """A page without its long lists."""
    if isinstance(page, dict):
        return {key: _short(value) for key, value in page.items() if key not in ("samples", "curve")}
    return page


if __name__ == "__main__":
    main()
