"""``OpRecorder`` watches a pass on fake tensors from below: each operator, in which part it runs, what it keeps alive.

It is a dispatch mode above ``FakeTensorMode``. Hooks on the modules of the model tell it the part; sequence numbers of
autograd tell it to which operator of the forward pass one of the backward pass, or a saved tensor, belongs.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glassformer.inspect.account.calls import GPUKernels
from glassformer.inspect.account.counts import OpCount, Work
from glassformer.inspect.account.products import AttentionProducts
from glassformer.inspect.account.rules import (
    FREE,
    Rule,
    UnknownOperatorError,
    check_types,
    is_composite,
    name_of,
    rule_for,
)
from glassformer.inspect.account.storages import Storages, place
from glassformer.inspect.account.tree import GRADIENTS
from glassformer.inspect.account.values import KnownValues

GATHERS = "torch::autograd::AccumulateGrad"
GATHERS_GRADIENTS = 2**63  # sequence numbers from here on are of nodes that belong to a weight, not to an operator
UNINITIALISED = {f"aten.{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
ZEROS = {f"aten.{name}" for name in ("zeros", "zeros_like", "new_zeros")}
FILLING = {f"aten.{name}" for name in ("index_put", "_unsafe_index_put", "index_add", "scatter", "scatter_add")}
INDEXING = ("aten.index", "aten.index_put", "aten.index_put_")


class Call(NamedTuple):
    """One call of an operator, as it was dispatched."""

    operator: OpOverload
    name: str
    rule: Rule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Saved(NamedTuple):
    """A tensor that autograd keeps for the backward pass."""

    node: int  # of the operator that needs it there
    path: str
    shape: tuple[int, ...]
    storage: int


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator is run on fake tensors and, within ``counting``, counted.

    Enter ``recording`` within the ``FakeTensorMode`` it is given.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ops: list[OpCount] = []
        self.values = KnownValues()
        self.storages = Storages(self.values.forget)
        self.saved: list[Saved] = []
        self.saved_inside: list[set[int]] = []  # storages that each call of a layer saved of those that it made
        self.saved_outside: set[int] = set()  # all others that were saved, and those that were handed to a layer
        self._fake = fake
        self._products = AttentionProducts(self.ops, self.storages)
        self._weights: dict[tuple[int, int], str] = {}  # the places of parameters
        self._path = [""]
        self.calls: Counter[str] = Counter()  # of the layers of a list, by its path
        self._layer = 0
        self._depth = 0  # layers inside layers
        self._originals: dict[int, str] = {}
        self._by_node: dict[int, OpCount] = {}  # sequence number of autograd → operator
        self._nodes: list[int] = []  # the same numbers as they rose
        self._is_counting = False
        self._is_given = False
        self._probed: list[str] | None = None
        self._is_backward = False
        self._finished: Any = None  # the node of autograd that ran last

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here, and leaving the compiler out saves its import."""
        return False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """What is run inside is seen: operators, calls that a GPU has kernels for, and what autograd keeps."""
        saving = torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor)
        with saving, GPUKernels(self._probing), self:
            yield

    # ---- where the pass is

    def watch(self, model: nn.Module, original: nn.Module) -> None:
        """Learn the names of parameters and follow the calls of modules of a private copy of a model."""
        self._originals = {id(weight): name for name, weight in original.named_parameters()}
        for name, weight in model.named_parameters():
            self._weights.setdefault(place(weight), name)
            self.storages.give(weight)
        lists = {name: one for name, one in model.named_modules() if isinstance(one, nn.ModuleList)}
        layers = {id(layer) for one in lists.values() for layer in one}
        self.calls.update(dict.fromkeys(lists, 0))
        for name, module in model.named_modules():
            is_layer = id(module) in layers
            module.register_forward_pre_hook(partial(self._enter, name, is_layer), with_kwargs=True)
            module.register_forward_hook(partial(self._leave, is_layer), always_call=True)

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Operators inside are counted; before and after they are only run."""
        self._is_counting = True
        try:
            yield
        finally:
            self._is_counting = False

    @contextmanager
    def going_back(self, outputs: Sequence[Tensor]) -> Iterator[None]:
        """The backward pass from these outputs is run inside."""
        todo, seen = [one.grad_fn for one in outputs], set()
        while todo:
            node = todo.pop()
            if node is not None and node not in seen and node.name() != GATHERS:
                seen.add(node)
                node.register_hook(self._finish)
                todo += [one for one, _ in node.next_functions]
        self._is_backward = True
        try:
            yield
        finally:
            self._is_backward, self._finished = False, None

    def _finish(self, *_: Any) -> None:
        """A hook: a node has done its work. Until the next one, autograd adds up gradients."""
        self._finished = torch._C._current_autograd_node()

    @contextmanager
    def given(self) -> Iterator[None]:
        """Tensors that are made inside count as inputs of the pass."""
        self._is_given = True
        try:
            yield
        finally:
            self._is_given = False

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """What is run inside belongs to the part of this name."""
        self._path.append(name)
        try:
            yield
        finally:
            self._path.pop()

    def stand_in(self, value: Any) -> Any:
        """A fake tensor on the CPU for a real one, which stands for the same numbers; any other value as it is."""
        if not isinstance(value, Tensor):
            return value
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        if value.device.type == "cpu":
            self.values.give(fake, value)
        return fake.requires_grad_(value.requires_grad)

    def _enter(self, path: str, is_layer: bool, module: nn.Module, args: Any, kwargs: Any) -> None:
        """A hook: a module is called."""
        del module
        self._path.append(path)
        self._depth += is_layer
        if not is_layer or not self._is_counting or self._is_backward:
            return
        list_path = path.rpartition(".")[0]
        if list_path in self.calls:
            self.calls[list_path] += 1
        if self._depth == 1:
            given = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor))
            self.saved_outside |= {storage.number for one in given if (storage := self.storages.of(one)) is not None}
            self.saved_inside.append(set())
            self._layer = len(self.saved_inside)

    def _leave(self, is_layer: bool, *_: Any) -> None:
        """A hook: it has answered."""
        self._path.pop()
        self._depth -= is_layer
        if self._depth == 0:
            self._layer = 0

    @contextmanager
    def _probing(self) -> Iterator[list[str]]:
        """Operators inside are run but leave no trace; their names are listed."""
        self._probed = []
        try:
            yield self._probed
        finally:
            self._probed = None

    # ---- operators

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator on fake tensors and count it."""
        del types
        if operator is torch.ops.prim.device.default:
            return args[0].fake_device
        name, kwargs = name_of(operator), kwargs or {}
        if self._probed is not None:
            self._probed.append(name)
            return operator(*args, **kwargs)
        rule = rule_for(operator)
        if rule is None and is_composite(operator):  # it comes in one piece in inference mode
            with self:
                return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        if rule is None and not _has_tensors(operator):
            return operator(*args, **kwargs)
        if rule is None:
            raise UnknownOperatorError(
                f"the account has no rule for the operator {name}, which {self._where()} uses. State what it costs: "
                f"glassformer.inspect.account.register_rule({name!r}, Rule(...))."
            )
        call = Call(operator, name, rule, args, kwargs)
        inputs = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        check_types(name, inputs, self._where())
        out = self._run(call)
        results = [one for one in tree_leaves(out) if isinstance(one, Tensor)]
        for one in inputs:
            self._check_owned(one)
            self.storages.give(one)
        if self._is_backward and self._overwrites(call):
            self.storages.overwrite(args[0], out, by_formula=name in FILLING)
        for one in results:
            if self._is_given:
                self.storages.give(one)
            else:
                self.storages.make(one, self._layer)
            if rule.is_mask and (storage := self.storages.of(one)) is not None:
                storage.nbytes = one.numel()
            if name in ZEROS and (storage := self.storages.of(one)) is not None:
                storage.is_zero = True
        if self._is_counting and not self._is_given and (inputs or results):
            self._count(call, inputs, results, out)
        if name not in UNINITIALISED:  # memory that nobody has written to may yet turn out to be a mask of bytes
            self.storages.end_operator()
        self.values.follow(operator, args, kwargs, results)
        return out

    def _run(self, call: Call) -> Any:
        """The operator on fake tensors. One whose result depends on numbers is told these, where they are known."""
        args = call.args
        if call.name == "aten._local_scalar_dense" and (number := self.values.scalar(args[0])) is not None:
            return number
        if call.name == "aten.nonzero" and (positions := self.values.nonzero(args[0])) is not None:
            return torch.empty(positions.shape, dtype=torch.long)
        if call.name == "aten.masked_select":
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)  # type: ignore[no-untyped-call]
            if (positions := self.values.nonzero(args[1], shape)) is not None:
                return torch.empty(len(positions), dtype=args[0].dtype)
        if call.name in INDEXING:
            args = self.values.without_boolean_indices(args)
        try:
            return call.operator(*args, **call.kwargs)
        except DynamicOutputShapeException as error:
            known = self.values.results(call.operator, args, call.kwargs)
            if known is not None:
                made = [torch.empty(one.shape, dtype=one.dtype) for one in known]
                return made[0] if len(call.operator._schema.returns) == 1 else tuple(made)
            raise UnknownOperatorError(
                f"{self._where()} makes a tensor whose size ({call.name}) depends on weights or on a large input, and "
                f"an account knows shapes alone. Keep the size (torch.where, masked_fill), or hand the positions to "
                f"forward."
            ) from error
        except DataDependentOutputException as error:
            raise UnknownOperatorError(
                f"{self._where()} reads a number ({call.name}) that depends on weights or on a large input, and an "
                f"account knows shapes alone. Compute it from shapes, or hand it to forward."
            ) from error

    def _check_owned(self, tensor: Tensor) -> None:
        """Refuse a weight that is real, and would be left with a gradient that is not."""
        if isinstance(tensor, FakeTensor) or not (tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled()):
            return
        name = self._originals.get(id(tensor), "")
        raise ValueError(
            f"{self._where()} uses {f'the weight {name!r}' if name else 'a tensor'} of the model itself, and what is "
            f"accounted for is a copy of it: a forward or a hook holds the model, or the tensor, as a variable from "
            f"outside. Let it take it from its module (self, or the first argument of a hook)."
        )

    def _overwrites(self, call: Call) -> bool:
        """Whether autograd would write over the first operand, if only it were no fake tensor.

        It does so with a gradient to which it adds another, and with zeros that a formula of its own fills.
        """
        node = torch._C._current_autograd_node()
        if node is None or torch.is_grad_enabled():
            return False
        if node is self._finished:
            return call.name == "aten.add"
        if call.name not in FILLING or isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        storage = self.storages.of(call.args[0])
        return storage is not None and storage.is_zero

    def _where(self) -> str:
        return f"the part {self._path[-1]!r}" if self._path[-1] else "the model itself"

    def _count(self, call: Call, inputs: Sequence[Tensor], results: Sequence[Tensor], out: Any) -> None:
        rule, largest = call.rule, max((*inputs, *results), key=Tensor.numel)
        work = Work(elementwise=rule.steps * largest.numel())
        if rule.work is not None:
            work = rule.work(*call.args, **call.kwargs, out=out)
        count = OpCount(call.name, rule.kind, self._path[-1], tuple(largest.shape), work, layer=self._layer)
        if call.operator.is_view or rule.traffic == "none":
            pass
        elif rule.traffic == "output":
            count.moved = 2 * _nbytes(results)
        else:
            count.moved = _nbytes(inputs) + _nbytes(results)
        if rule is not FREE:
            self.ops.append(count)
        node = torch._C._current_autograd_node()
        is_again = self._is_backward and node is not None and torch.is_grad_enabled()  # as checkpointing does
        if node is not None and not is_again:
            self._place_backward(count, node._sequence_nr())
            return
        self._place_forward(count)
        if rule.kind == "product":
            names = (self._weights.get(place(one)) for one in inputs)
            count.weight = next((name for name in names if name is not None), "")
        self._products.see(rule, count, inputs, results)
        if is_again:
            self._place_again(count, node._sequence_nr())

    def _place_forward(self, count: OpCount) -> None:
        """Autograd makes the node of an operator, or of an autograd.Function, just before it is dispatched."""
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if number not in self._by_node:
            self._by_node[number] = count
            self._nodes.append(number)

    def _place_again(self, count: OpCount, node: int) -> None:
        """An operator of the forward pass that is run once more during the backward pass."""
        forward, work = self._forward_of(node), count.work
        again = work.recomputed + sum(one.flops for one in work.products)
        count.backward, count.work = True, Work(recomputed=again, elementwise=work.elementwise)
        if forward is not None:
            count.layer, count.path = forward.layer, count.path or forward.path

    def _place_backward(self, count: OpCount, node: int) -> None:
        """An operator of the backward pass belongs where the operator of the forward pass does."""
        count.backward = True
        forward = self._forward_of(node)
        if forward is None:
            count.path = GRADIENTS
            return
        if not count.work.products or forward.kind in ("product", "kernel"):
            count.kind = forward.kind
        count.path, count.layer = forward.path, forward.layer
        count.weight, count.label = forward.weight, forward.label

    def _forward_of(self, node: int) -> OpCount | None:
        place = bisect_right(self._nodes, node) - 1
        return self._by_node[self._nodes[place]] if node < GATHERS_GRADIENTS and place >= 0 else None

    # ---- what is kept for the backward pass

    def _save(self, tensor: Tensor) -> Tensor | None:
        """Note a tensor that autograd keeps. Whoever keeps a storage first is charged for it."""
        if self._probed is not None:
            return None  # nobody goes back from here, and a result that its own node keeps would never be freed
        storage = self.storages.of(tensor)
        if storage is None or not self._is_counting or self._is_backward:
            return tensor
        inside = self._layer and storage.layer == self._layer
        (self.saved_inside[-1] if inside else self.saved_outside).add(storage.number)
        if not storage.is_saved:
            storage.is_saved = True
            node = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self.saved.append(Saved(node, self._path[-1], tuple(tensor.shape), storage.number))
        return tensor

    def book_saved(self) -> None:
        """Charge the operators with what was kept for them, once the forward pass is over."""
        known = {id(one) for one in self.ops}
        for one in self.saved:
            count = self._by_node.get(one.node)
            if count is None or id(count) not in known:
                count = OpCount("saved", "copy", one.path, one.shape)
                self.ops.append(count)
            count.saved.append((one.shape, self.storages.all[one.storage].nbytes))


def _has_tensors(operator: OpOverload) -> bool:
    schema = operator._schema
    return any("Tensor" in str(one.type) for one in (*schema.arguments, *schema.returns))


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(one.numel() * one.dtype.itemsize for one in tensors)
