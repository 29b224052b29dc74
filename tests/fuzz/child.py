"""Runs damaged inputs, one after the other, within limits on time and memory; started by ``test_fuzz``.

``python -m tests.fuzz.child KIND[,KIND...] ORIGINALS FIRST COUNT``. Before each input its kind and number are printed,
and at the end ``done``; what is neither a success nor an error that the package documents, with its traceback.
"""

import json
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path

from glassformer import hub
from glassformer.config import count
from glassformer.inspect.facts import facts_of
from glassformer.inspect.parts import part_tree
from glassformer.text.chat import render
from glassformer.text.tokenizer import Tokenizer, TokenizerError
from glassformer.weights.files import WeightsError
from glassformer.weights.reader import ConfigError
from tests.fuzz.mutate import any_template, damaged_bytes, damaged_json

DOCUMENTED = (ConfigError, WeightsError, TokenizerError)
SECONDS = 20  # of the processor, for one input: a hang, not a slow machine
MEMORY = 2 * 2**30  # bytes beyond what the libraries take

Run = Callable[[Path, Path, random.Random], None]


def copied(original: Path, place: Path) -> Path:
    return Path(shutil.copytree(original, place / "model"))


def any_of(folder: Path, draw: random.Random) -> Path:
    return draw.choice(sorted(folder.iterdir()))


def rewrite_json(path: Path, draw: random.Random) -> None:
    if draw.random() < 0.1:
        path.write_bytes(damaged_bytes(path.read_bytes(), draw))
    else:
        path.write_text(json.dumps(damaged_json(json.loads(path.read_text()), draw)))


def look_at(folder: Path) -> None:
    """What ``info`` does."""
    facts = facts_of(folder)
    count(facts)
    part_tree(facts)


def both(folder: Path) -> None:
    with suppress(*DOCUMENTED):
        look_at(folder)
    hub.load(folder)


def config(originals: Path, place: Path, draw: random.Random) -> None:
    folder = copied(any_of(originals / "hf", draw), place)
    rewrite_json(folder / "config.json", draw)
    both(folder)


def own_config(originals: Path, place: Path, draw: random.Random) -> None:
    folder = copied(any_of(originals / "own", draw), place)
    rewrite_json(folder / "glassformer.json", draw)
    both(folder)


def safetensors(originals: Path, place: Path, draw: random.Random) -> None:
    folder = copied(originals / "hf" / "gpt2", place)
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    if draw.random() < 0.5:
        path.write_bytes(damaged_bytes(data, draw, limit=8 + length))
    else:
        header = json.dumps(damaged_json(json.loads(data[8 : 8 + length]), draw)).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
    hub.load(folder)


def use(tokenizer: Tokenizer, place: Path) -> None:
    for text in ("Hello <s> world é😀", "", "[MASK] </s>"):
        ids = tokenizer.encode(text)
        tokenizer.encode(text, allow_special=False)
        tokenizer.decode(ids)
        tokenizer.decode(ids, skip_special=True)
    tokenizer.encode_pair("a", "b")
    if tokenizer.chat_template is not None:
        try:
            tokenizer.chat([{"role": "user", "content": "Hi"}])
        except ValueError as error:
            if "chat template" not in str(error):
                raise
    tokenizer.save(place / "saved")


def tokenizer(originals: Path, place: Path, draw: random.Random) -> None:
    folder = copied(any_of(originals / "tokenizers", draw), place)
    files = sorted(folder.iterdir())
    for path in draw.sample(files, k=draw.randint(1, len(files))):
        if path.suffix == ".json":
            rewrite_json(path, draw)
        else:
            path.write_bytes(damaged_bytes(path.read_bytes(), draw))
    use(Tokenizer.load(folder), place)


def gguf(originals: Path, place: Path, draw: random.Random) -> None:
    original, path = any_of(originals / "gguf", draw), place / "model.gguf"
    path.write_bytes(damaged_bytes(original.read_bytes(), draw, limit=3000))
    loaded = hub.load(path)
    use(loaded.tokenizer, place)


def llama2c(originals: Path, place: Path, draw: random.Random) -> None:
    folder = copied(originals / "llama2c", place)
    path = folder / draw.choice(("model.bin", "tokenizer.bin"))
    path.write_bytes(damaged_bytes(path.read_bytes(), draw, limit=100))
    use(hub.load(folder).tokenizer, place)


def template(originals: Path, place: Path, draw: random.Random) -> None:
    del originals, place
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "{{ 1 }}"}]
    try:
        render(any_template(draw), messages, bos_token="<s>")
    except ValueError as error:
        if not str(error).startswith("the chat template"):
            raise


KINDS: dict[str, Run] = {
    "config": config, "own_config": own_config, "safetensors": safetensors, "tokenizer": tokenizer, "gguf": gguf,
    "llama2c": llama2c, "template": template,
}  # fmt: skip


def limit() -> None:
    """No more memory than the libraries have taken and some; the system ends a process that computes too long."""
    taken = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize"))
    most = int(taken.split()[1]) * 1024 + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)


def main(kinds: str, originals: str, first: str, times: str) -> None:
    limit()
    for kind, number in product(kinds.split(","), range(int(first), int(first) + int(times))):
        print(kind, number, flush=True)
        signal.setitimer(signal.ITIMER_PROF, SECONDS)
        with tempfile.TemporaryDirectory() as folder:
            try:
                KINDS[kind](Path(originals), Path(folder), random.Random(f"{kind} {number}"))
            except DOCUMENTED:
                pass
            except BaseException:  # a panic of a library is no Exception
                print(f"undocumented: {kind} {number}\n{traceback.format_exc(limit=-8)}", flush=True)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
