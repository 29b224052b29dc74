"""``OpRecorder`` counts every operator of a pass on fake tensors: its module, its cost, and the tensors it keeps alive.

It is a dispatch mode above ``FakeTensorMode``. Forward hooks give the current module; sequence numbers of autograd map
operators of the backward pass, and saved tensors, to the operator of the forward pass.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from glassformer.inspect.account.counts import OpCount, Work
from glassformer.inspect.account.memory import Storage, Storages, location
from glassformer.inspect.account.rules import (
    FREE,
    OperatorRule,
    UnknownOperatorError,
    check_types,
    is_composite,
    name_of,
    rule_for,
)
from glassformer.inspect.account.tree import GRADIENTS
from glassformer.inspect.account.values import KnownValues
from glassformer.models.output_heads import LMHead
from glassformer.models.transformer import Transformer

ACCUMULATE_GRAD = "torch::autograd::AccumulateGrad"
ACCUMULATE_GRAD_SEQUENCE = 2**63  # sequence numbers from here on belong to AccumulateGrad nodes, not to operators
UNINITIALISED = {f"aten.{name}" for name in ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")}
ZEROS = {f"aten.{name}" for name in ("zeros", "zeros_like", "new_zeros")}
FILLING = {f"aten.{name}" for name in ("index_put", "_unsafe_index_put", "index_add", "scatter", "scatter_add")}
INDEXING = ("aten.index", "aten.index_put", "aten.index_put_")
SOFTMAX = {"aten.exp", "aten._softmax", "aten._safe_softmax"}  # or its first step


class OpCall(NamedTuple):
    """One operator call, as dispatched."""

    operator: OpOverload
    name: str
    rule: OperatorRule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class SavedTensor(NamedTuple):
    """A tensor that autograd saves for the backward pass."""

    node: int  # sequence number of the operator that needs it there
    path: str
    shape: tuple[int, ...]
    storage: int


class AttentionProducts:
    """Labels the matrix products of attention: those before and after a softmax, neither of them with a weight.

    A product whose result reaches a softmax through element-wise operators computes ``scores``, or ``position_scores``
    if it is indexed on the way; a product with the output of that softmax is a ``weighted_sum``. ``ops`` is the growing
    list of the operators of the forward pass.
    """

    def __init__(self, ops: list[OpCount], storages: Storages) -> None:
        self._ops = ops
        self._storages = storages

    def follow(self, rule: OperatorRule, count: OpCount, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Label the products that the last operator of the list reads, and note the products its results come from."""
        if rule is FREE:
            return
        sources = [storage for tensor in inputs if (storage := self._storages.of(tensor)) is not None]
        if rule.kind == "kernel":  # its bias is added to the scores
            for source in sources:
                self._label_scores(source)
        if rule.kind == "product" and not count.weight:
            probabilities = [source for source in sources if source.is_normalised and self._label_scores(source)]
            count.label = "weighted_sum" if probabilities else ""
        products, is_normalised = self._origin(rule, count, sources)
        for tensor in results:
            if (storage := self._storages.of(tensor)) is not None:
                storage.products, storage.is_normalised = products, is_normalised

    def _origin(
        self, rule: OperatorRule, count: OpCount, sources: Sequence[Storage]
    ) -> tuple[frozenset[tuple[int, bool]], bool]:
        """Return the products that a result comes from, as (index, whether indexed), and whether normalised."""
        if rule.kind == "kernel":
            return frozenset(), False
        if rule.kind == "product":
            return frozenset({(len(self._ops) - 1, False)}), False
        products = frozenset[tuple[int, bool]]().union(*(source.products for source in sources))
        if rule.kind == "lookup":
            products = frozenset((index, True) for index, _ in products)
        is_normalised = count.operator in SOFTMAX or any(source.is_normalised for source in sources)
        return products, is_normalised and bool(products)

    def _label_scores(self, source: Storage) -> bool:
        """Label the products without weights that a storage comes from as scores; whether there are any."""
        products = [(self._ops[index], is_indexed) for index, is_indexed in source.products]
        unweighted = [(product, is_indexed) for product, is_indexed in products if not product.weight]
        for product, is_indexed in unweighted:
            product.label = "position_scores" if is_indexed else "scores"
        return bool(unweighted)


class OpRecorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inside, every operator runs on fake tensors and, within ``counting``, is counted.

    Enter ``recording`` inside a ``FakeTensorMode``.

    Args:
        byte_masks: count dropout masks as one byte per element, as a GPU stores them, whatever their type on a CPU.
    """

    def __init__(self, *, byte_masks: bool = True) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._byte_masks = byte_masks
        self.ops: list[OpCount] = []
        self.values = KnownValues()
        self.storages = Storages(self.values.forget)
        self.saved: list[SavedTensor] = []
        self.saved_inside: list[set[int]] = []  # by layer call: the storages it both allocated and saved
        self.saved_outside: set[int] = set()  # all other saved storages, and the inputs of layers
        self.calls: Counter[str] = Counter()  # of the layers of each nn.ModuleList, by its path
        self._products = AttentionProducts(self.ops, self.storages)
        self._weights: dict[tuple[int, int], str] = {}  # location of each parameter → name
        self._originals: dict[int, str] = {}
        self._unhooked: dict[nn.Module, str] = {}  # Transformers and heads without hooks → path
        self._path = [""]
        self._layer = 0
        self._depth = 0  # of nested layers
        self._by_node: dict[int, OpCount] = {}  # sequence number of autograd → operator
        self._nodes: list[int] = []  # the same numbers in ascending order
        self._is_counting = self._is_input = self._is_backward = False
        self._probed: list[str] | None = None
        self._finished: Any = None  # the node of autograd that ran last

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled, and this avoids importing the compiler."""
        return False

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the operators that run inside, and the tensors that autograd saves."""
        hooks = (
            register_module_forward_pre_hook(self._enter_unhooked),
            register_module_forward_hook(self._leave_unhooked, always_call=True),
        )
        try:
            with torch.autograd.graph.saved_tensors_hooks(self._save, lambda tensor: tensor), self:
                yield
        finally:
            for hook in hooks:
                hook.remove()

    # ---- the current module and phase

    def watch(self, model: nn.Module, original: nn.Module) -> None:
        """Register the parameters and hook the modules of ``model``, a private copy of ``original``.

        A ``Transformer`` and its head without hooks get none: an objective that applies the head to some positions
        only, or computes the loss without all logits, does so where no hook would miss that. Global hooks follow them
        instead (see ``recording``).
        """
        self._originals = {id(weight): name for name, weight in original.named_parameters()}
        for name, weight in model.named_parameters():
            self._weights.setdefault(location(weight), name)
            self.storages.add_external(weight)
        # Layers are the elements of module lists; their calls are counted by list.
        lists = {name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList)}
        layers = {id(layer) for module_list in lists.values() for layer in module_list}
        self.calls.update(dict.fromkeys(lists, 0))
        matrices = {id(module.out) for module in model.modules() if isinstance(module, LMHead)}
        for name, module in model.named_modules():
            is_layer = id(module) in layers
            is_hooked = is_layer or module._forward_pre_hooks or module._forward_hooks
            if not is_hooked and (type(module) in (Transformer, LMHead) or id(module) in matrices):
                self._unhooked[module] = name
                continue
            module.register_forward_pre_hook(partial(self._enter, name, is_layer), with_kwargs=True)
            module.register_forward_hook(partial(self._leave, is_layer), always_call=True)

    @contextmanager
    def _set(self, **state: Any) -> Iterator[None]:
        """Set attributes, and restore them afterwards."""
        before = {name: getattr(self, name) for name in state}
        self.__dict__.update(state)
        try:
            yield
        finally:
            self.__dict__.update(before)

    def counting(self) -> AbstractContextManager[None]:
        """Count the operators that run inside; before and after they only run."""
        return self._set(_is_counting=True)

    def making_inputs(self) -> AbstractContextManager[None]:
        """Treat the tensors that are created inside as inputs of the pass."""
        return self._set(_is_input=True)

    def part(self, name: str) -> AbstractContextManager[None]:
        """Assign the operators that run inside to the part of this name."""
        return self._set(_path=[*self._path, name])

    @contextmanager
    def probing(self) -> Iterator[list[str]]:
        """Run operators inside without recording them; yields the list of their names."""
        names: list[str] = []
        with self._set(_probed=names):
            yield names

    @contextmanager
    def backward_pass(self, outputs: Sequence[Tensor]) -> Iterator[None]:
        """Run the backward pass from these outputs inside."""
        # A hook on every node of the graph tells which node ran last.
        pending, visited = [output.grad_fn for output in outputs], set()
        while pending:
            node = pending.pop()
            if node is not None and node not in visited and node.name() != ACCUMULATE_GRAD:
                visited.add(node)
                node.register_hook(self._finish)
                pending += [function for function, _ in node.next_functions]
        with self._set(_is_backward=True, _finished=None):
            yield

    def _finish(self, *_: Any) -> None:
        """Hook: a node has finished. Until the next node runs, autograd accumulates gradients."""
        self._finished = torch._C._current_autograd_node()

    def fake_input(self, value: Any) -> Any:
        """Return a fake CPU tensor with known values for a real tensor; any other value unchanged."""
        if not isinstance(value, Tensor):
            return value
        fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        if value.device.type == "cpu":
            self.values.set(fake, value)
        return fake.requires_grad_(value.requires_grad)

    def _enter(self, path: str, is_layer: bool, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Forward pre-hook."""
        del module
        self._path.append(path)
        self._depth += is_layer
        if not is_layer or not self._is_counting or self._is_backward:
            return
        list_path = path.rpartition(".")[0]
        if list_path in self.calls:
            self.calls[list_path] += 1
        # An outermost layer: its inputs are what checkpointing would keep.
        if self._depth == 1:
            inputs = (leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
            self.saved_outside |= {storage.number for leaf in inputs if (storage := self.storages.of(leaf)) is not None}
            self.saved_inside.append(set())
            self._layer = len(self.saved_inside)

    def _leave(self, is_layer: bool, *_: Any) -> None:
        """Forward hook."""
        self._path.pop()
        self._depth -= is_layer
        if self._depth == 0:
            self._layer = 0

    def _enter_unhooked(self, module: nn.Module, args: Any) -> None:
        """Global forward pre-hook, called for every module."""
        if module in self._unhooked:
            self._enter(self._unhooked[module], False, module, args, {})

    def _leave_unhooked(self, module: nn.Module, *_: Any) -> None:
        """Global forward hook."""
        if module in self._unhooked:
            self._leave(False)

    # ---- operators

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator on fake tensors and count it."""
        del types
        if operator is torch.ops.prim.device.default:
            return args[0].fake_device
        name, kwargs = name_of(operator), kwargs or {}
        if kwargs.get("generator") is not None:  # fake tensors hold no random numbers, and torch refuses it for some
            kwargs = {**kwargs, "generator": None}
        if self._probed is not None:
            self._probed.append(name)
            return operator(*args, **kwargs)
        rule = rule_for(operator)
        if rule is None:
            return self._run_without_rule(operator, name, args, kwargs)
        # Run the operator.
        call = OpCall(operator, name, rule, args, kwargs)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        check_types(name, inputs, self._where)
        out = self._run(call)
        results = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        # Track the storages that it reads and allocates.
        for tensor in inputs:
            self._check_owned(tensor)
            self.storages.add_external(tensor)
        if self._is_backward and self._overwrites(call):
            self.storages.overwrite(args[0], out, by_formula=name in FILLING)
        for tensor in results:
            self._allocate(call, tensor)
        # Count its work, then follow the values of its results.
        if self._is_counting and not self._is_input and (inputs or results):
            self._count(call, inputs, results, out)
        if name not in UNINITIALISED:  # uninitialised memory may still become a dropout mask, of one byte per number
            self.storages.end_operator()
        self.values.note_results(operator, args, kwargs, results)
        return out

    def _run_without_rule(self, operator: OpOverload, name: str, args: Any, kwargs: Any) -> Any:
        """Decompose a composite operator, run one without tensors, and refuse any other."""
        if is_composite(operator):  # in inference mode it is not decomposed before dispatch
            with self:
                return operator._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
        schema = operator._schema
        if not any("Tensor" in str(argument.type) for argument in (*schema.arguments, *schema.returns)):
            return operator(*args, **kwargs)
        raise UnknownOperatorError(
            f"the account has no rule for the operator {name}, which {self._where()} uses. State its cost: "
            f"glassformer.inspect.account.register_rule({name!r}, OperatorRule(...))."
        )

    def _allocate(self, call: OpCall, tensor: Tensor) -> None:
        """Register the storage of a result."""
        if self._is_input:
            self.storages.add_external(tensor)
            return
        self.storages.allocate(tensor, self._layer)
        is_byte_mask = call.rule.is_mask and self._byte_masks
        if not is_byte_mask and call.name not in ZEROS:
            return
        storage = self.storages.of(tensor)
        if storage is not None and is_byte_mask:
            storage.nbytes = tensor.numel()
        elif storage is not None:
            storage.is_zero = True

    def _run(self, call: OpCall) -> Any:
        """Run an operator on fake tensors. One whose result depends on values gets them where they are known."""
        args = call.args
        # Known values stand in for what fake tensors cannot tell: a number, or how many elements are not 0.
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
        # All others run on shapes alone.
        try:
            return call.operator(*args, **call.kwargs)
        except DynamicOutputShapeException as error:
            values = self.values.results(call.operator, args, call.kwargs)
            if values is not None:
                fakes = [torch.empty(value.shape, dtype=value.dtype) for value in values]
                return fakes[0] if len(call.operator._schema.returns) == 1 else tuple(fakes)
            raise UnknownOperatorError(
                f"{self._where()} makes a tensor whose size ({call.name}) depends on weights or on a large input; an "
                f"account only has shapes. Keep the size (torch.where, masked_fill), or pass the positions to forward."
            ) from error
        except DataDependentOutputException as error:
            raise UnknownOperatorError(
                f"{self._where()} reads a number ({call.name}) that depends on weights or on a large input; an account "
                f"only has shapes. Compute it from shapes, or pass it to forward."
            ) from error

    def _check_owned(self, tensor: Tensor) -> None:
        """Refuse a real parameter, which would get a fake gradient."""
        if isinstance(tensor, FakeTensor) or not (tensor.requires_grad and tensor.is_leaf and torch.is_grad_enabled()):
            return
        name = self._originals.get(id(tensor), "")
        raise ValueError(
            f"{self._where()} uses {f'the weight {name!r}' if name else 'a tensor'} of the original model, and the "
            f"account runs a copy of it: a forward or a hook captures the model, or the tensor, from an outer scope. "
            f"Take it from the module (self, or the first argument of a hook) instead."
        )

    def _overwrites(self, call: OpCall) -> bool:
        """Whether autograd would write over the first operand if it were not a fake tensor.

        It does so when it accumulates a gradient, and when a backward formula fills zeros.
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

    def _count(self, call: OpCall, inputs: Sequence[Tensor], results: Sequence[Tensor], out: Any) -> None:
        """Count one call and assign it to the forward pass, the backward pass, or recomputation."""
        # The work by the operator's rule, and the bytes that it reads and writes.
        rule, largest = call.rule, max((*inputs, *results), key=Tensor.numel)
        work = Work(elementwise=rule.steps * largest.numel())
        if rule.work is not None:
            work = rule.work(*call.args, **(call.kwargs | {"out": out}))
        count = OpCount(call.name, rule.kind, self._path[-1], tuple(largest.shape), work, layer=self._layer)
        if not call.operator.is_view and rule.traffic != "none":
            is_output = rule.traffic == "output"
            count.moved = 2 * _nbytes(results) if is_output else _nbytes(inputs) + _nbytes(results)
        if rule is not FREE:
            self.ops.append(count)
        # Assign it to a pass: inside an autograd node, it is the backward pass or the recomputation of a checkpoint.
        node = torch._C._current_autograd_node()
        is_recomputed = self._is_backward and node is not None and torch.is_grad_enabled()  # activation checkpointing
        if node is not None and not is_recomputed:
            self._assign_backward(count, node._sequence_nr())
            return
        self._assign_forward(count)
        if rule.kind == "product":
            names = (self._weights.get(location(tensor)) for tensor in inputs)
            count.weight = next((name for name in names if name is not None), "")
        self._products.follow(rule, count, inputs, results)
        if is_recomputed:
            self._assign_recomputed(count, node._sequence_nr())

    def _assign_forward(self, count: OpCount) -> None:
        """Autograd creates the node of an operator, or of an autograd.Function, just before dispatching it."""
        number = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        if number not in self._by_node:
            self._by_node[number] = count
            self._nodes.append(number)

    def _assign_recomputed(self, count: OpCount, node: int) -> None:
        """Assign an operator of the forward pass that runs again in the backward pass."""
        forward, work = self._forward_of(node), count.work
        recomputed = work.recomputed + sum(product.flops for product in work.products)
        count.backward, count.work = True, Work(recomputed=recomputed, elementwise=work.elementwise)
        if forward is not None:
            count.layer, count.path = forward.layer, count.path or forward.path

    def _assign_backward(self, count: OpCount, node: int) -> None:
        """Assign an operator of the backward pass to the part of its forward operator."""
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
        index = bisect_right(self._nodes, node) - 1
        return self._by_node[self._nodes[index]] if node < ACCUMULATE_GRAD_SEQUENCE and index >= 0 else None

    # ---- tensors saved for the backward pass

    def _save(self, tensor: Tensor) -> Tensor | None:
        """Pack hook: note a saved tensor. A storage is charged to the first operator that saves it."""
        if self._probed is not None:
            return None  # no backward pass follows, and a result saved by its own node would never be freed
        storage = self.storages.of(tensor)
        if storage is None or not self._is_counting or self._is_backward:
            return tensor
        is_inside = self._layer and storage.layer == self._layer
        (self.saved_inside[-1] if is_inside else self.saved_outside).add(storage.number)
        if not storage.is_saved:
            storage.is_saved = True
            node = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
            self.saved.append(SavedTensor(node, self._path[-1], tuple(tensor.shape), storage.number))
        return tensor

    def charge_saved(self) -> None:
        """Assign the saved tensors to their operators, after the forward pass."""
        counted = {id(op) for op in self.ops}
        for saved in self.saved:
            count = self._by_node.get(saved.node)
            if count is None or id(count) not in counted:
                count = OpCount("saved", "copy", saved.path, saved.shape)
                self.ops.append(count)
            count.saved.append((saved.shape, self.storages.all[saved.storage].nbytes))


def _nbytes(tensors: Sequence[Tensor]) -> int:
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)
