"""The intermediate representation: verification, printing round trips, sizes."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fusegen import dims, ir
from fusegen.errors import GraphError, GraphFormatError
from fusegen.ir import ConvOp, DType, Graph, InputOp, Node, PointwiseOp, ReduceOp, TensorType
from fusegen.verify import from_json, verify

F32 = DType.FLOAT32


def leaf(name: str, *shape: dims.Dim, position: int = 0) -> Node:
    return Node(name=name, op=InputOp(position=position), type=TensorType(dtype=F32, shape=shape))


def small_graph() -> Graph:
    x = leaf("x", "x0_0", 4, "x0_2")
    mean = Node(
        name="m",
        op=ReduceOp(fn="mean", axes=(2,), keepdim=True),
        inputs=("x",),
        type=TensorType(dtype=F32, shape=("x0_0", 4, 1)),
    )
    result = Node(name="y", op=PointwiseOp(fn="sub"), inputs=("x", "m"), type=x.type)
    return Graph(nodes=(x, mean, result), outputs=("y",), sizes={"x0_0": 2, "x0_2": 5})


def test_json_round_trip() -> None:
    graph = small_graph()
    assert from_json(ir.to_json(graph)) == graph


def test_replace_validates() -> None:
    with pytest.raises(ValueError, match="dtype"):
        leaf("x", 2).type.replace(dtype="float31")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda g: g.replace(outputs=("z",)), "output 'z'"),
        (lambda g: g.replace(nodes=g.nodes[::-1]), "no earlier node"),
        (lambda g: g.replace(nodes=(*g.nodes, g.nodes[-1])), "share a name"),
        (lambda g: g.replace(sizes={"x0_0": 2}), "x0_2"),
        (lambda g: g.replace(nodes=(g.nodes[0].replace(op=InputOp(position=1)), *g.nodes[1:])), "positions"),
        (
            lambda g: g.replace(nodes=(*g.nodes[:2], g.nodes[2].replace(type=TensorType(dtype=F32, shape=(3,))))),
            "declared float32",
        ),
        (lambda g: g.replace(nodes=(*g.nodes[:2], g.nodes[2].replace(op=PointwiseOp(fn="frob")))), "unknown"),
        (lambda g: g.replace(nodes=(*g.nodes[:2], g.nodes[2].replace(op=PointwiseOp(fn="exp")))), "operands"),
    ],
)
def test_verify_names_what_is_wrong(change: object, message: str) -> None:
    assert callable(change)
    with pytest.raises(GraphError, match=message):
        verify(change(small_graph()))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"format": 2, "nodes": [], "outputs": []}),
        json.dumps({"nodes": [], "outputs": ["y"]}),
        json.dumps({"nodes": [{"name": "a b", "op": {"kind": "input", "position": 0}}], "outputs": []}),
        ir.to_json(small_graph()).replace('"mean"', '"median"'),
        ir.to_json(small_graph()).replace('"x0_2"', '"x0_2 +"', 1),
    ],
)
def test_malformed_graphs_are_refused(text: str) -> None:
    with pytest.raises(GraphFormatError):
        from_json(text, "graph.json")


def test_conv_channels_are_checked() -> None:
    conv = ConvOp(transposed=False, stride=(1,), padding=(0,), dilation=(1,), output_padding=(0,), groups=2)
    nodes = (leaf("x", 1, 6, 8), leaf("w", 4, 2, 3, position=1))
    declared = TensorType(dtype=F32, shape=(1, 4, 6))
    node = Node(name="y", op=conv, inputs=("x", "w"), type=declared)
    with pytest.raises(GraphError, match="channels"):
        verify(Graph(nodes=(*nodes, node), outputs=("y",)))


@pytest.mark.parametrize(("transposed", "behind"), [(False, (1, 2)), (True, (1,))])
def test_zeros_behind_a_convolution_are_of_its_axes(transposed: bool, behind: tuple[int, ...]) -> None:
    structure = {"stride": (1,), "padding": (0,), "dilation": (1,), "output_padding": (0,)}
    conv = ConvOp(transposed=transposed, behind=behind, **structure)  # type: ignore[arg-type]
    nodes = (leaf("x", 1, 4, 8), leaf("w", 4, 4, 3, position=1))
    node = Node(name="y", op=conv, inputs=("x", "w"), type=TensorType(dtype=F32, shape=(1, 4, 7)))
    with pytest.raises(GraphError, match="behind"):
        verify(Graph(nodes=(*nodes, node), outputs=("y",)))


SIZES = {"a": 7, "b": 3}
EXPRESSIONS = st.recursive(
    st.integers(1, 9).map(str) | st.sampled_from(sorted(SIZES)),
    lambda inner: st.tuples(inner, st.sampled_from(["+", "*", "//"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=6,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("(2*a - 5) // 4", "((a - 3) // 2)"),
        ("(6*a + 4*b + 3) // 10", "((3*a + 2*b + 1) // 5)"),
        ("(2*a + b) // 4", "((2*a + b) // 4)"),
        ("(2*a*b - 5) // 4 + 1", "((a*b - 3) // 2) + 1"),
    ],
)
def test_quotients_are_in_lowest_terms(text: str, size: str) -> None:
    assert dims.canonical(dims.parse(text)) == size


@given(EXPRESSIONS)
def test_canonical_sizes_keep_their_value(text: str) -> None:
    try:
        expected = eval(text, {}, SIZES)
    except ZeroDivisionError:
        return
    try:
        size = dims.canonical(dims.parse(text))
    except (ValueError, ZeroDivisionError):
        return
    assert dims.evaluate(size, SIZES) == expected
    assert dims.canonical(dims.parse(size)) == size
    if isinstance(size, str):
        assert eval(size, {"min": min, "max": max}, SIZES) == expected


@pytest.mark.parametrize("text", ["a.b", "f(a)", "a if b else 1", "__import__('os')", "1.5"])
def test_sizes_are_arithmetic_only(text: str) -> None:
    with pytest.raises(ValueError, match="size expression"):
        dims.parse(text)
