"""Which matrix products of a pass are attention's: those on either side of a softmax, neither of them with a weight.

A product whose result reaches a softmax through element-wise operators computes ``scores``, or ``position_scores`` if
rows or columns are looked up in it on the way; a product of what comes out of that softmax is a ``weighted_sum``.
"""

from collections.abc import Sequence

from torch import Tensor

from glassformer.inspect.account.counts import OpCount
from glassformer.inspect.account.rules import FREE, Rule
from glassformer.inspect.account.storages import Storage, Storages

SOFTMAX = {"aten.exp", "aten._softmax", "aten._safe_softmax"}  # or its first step


class AttentionProducts:
    """Follows the results of products through a forward pass; ``ops`` is the growing list of its operators."""

    def __init__(self, ops: list[OpCount], storages: Storages) -> None:
        self._ops = ops
        self._storages = storages

    def see(self, rule: Rule, count: OpCount, inputs: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Name the products before this operator, the last of the list, and note what its results were made from."""
        if rule is FREE:
            return
        sources = [storage for one in inputs if (storage := self._storages.of(one)) is not None]
        if rule.kind == "kernel":  # what is added to the scores inside it
            for source in sources:
                self._name_scores(source)
        if rule.kind == "product" and not count.weight:
            weights = [one for one in sources if one.is_normalised and self._name_scores(one)]
            count.label = "weighted_sum" if weights else ""
        products, is_normalised = self._origin(rule, count, sources)
        for one in results:
            if (storage := self._storages.of(one)) is not None:
                storage.products, storage.is_normalised = products, is_normalised

    def _origin(
        self, rule: Rule, count: OpCount, sources: Sequence[Storage]
    ) -> tuple[frozenset[tuple[int, bool]], bool]:
        """From which products, by their place in the list and whether looked up, and whether through a softmax."""
        if rule.kind == "kernel":
            return frozenset(), False
        if rule.kind == "product":
            return frozenset({(len(self._ops) - 1, False)}), False
        products = frozenset[tuple[int, bool]]().union(*(one.products for one in sources))
        if rule.kind == "lookup":
            products = frozenset((number, True) for number, _ in products)
        through = count.operator in SOFTMAX or any(one.is_normalised for one in sources)
        return products, through and bool(products)

    def _name_scores(self, source: Storage) -> bool:
        """Whether it was made from products without weights, which are then scores."""
        found = [(self._ops[number], gathered) for number, gathered in source.products]
        unweighted = [(one, gathered) for one, gathered in found if not one.weight]
        for one, gathered in unweighted:
            one.label = "position_scores" if gathered else "scores"
        return bool(unweighted)
