"""The books themselves, each number worked out by hand."""

import gc

import pytest

from glassformer.inspect.account.walk import Leaf, Product, Size, Value, Walk


def sizes(*numbers: int) -> list[Size]:
    return [Size(str(number), number) for number in numbers]


def product(m: int, n: int, p: int, times: int = 1, **more) -> Product:
    return Product("", *sizes(m, n, p, times), **more)


def test_two_m_n_p():
    assert product(3, 5, 7).flops == 2 * 3 * 5 * 7
    assert product(3, 5, 7, times=4, runs=2).flops == 8 * 2 * 3 * 5 * 7
    assert product(3, 5, 7, pairs=Size("pairs", 10)).flops == 2 * 5 * 10  # of 21 entries


def test_values_occupy_memory_as_long_as_somebody_holds_them():
    walk = Walk(4)
    a = walk.new(10)
    b = walk.new(6, width=8)
    assert (walk.live, walk.peak) == (40 + 48, 88)
    part = walk.part_of(a, 1, 2)
    assert (part.numel, walk.live) == (5, 88)  # where it lies
    del a
    assert walk.live == 88  # a part holds the whole
    del part
    assert walk.live == 48
    walk.new(1)
    assert (walk.live, walk.peak) == (48, 88)
    del b
    assert (walk.live, walk.peak) == (0, 88)


def test_what_is_moved():
    walk = Walk(4)
    with walk.part("a"):
        x = walk.look_up("table", 1000, 20)  # rows are read and written
        assert walk.leaf == Leaf(moved=160)
        y = walk.point(x, walk.weight("bias", 5), work=3)
        assert walk.leaf == Leaf(moved=160 + 80 + 20 + 80, elementwise=60)
    with walk.part("b"):
        assert walk.point(y, numel=4).numel == 4
        assert walk.leaf == Leaf(moved=80 + 16, elementwise=20)
    with walk.part("c"):
        assert walk.cast(y, 4) is y
        assert walk.cast(y, 8).nbytes == 160
        assert walk.join(x, y).numel == 40
        assert walk.copy(y, 3, 4).numel == 15
        assert walk.leaf == Leaf(moved=(80 + 160) + (160 + 160) + (60 + 60))
    with walk.part("d"):
        z = walk.multiply(x, walk.weight("weight", 30), product(4, 5, 6))
        assert (z.numel, walk.leaf.moved) == (24, 80 + 120 + 96)
    assert walk.saved == 0  # nothing is held in a pass that is not differentiated
    assert walk.nodes == []


def test_products_of_one_part_are_one_entry_with_its_runs():
    walk = Walk(4)
    for _ in range(3):
        with walk.part("layer"), walk.part("up"):
            walk.count(product(3, 5, 7))
    with walk.part("layer"), walk.part("up"):
        walk.count(product(3, 5, 8), recomputed=True)
    leaf = walk.leaves["layer.up"]
    assert [(one.name, one.p.value, one.runs) for one in leaf.products] == [("layer.up", 7, 3), ("layer.up", 8, 1)]
    assert sum(one.flops for one in leaf.products) == 3 * 210 + 240
    assert leaf.recomputed == 240


def test_what_is_saved_is_paid_for_once_by_the_first():
    walk = Walk(4, differentiable=True)
    x = walk.look_up("table", 100, 10, rows=walk.new(5, 8))
    assert walk.leaves[""].saved == 40  # which rows: five numbers of eight bytes
    with walk.part("a"):
        y = walk.multiply(x, walk.weight("weight", 20), product(5, 2, 10))
        assert walk.leaf.saved == 40  # x; weights are there anyway
    with walk.part("b"):
        z = walk.point(walk.part_of(x, 1, 2), y, saves=(x, y), numel=50)
        assert walk.leaf.saved == 200  # y; x is paid for
        walk.keep(z)
        assert walk.leaf.saved == 400
    with walk.part("c"):
        out = walk.kernel(z, numel=50, saves=(z,), rest=12, work=7)
        assert walk.leaf == Leaf(moved=400, elementwise=7, saved=200 + 12)  # its own result, and twelve bytes
    assert walk.saved == 40 + 40 + 200 + 200 + 212
    before = walk.live
    del x, y, z, out
    assert walk.live == before == 692  # all of it is held for the way back
    walk.go_back()
    gc.collect()
    assert walk.live == 0


def test_the_way_back():
    """y = x · W, z = f(y): at its highest with the gradients of y and x, that of W and what is held for it."""
    walk = Walk(4, differentiable=True)
    x = walk.look_up("table", 100, 10)  # 40 bytes
    y = walk.multiply(x, walk.weight("weight", 30), product(5, 2, 15))  # 300 bytes, holds x
    z = walk.point(y, saves=(y,), numel=1)  # 4 bytes, holds y
    del x, y, z
    assert (walk.live, walk.peak) == (340, 344)
    walk.go_back()
    # f: y and x live, gradients of z and y: 340 + 304. W: x lives, gradients of y, x and W: 40 + 340 + 120.
    # Then W's gradient stays, and that of the table comes: 120 + 40 + 400.
    assert walk.peak == max(340 + 304, 40 + 340 + 120, 120 + 40 + 400) == 644


def test_room_for_steps_between_on_the_way_back():
    walk = Walk(4, differentiable=True)
    x = walk.look_up("table", 1, 10)
    walk.point(x, saves=(x,), spare=3)
    del x
    walk.go_back()
    assert walk.peak == 40 + 80 + 3 * 40


def test_a_gradient_waits_while_another_branch_is_gone_back():
    """x + g(x) · W: when the gradient of W comes, that of x is there from the sum, and waits for that from g."""
    walk = Walk(4, differentiable=True)
    x = walk.look_up("table", 1, 10)
    g = walk.point(x, numel=100)
    f = walk.multiply(g, walk.weight("weight", 1000), product(1, 100, 10))  # holds g
    total = walk.point(x, f)
    del g, f, total, x
    assert (walk.live, walk.peak) == (400, 40 + 400 + 40 + 40)
    walk.go_back()
    assert walk.peak == 400 + (40 + 40 + 400) + 4000  # g; gradients of x, f and g; that of W


def test_a_shared_weight_has_one_gradient():
    def peak_after(names: list[str]) -> int:
        walk = Walk(4, differentiable=True)
        x = walk.look_up("table", 1, 10)
        for name in names:
            x = walk.multiply(x, walk.weight(name, 1000), product(1, 10, 10))
        del x
        walk.go_back()
        return walk.peak

    assert peak_after(["a.weight", "b.weight"]) == 40 + 80 + 8000  # both, gradients of 10 + 10 numbers, what is held
    assert peak_after(["a.weight", "a.weight"]) == 40 + 80 + 8000  # the second is added to the first, and goes
    assert peak_after(["a.weight", "b.weight", "c.weight"]) == 40 + 80 + 12000
    assert peak_after(["a.weight"] * 3) == 80 + 80 + 8000  # the same at the middle one, when one more is held


def test_constants_have_no_gradient():
    walk = Walk(4, differentiable=True)
    x, mask = walk.look_up("table", 1, 10), walk.new(1000)
    walk.point(x, mask, numel=10)
    del mask, x
    before = walk.peak
    walk.go_back()
    assert walk.peak == before == 4000 + 80


def test_pieces_that_run_again():
    """Two pieces, the second larger: what lies beside them, their inputs, and the inside of the second."""
    walk = Walk(4, differentiable=True)
    x = walk.look_up("table", 1, 10)
    for inside in (100, 200):
        with walk.piece(x):
            y = walk.point(x, saves=(x,), numel=inside)
            x = walk.point(y, saves=(y,), numel=10)
    walk.point(x, saves=(x,), numel=1)
    assert walk.saved == 40 + 400 + 40 + 800 + 40
    assert walk.checkpointed == 3 * 40 + 800


def test_a_piece_whose_input_is_not_saved_holds_it_all_the_same():
    walk = Walk(4, differentiable=True)
    x = walk.look_up("table", 1, 10)
    with walk.piece(x, Value(5, 4)):  # what was there before the pass costs nothing
        walk.keep(walk.point(x, numel=20))
    assert (walk.saved, walk.checkpointed) == (80, 40 + 80)
    assert Walk(4).checkpointed == 0


@pytest.mark.parametrize("name", ["embed.token.weight", "weight"])
def test_names_of_weights(name):
    walk = Walk(4)
    with walk.part("head"), walk.part("out"):
        assert walk.weight(name, 3).weight == (name if "." in name else "head.out.weight")
