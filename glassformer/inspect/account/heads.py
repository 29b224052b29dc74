"""What a head does in one pass, told to a ``Walk``. The shadow of ``models.heads``."""

from glassformer.config import EmbeddingHead, Head, LMHead, Model, PretrainingHead, TaskHead
from glassformer.inspect.account.parts import activation, dropout, linear, norm, product
from glassformer.inspect.account.walk import Product, Size, Value, Walk


def answers(walk: Walk, model: Model, facts: Head, x: Value, batch: int) -> list[Value]:
    """What the head says of the vectors of so many rows; two answers where it is made of two."""
    if isinstance(facts, PretrainingHead):
        found = []
        for name, one in (("lm", facts.lm), ("pair", facts.pair)):
            with walk.part(name):
                found += answers(walk, model, one, x, batch)
        return found
    if isinstance(facts, LMHead):
        return [_logits(walk, model, facts, x)]
    if isinstance(facts, TaskHead):
        return [_scores(walk, model, facts, x, batch)]
    return [_embedding(walk, facts, pooled(walk, x, facts.pool, batch, model.width), batch)]


def pooled(walk: Walk, x: Value, how: str, batch: int, width: int) -> Value:
    """One vector per row: the mean, or that of one token, where it lies."""
    if how == "mean":
        return walk.point(x, numel=batch * width)
    return walk.part_of(x, batch * width, x.numel)


def _logits(walk: Walk, model: Model, facts: LMHead, x: Value) -> Value:
    """Over the vocabulary, by a matrix of its own or the embedding table."""
    rows, into = Size("batch · tokens", x.numel // model.width), Size("width", model.width)
    if facts.transform is not None or (facts.tied and model.embed.width is not None):
        into = Size("width of the embedding", model.embed.width or model.width)
    if facts.transform is not None:
        x = linear(walk, "transform", x, (rows, Size("width", model.width), into), bias=True)
        x = norm(walk, model.norm, "norm", activation(walk, facts.transform, x), into.value)
    if facts.scale != 1.0:
        x = walk.point(x)
    with walk.part("out"):
        table = walk.weight("embed.token.weight" if facts.tied else "weight", model.vocab * into.value)
        of = Product("", rows, into, Size("vocabulary", model.vocab))
        bias = walk.weight("bias", model.vocab) if facts.bias_trained else Value(model.vocab, walk.width)  # no gradient
        if facts.tied:
            return product(walk, x, table, of, bias if facts.bias else None)
        logits = walk.multiply(x, table, of)  # by a part of its own, which knows of no bias
        return walk.point(logits, bias) if facts.bias else logits


def _scores(walk: Walk, model: Model, facts: TaskHead, x: Value, batch: int) -> Value:
    """Of labels, for whole rows or for tokens."""
    width = Size("width", model.width)
    if facts.pool is not None:
        x = pooled(walk, x, facts.pool, batch, width.value)
    rows = Size("batch · tokens" if facts.pool is None else "batch", x.numel // width.value)
    if facts.hidden is not None:
        x = linear(walk, "hidden", dropout(walk, x, facts.input_dropout), (rows, width, width), bias=True)
        x = activation(walk, facts.hidden, x)
    if not facts.labels:
        return x
    labels = Size("labels", len(facts.labels))
    return linear(walk, "out", dropout(walk, x, facts.dropout), (rows, width, labels), bias=facts.bias)


def _embedding(walk: Walk, facts: EmbeddingHead, x: Value, batch: int) -> Value:
    """A vector per row, brought to length 1 if asked."""
    if not facts.normalise:
        return x
    wide = walk.cast(x, max(x.width, 4))
    length = walk.point(wide, saves=(wide,), numel=batch, work=2)
    walk.keep(length)
    least = walk.point(length, saves=(length,))  # not below 1e-12
    return walk.cast(walk.point(wide, least, saves=(wide, least)), x.width)
