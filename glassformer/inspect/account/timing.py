"""How long an account takes at the least on a device, part by part, and the plan of a training run with it.

Each part is one piece of work of the roofline; a fused kernel, which multiplies twice and moves its data once, is one
too. The way back is taken to move twice what the way there moves: each of its two products per product reads two of the
same three matrices and writes the third. The optimizer reads weights, gradients and its states and writes weights and
states.
"""

from dataclasses import dataclass

from glassformer.inspect.account.account import Account, Part
from glassformer.inspect.account.hardware import Hardware
from glassformer.inspect.account.plan import Parallel, Plan, TrainingFacts, plan
from glassformer.inspect.account.roofline import Estimate, Work, ridge_point, roofline, total_seconds

OPTIMIZER = "optimizer"
KERNEL = "kernel"
IN_KERNEL = ("scores", "weighted_sum", KERNEL)


@dataclass(frozen=True)
class Timing:
    """The least time of every piece of work on one device; pieces and estimates have the same order."""

    hardware: Hardware
    dtype: str
    tokens: int
    work: list[Work]
    estimates: list[Estimate]

    @property
    def seconds(self) -> float:
        """One after the other."""
        return total_seconds(self.estimates)

    @property
    def tokens_per_second(self) -> float:
        """At most."""
        return self.tokens / self.seconds

    @property
    def ridge(self) -> float:
        """FLOPs for each byte from which on the arithmetic sets the time."""
        return ridge_point(self.hardware, self.dtype)

    @property
    def compute_share(self) -> float:
        """The part of the time that arithmetic sets; memory sets the rest."""
        return total_seconds(one for one in self.estimates if one.bound == "compute") / self.seconds

    @property
    def bound(self) -> str:
        """What sets most of the time."""
        return "compute" if self.compute_share >= 0.5 else "memory"


def time_on(account: Account, hardware: Hardware) -> Timing:
    """The least time of an account on a device."""
    work = _work(account)
    estimates = roofline(work, hardware, account.dtype)
    return Timing(hardware, account.dtype, account.tokens, work, estimates)


def _work(account: Account) -> list[Work]:
    """What each part does of its own, on the way there and, in training, on the way back."""
    passes, trained = (3, True) if account.mode == "train" else (1, False)
    kernels = {part.path.removesuffix(f".{KERNEL}") for part in account.root.walk() if part.name == KERNEL}
    work: dict[str, Work] = {}
    for part in account.root.walk():
        parent, _, name = part.path.rpartition(".")
        path = f"{parent}.{KERNEL}" if name in IN_KERNEL and parent in kernels else part.path
        again = _own(part, "recomputed") if trained else 0
        known = work.get(path, Work(path, 0, 0))
        flops = known.flops + passes * _own(part, "flops") + again
        work[path] = Work(path, flops, known.bytes + passes * _own(part, "bytes_moved"))
    if trained:
        memory = account.memory
        updated = 2 * (memory.weights + memory.optimizer) + memory.gradients
        work[OPTIMIZER] = Work(OPTIMIZER, 0, updated)
    return [one for one in work.values() if one.flops or one.bytes]


def _own(part: Part, field: str) -> int:
    """What a part has besides the parts inside it."""
    whole: int = getattr(part, field)
    return whole - sum(getattr(inside, field) for inside in part.parts)


def plan_of(
    account: Account,
    hardware: Hardware,
    *,
    devices: int,
    tokens: float | None = None,
    mfu: float = 0.4,
    parallel: Parallel = "ddp",
    checkpointing: bool = False,
) -> Plan:
    """The plan of a training run: the account is of one device's micro-batch, or of a tensor-parallel group's.

    Tokens are those of source and target together. ``checkpointing``: blocks keep their inputs alone and run again,
    which MFU does not count.
    """
    if account.mode != "train":
        raise ValueError(f"a plan is of training, and this account is of mode={account.mode!r}; say mode='train'.")
    if parallel == "tensor":
        _check_heads(account, devices)
    memory = account.memory
    tokens_read = account.batch * (account.context + (account.source if _has_both(account) else 0))
    facts = TrainingFacts(
        parameters=account.parameters,
        flops_per_token=account.flops / tokens_read,
        weight_bytes=memory.weights,
        gradient_bytes=memory.gradients,
        optimizer_bytes=memory.optimizer,
        activation_bytes=memory.working - (memory.activations - memory.checkpointed if checkpointing else 0),
        piece_bytes=_largest_piece(account) * account.bytes_per_number,
        tokens_per_batch=tokens_read * (1 if parallel == "tensor" else devices),
    )
    return plan(
        facts, devices=devices, hardware=hardware, dtype=account.dtype, tokens=tokens, mfu=mfu, parallel=parallel
    )


def _has_both(account: Account) -> bool:
    return account.config.family == "encoder-decoder"


def _check_heads(account: Account, devices: int) -> None:
    """Raise unless the heads can be shared out among the devices of a tensor-parallel group."""
    for stack in (account.config.encoder, account.config.decoder):
        if stack is not None and stack.attention.heads % devices:
            heads = stack.attention.heads
            shares = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
            raise ValueError(
                f"tensor parallelism shares out the heads, and {devices} devices do not divide the {heads} heads of "
                f"{account.name}; take one of {shares}, or another way to be parallel."
            )


def _largest_piece(account: Account) -> int:
    """Parameters of what is gathered at once: a block, the embeddings, the head."""
    pieces = [part for part in account.root.walk() if part.name.isdigit() or part.path in ("embed", "head")]
    return max(part.parameters for part in pieces)
