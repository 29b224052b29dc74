"""How long an account takes at the least on a device, part by part, and the plan of a training run with it.

Each part is one piece of work of the roofline; a fused kernel, which multiplies twice and moves its data once, is one
too. A training step is the forward pass, the backward pass as it was traced, and the optimizer, which reads weights,
gradients and its states and writes weights and states.
"""

from dataclasses import dataclass

from glassformer.inspect.account.account import Account
from glassformer.inspect.account.hardware import Hardware
from glassformer.inspect.account.plan import Parallel, Plan, TrainingFacts, plan
from glassformer.inspect.account.roofline import Estimate, Work, ridge_point, roofline, total_seconds
from glassformer.inspect.account.tree import Part

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
    """What each part does of its own, forward and, in training, backward."""
    kernels = {part.path.removesuffix(f".{KERNEL}") for part in account.root.walk() if part.name == KERNEL}
    work: dict[str, Work] = {}
    for part in account.root.walk():
        parent, _, name = part.path.rpartition(".")
        path = f"{parent}.{KERNEL}" if name in IN_KERNEL and parent in kernels else part.path
        known = work.get(path, Work(path, 0, 0))
        flops = sum(_own(part, field) for field in ("flops", "backward_flops", "recomputed"))
        size = sum(_own(part, field) for field in ("bytes_moved", "backward_bytes"))
        work[path] = Work(path, known.flops + flops, known.bytes + size)
    if account.mode == "train":
        memory = account.memory
        trained = memory.gradients  # as many bytes as the weights that have them
        work[OPTIMIZER] = Work(OPTIMIZER, 0, 2 * (trained + memory.optimizer) + memory.gradients)
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
    tokens_read = account.batch * (account.context + (account.source if account.has_source else 0))
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


def _check_heads(account: Account, devices: int) -> None:
    """Raise unless the heads can be shared out among the devices of a tensor-parallel group."""
    config = account.config
    for stack in () if config is None else (config.encoder, config.decoder):
        if stack is not None and stack.attention.heads % devices:
            heads = stack.attention.heads
            shares = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
            raise ValueError(
                f"tensor parallelism shares out the heads, and {devices} devices do not divide the {heads} heads of "
                f"{account.name}; take one of {shares}, or another way to be parallel."
            )


def _largest_piece(account: Account) -> int:
    """Parameters of what is gathered at once: a layer, or what stands beside the layers, such as the embeddings."""
    lists = [part for part in account.root.walk() if part.calls]
    layers = [layer.parameters for part in lists for layer in part.parts]
    with_layers = {part.path.partition(".")[0] for part in lists}
    return max([*layers, *(part.parameters for part in account.root.parts if part.path not in with_layers)])
