from pytc.fold import fold


def folded(texts, same=lambda _: None):
    return [(found.count, found.texts[0]) for found in fold(texts, lambda text: (text,), same)]


def test_numbers_that_vary_become_ranges():
    assert folded([f"params['layers'][{i}].wq" for i in range(24)]) == [(24, "params['layers'][0..23].wq")]
    assert folded([f"p[{i}].b{j}.conv1d" for i in range(3) for j in range(2)]) == [(6, "p[0..2].b0..1.conv1d")]


def test_gaps_are_told():
    assert folded(["p[0]", "p[2]", "p[7]"]) == [(3, "p[0,2,7]")]
    assert folded([f"p[{i}]" for i in (9, 8, 4, 3, 2, 0)]) == [(6, "p[0,2..4,8..9]")]
    assert folded([f"p[{2 * i}]" for i in range(4)]) == [(4, "p[0,2,4,6]")]


def test_of_many_ranges_the_middle_ones_are_left_out():
    assert folded([f"p[{2 * i}]" for i in range(9)]) == [(9, "p[0,2,4,...,16]")]


def test_two_are_told_one_by_one():
    assert folded(["w1", "w2"]) == [(1, "w1"), (1, "w2")]


def test_two_that_differ_by_index_are_folded():
    assert folded(["p[0].w", "p[1].w"]) == [(2, "p[0..1].w")]
    assert folded(["p[0].w1", "p[1].w2"]) == [(1, "p[0].w1"), (1, "p[1].w2")]
    assert folded(["p[3]", "p[7]"]) == [(2, "p[3,7]")]


def test_only_what_is_the_same_is_folded_and_in_the_order_of_the_first():
    texts = ["b0", "a0", "b1", "a1", "b2", "a2", "c"]
    assert folded(texts) == [(3, "b0..2"), (3, "a0..2"), (1, "c")]
    parity = folded([f"p{i}" for i in range(6)], same=lambda text: int(text[1]) % 2)
    assert parity == [(3, "p0,2,4"), (3, "p1,3,5")]


def test_every_text_is_folded_by_itself():
    pairs = [(f"m[{i}]", f"result[0][{i + 1}]", "in place") for i in range(5)]
    (found,) = fold(pairs, lambda pair: pair, lambda _: None)
    assert found.texts == ("m[0..4]", "result[0][1..5]", "in place")
    assert found.members == tuple(pairs)
