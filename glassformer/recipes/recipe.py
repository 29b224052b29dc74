"""A recipe: everything that defines a run, as nested settings that a YAML file states and ``key=value`` changes.

Unknown keys are refused with the nearest that exists, wrong types with the path of the setting. What a recipe does not
state has the default of its field.
"""

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal

from glassformer.config.checks import check_count, check_positive_integer, check_positive_number, check_probability
from glassformer.data.readers.base import OnBadRow

FormatName = Literal["text", "jsonl", "csv", "tsv", "parallel", "conll", "squad", "dataset", "documentation", "toy"]


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """Files with aligned lines."""

    source: str | tuple[str, ...]
    target: str | tuple[str, ...]


DataFiles = str | tuple[str, ...] | Aligned | None


@dataclass(frozen=True, kw_only=True)
class Data:
    """Where the rows come from. Files are paths, patterns or lists of them; .gz files are decompressed."""

    format: FormatName
    train: DataFiles = None
    valid: DataFiles = None  # None: the fraction ``held_out`` of the training rows, which are then not trained on
    test: DataFiles = None
    held_out: float = 0.05
    limit: int | None = None  # read no more rows than this of any part
    documents: Literal["line", "blank line", "marker", "file"] = "blank line"  # what ends a document of plain text
    marker: str | None = None  # the text between two documents, with ``documents: marker``
    columns: dict[str, Any] = field(default_factory=dict)  # the column of each field: {text: sentence, label: 1}
    separator: str | None = None  # between columns; None: the usual one of the format
    header: bool = True  # the first line of csv and tsv files names the columns
    quoted: bool | None = None  # whether cells may be in quotes; None: yes in csv, no in tsv
    prefix: str = ""  # removed from each word of conll files
    ignored: tuple[str, ...] = ("-DOCSTART-",)  # lines of conll files starting with these are skipped
    languages: tuple[str, ...] = ()  # of the source and of the target
    split: tuple[str, ...] = ("train", "validation", "test")  # names of the parts of a data set
    on_bad_row: OnBadRow = "stop"

    def __post_init__(self) -> None:
        check_probability(**{"data.held_out": self.held_out})
        if self.limit is not None:
            check_positive_integer(**{"data.limit": self.limit})


@dataclass(frozen=True, kw_only=True)
class TokenizerPlan:
    """The tokenizer: loaded from a folder, or trained on the training rows."""

    load: str | None = None  # a folder, or a tokenizer.json
    kind: Literal["bytes", "bpe", "wordpiece", "unigram"] = "bpe"
    size: int = 8000
    style: str | None = None  # which special tokens there are, and where they go; see ``text.training``
    lowercase: bool = False
    special: tuple[str, ...] = ()  # further special tokens

    def __post_init__(self) -> None:
        check_positive_integer(**{"tokenizer.size": self.size})


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """Train low-rank adapters instead of all weights (Hu et al., 2021)."""

    rank: int = 8
    alpha: float = 16.0
    dropout: float = 0.0
    targets: tuple[str, ...] = ("*.attention.q", "*.attention.v")

    def __post_init__(self) -> None:
        check_positive_integer(**{"model.adapters.rank": self.rank})
        check_positive_number(**{"model.adapters.alpha": self.alpha})
        check_probability(**{"model.adapters.dropout": self.dropout})


@dataclass(frozen=True, kw_only=True)
class RecipeLoadOptions:
    """How the folders of ``model.start`` and ``model.teacher`` are read; see ``config.options.ModelOptions``."""

    head: str | None = None
    lineage: str | None = None
    allow_pickle: bool = False
    ignore_keys: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    tokenizer_kind: str | None = None

    def options(self) -> dict[str, Any]:
        """Return those that are set, for ``hub.load``."""
        return {name: value for name, value in vars(self).items() if value not in (None, False, ())}


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """The model: a lineage with sizes, or the weights of a folder to start from."""

    start: str | None = None  # the folder of a trained model, whose facts and tokenizer are used too
    lineage: str | None = None
    sizes: dict[str, Any] = field(default_factory=dict)  # with the names of the lineage's config.json
    facts: dict[str, Any] = field(default_factory=dict)  # of a new model: changes to those of its lineage and sizes
    helper: dict[str, Any] = field(default_factory=dict)  # sizes of a second model, if the job has one
    teacher: str | None = None  # a folder, if the job has one
    adapters: Adapters | None = None
    load_options: RecipeLoadOptions = field(default_factory=RecipeLoadOptions)

    def __post_init__(self) -> None:
        if self.start is not None and self.lineage is not None:
            raise ValueError(
                f"set either model.lineage, for a new model, or model.start, a folder to start from; got both, "
                f"lineage={self.lineage!r} and start={self.start!r}. Remove one with model.lineage=null."
            )
        if self.start is not None and (self.sizes or self.facts or self.helper):
            raise ValueError(
                f"the model in {self.start!r} has its own sizes and facts; remove model.sizes, model.facts and "
                f"model.helper with model.sizes={{}} model.facts={{}} model.helper={{}}."
            )

    def check_complete(self) -> None:
        """Raise unless ``start`` or ``lineage`` is set; a recipe may leave both to its user."""
        if self.start is None and self.lineage is None:
            raise ValueError("set the model to train: model.start=FOLDER (trained) or model.lineage=NAME (new).")
        if self.start is None and self.adapters is not None:
            raise ValueError(
                "model.adapters train a few weights beside those of a trained model, and a new one has none; set "
                "model.start=FOLDER, or remove them with model.adapters=null."
            )


@dataclass(frozen=True, kw_only=True)
class BatchSizes:
    """What a step reads: ``micro_batches`` batches of ``examples`` rows each, or of up to ``tokens`` padded tokens."""

    examples: int | None = None
    tokens: int | None = None
    micro_batches: int = 1  # per step, of all processes together
    length: int = 256  # maximum row length in tokens; longer rows are cut, and the run reports how many
    workers: int = 2

    def __post_init__(self) -> None:
        if (self.examples is None) == (self.tokens is None):
            raise ValueError("set the size of a batch once: batch.examples or batch.tokens, and null for the other.")
        check_positive_integer(
            **{"batch.examples": 1 if self.examples is None else self.examples},
            **{"batch.tokens": 1 if self.tokens is None else self.tokens},
            **{"batch.micro_batches": self.micro_batches, "batch.length": self.length},
        )
        check_count(**{"batch.workers": self.workers})


@dataclass(frozen=True, kw_only=True)
class Optimisation:
    """Optimizer and learning-rate schedule."""

    kind: Literal["adamw", "muon"] = "adamw"
    lr: float
    weight_decay: float = 0.1
    betas: tuple[float, ...] = (0.9, 0.95)
    eps: float = 1e-8
    schedule: Literal["cosine", "linear", "inverse-sqrt", "constant"] = "cosine"
    warmup: int = 0  # steps
    floor: float = 0.0  # the fraction of lr with which cosine and linear end
    clip: float | None = 1.0  # maximum gradient norm

    def __post_init__(self) -> None:
        check_positive_number(**{"optimizer.lr": self.lr, "optimizer.eps": self.eps})
        check_count(**{"optimizer.warmup": self.warmup})
        check_probability(**{"optimizer.floor": self.floor})
        if not 0 <= self.weight_decay < inf:
            raise ValueError(f"optimizer.weight_decay must be a finite number of at least 0, got {self.weight_decay}.")
        if len(self.betas) != 2:
            raise ValueError(f"optimizer.betas are two numbers, got {self.betas!r}.")
        for beta in self.betas:
            check_probability(**{"optimizer.betas": beta})
        if self.clip is not None:
            check_positive_number(**{"optimizer.clip": self.clip})


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Length, numerics, checkpoints."""

    steps: int
    seed: int = 0
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"  # bfloat16 on GPUs that support it
    device: str = "auto"  # a GPU if there is one
    parallel: Literal["ddp", "fsdp"] = "ddp"  # with several processes
    compile: bool | None = None  # with torch.compile; None: on a GPU, where the run is long enough to pay for it
    capture: bool | None = None  # run steps as CUDA graphs; None: where that is possible
    threads: int | None = None  # of a CPU, in each process; None: chosen by a short measurement before the first step
    recompute: bool = False  # activation checkpointing: less memory, a third more compute
    keep_memory: bool = True  # on a CPU, keep freed memory for reuse: faster, but uses somewhat more
    average: float | None = None  # decay of a moving average of the weights, which is then evaluated and kept
    checkpoint_every: int = 1000
    keep: int = 3  # how many checkpoints are kept, besides the best

    @property
    def chosen_device(self) -> str | None:
        """The device as ``parallel.start`` takes it: None leaves the choice to it."""
        return None if self.device == "auto" else self.device

    def __post_init__(self) -> None:
        check_positive_integer(
            **{"run.steps": self.steps, "run.checkpoint_every": self.checkpoint_every, "run.keep": self.keep}
        )
        if self.threads is not None:
            check_positive_integer(**{"run.threads": self.threads})
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"run.seed must be at least 0 and below 2 to the 63rd, got {self.seed}.")
        if self.average is not None:
            check_probability(**{"run.average": self.average})


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is measured during and after training."""

    every: int = 500  # steps
    batches: int | None = None  # of the validation rows; None: all
    rows: int | None = 500  # for metrics that cost more than the loss; None: all
    by: str = "loss"  # the metric that decides which checkpoint is the best
    patience: int | None = None  # stop after this many evaluations in a row without improvement
    last: int = 1  # how many of the last checkpoints are averaged at the end (Vaswani et al., 2017)
    beam: int = 1
    samples: int = 2
    untrained: bool = False  # show samples before the first step, too

    def __post_init__(self) -> None:
        check_count(**{"evaluation.samples": self.samples})
        counts = {name: getattr(self, name) for name in ("every", "last", "beam", "batches", "rows", "patience")}
        check_positive_integer(
            **{f"evaluation.{name}": number for name, number in counts.items() if number is not None}
        )


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The result to expect, on which data, and how long the run takes."""

    result: str
    cpu_minutes: float | None = None  # None: not measured
    cpu_cores: int = 1
    gpu_minutes: float | None = None  # on a data-center GPU

    def __str__(self) -> str:
        cores = " on one core" if self.cpu_cores == 1 else f" on {self.cpu_cores} cores"
        cpu = "not measured" if self.cpu_minutes is None else f"{self.cpu_minutes:g} min{cores}"
        gpu = "not measured" if self.gpu_minutes is None else f"{self.gpu_minutes:g} min"
        return f"{self.result} CPU: {cpu}. GPU: {gpu}."


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that defines a run."""

    name: str
    about: str
    expected: Expected
    job: str  # what is learned: see ``objectives.job``
    data: Data
    model: ModelPlan
    batch: BatchSizes
    optimizer: Optimisation
    run: RunPlan
    tokenizer: TokenizerPlan = field(default_factory=TokenizerPlan)
    objective: dict[str, Any] = field(default_factory=dict)  # options of the job
    evaluation: Evaluation = field(default_factory=Evaluation)

    @property
    def default_folder(self) -> Path:
        """The folder of a run by default."""
        return Path("runs") / self.name

    def __post_init__(self) -> None:
        if self.optimizer.warmup >= self.run.steps:
            raise ValueError(f"optimizer.warmup={self.optimizer.warmup} must be less than run.steps={self.run.steps}.")
        if self.optimizer.schedule == "inverse-sqrt" and self.optimizer.warmup == 0:
            raise ValueError(
                "optimizer.schedule=inverse-sqrt decays from the end of the warm-up: set optimizer.warmup to at least "
                "1 (with run.steps of at least 2), or another schedule such as optimizer.schedule=constant."
            )
        if self.evaluation.last > self.run.keep:
            raise ValueError(
                f"evaluation.last={self.evaluation.last} checkpoints are averaged, but run.keep={self.run.keep} are "
                f"kept; keep at least as many."
            )
