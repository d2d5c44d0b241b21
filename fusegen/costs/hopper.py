"""Convolutions on sm_90a (``conv_sm90.cu.j2``), in TF32 or precise: which run, and their expected time."""

from __future__ import annotations

from itertools import product
from math import inf, prod
from typing import TypeAlias

from fusegen import dims, inference
from fusegen.costs.hopper_taps import Taps, Windows, covered
from fusegen.ir import ConvOp, Graph, Node
from fusegen.machines import Machine

_GRID = 1.5
"""Times over that the traffic of writing the input as a grid counts."""
STORE = 0.8
"""Likewise that of the results."""
_STORE_PHASES = 2.0
"""The same of phases of a transposed convolution, where products do not hide it (4 to 16 channels to 16 to 64, stride
2: 1.9 to 2.4)."""
_SCATTERED = 1.6
"""More of that for every further kind of tile along x: each stores some of the phases that lie side by side."""
_NARROW = 0.11
"""Loss of a product of 64 columns, which waits for its operand from shared memory, against one of 128."""
_COLUMNS = 128
LEAST_WIDE = 96
"""Channels of a group from which on blocks may be of another shape; fewer leave registers for a fourth warpgroup."""
_SHAPES = ((3, 128, 1.0), (2, 128, 1.15), (3, 64, 1.3), (2, 64, 1.5))
"""Warpgroups and columns of a block, and times over that a result takes: fewer hide less, and share less (the 3x3
convolutions of ResNets with 32 samples, H100: within a quarter)."""
_LAUNCHES = 3.5
_MAX_PARTS = 32
FILL = 24
"""Bytes a clock that reach a multiprocessor from L2."""
_CLOCK_FLOPS = 2 * 1024
"""Operations a clock of its tensor cores."""
_FOLD = 4e-13
"""Seconds of a result that is pooled instead of stored, beside its products."""
_LEAST_CHANNELS, _LEAST_INPUTS = 8, 3
"""Depth of one product, and input channels of a group from which on one in TF32 is not mostly zeros: taps of four go in
pairs. Not of a transposed convolution along fewer than three axes: what it stores takes longer here (4 channels to 32,
4x4, stride 2: 246 us against 188 of the portable kernel; 3 to 16, 3x3x3, stride 2: 343 against 510)."""
_HALVES = 2
"""Columns of a product for each result in full fp32: the weights' high and low halves."""
_SCALED = 1.3
"""Times over that the traffic counts of finding the scales of full fp32 and of writing the grid."""
_SCALED_LAUNCHES = 5.5
_TILE = 2.7e-7
"""Seconds of a multiprocessor that a tile of 64 base slots takes after its products in full fp32, which hide behind."""
_TILE_COLUMN = 1.05e-8
"""For each of its columns of results."""
_TILE_ROW = 4.5e-8
"""For each of its tap rows, where they do not fit a stage together."""
_VECTORS = (2, 4)
"""Elements that a load takes from shared memory, beside one."""
_ROW_ELEMENTS = 4
"""A tensor copy takes rows of a multiple of these."""
_ABREAST_COLUMNS, _ABREAST_REACH, _ABREAST_DEPTH = 32, 8, 144
"""Results of a base slot up to which, slots up to which, and terms for each tap along x from which on these taps are
columns of one product."""
_IN_HALVES, _SCALES = 0.95, 2
"""Least of the expected gains that fp16 is worth, and launches in the time of finding its scales (H200, 14
convolutions: 0.87 to 1.04 of what was measured before weights were read 16 at a time)."""
_IN_PLACE = 0.9
"""Least of the expected gains that a second kernel in the file is worth."""
SHARED_BYTES = 232_448
"""Of a block."""
_STAGING_BYTES = 24 << 10
_UNIT_BYTES, LEAST_RING = 16 << 10, 8
"""Of streamed weights: those that arrive together, about, and how many such are in shared memory at least."""
PATCH = (8, 8)
"""Rows and columns of results that are pooled where the input is read in place."""
_SLOTS = 64
"""Of a product."""
_STAGE_SLOTS = 1024
_BLOCK_SLOTS = 192
"""Slots that a stage holds, and base slots of a block."""
# Fitted to benchmarks/results/convolutions-h200.json: within a tenth on average, at most a third.


def window_refusal(conv: ConvOp, windows: Windows) -> str | None:
    """Why a kernel does not pool a convolution over ``windows``, or None."""
    if conv.transposed and (any(step != 1 for step in conv.stride) or prod(windows.parts) > 1):
        return "phases of a transposed convolution are computed apart"
    if prod(windows.parts) > _MAX_PARTS:
        return f"windows of {prod(windows.parts)} positions that fit no patch of results are too large"
    return None


def refusal(conv: ConvOp, channels: tuple[int, int], precise: bool) -> str | None:
    """Why a convolution of (input, output) ``channels`` has no kernel, or None."""
    inputs, outputs = (count // conv.groups for count in channels)
    if (inputs < _LEAST_INPUTS and not precise) or outputs < _LEAST_CHANNELS:
        return f"groups of {inputs} to {outputs} channels would mostly multiply zeros"
    if inputs < _LEAST_CHANNELS and not precise and conv.transposed and conv.rank < 3:
        return f"results of {inputs} channels, transposed, take longer to store than the portable kernel takes"
    return None


def in_place_refusal(axes: list[Taps], precise: bool) -> str | None:
    """Why a convolution along ``axes`` needs its input prepared, or None."""
    if precise:
        return "halves of full fp32 need a scale for every sample"
    step = axes[-1].in_step
    if step % 2 == 0 and step not in _VECTORS:
        return f"lanes that read every {step}th element of a row meet in banks"
    return None


def lane_vector(axes: list[Taps]) -> int:
    """Elements that a lane reads at once: those of two or four neighbouring taps, where these are so far apart."""
    return axes[-1].in_step if axes[-1].in_step in _VECTORS else 1


def in_place_patch(height: int, width: int, alone: bool = False) -> tuple[int, int]:
    """Rows and columns of a warpgroup's base positions: runs of 32 store whole sectors.

    ``alone``: rather in one row, where both compute as many.
    """
    shapes = ((1, 64), (2, 32)) if alone else ((2, 32), (1, 64))
    return min(shapes, key=lambda shape: covered(shape, height, width))


def in_place_box(tile: tuple[int, int, int], axes: list[Taps]) -> tuple[int, int, int]:
    """What a tile reads of a channel, from a multiple of 16 bytes on; a warp's lanes meet in no bank."""
    z, y, x = ((length - 1) * axis.in_step + axis.offsets[-1] + 1 for length, axis in zip(tile, axes, strict=True))
    x = -(-(x + axes[2].in_origin % 4) // 4) * 4
    sizes = product((z, z + 1), range(y, y + 8), range(x, x + 32, 4))
    return min((size for size in sizes if prod(size) % 32 in (8, 24)), key=prod)


def unit_taps(taps: int, columns: int, chunk: int = _LEAST_CHANNELS) -> int:
    """Of streamed weights, the taps that arrive together, where the products read their input in place."""
    fitting = [n for n in range(1, taps + 1) if taps % n == 0 and n * chunk * columns * 4 <= _UNIT_BYTES]
    return max(fitting, default=1)


def _fits(box: tuple[int, int, int], taps: int, inputs: int, columns: int) -> bool:
    """Whether shared memory holds two stages of two warpgroups' boxes, weights and results on their way out."""
    weights = min(taps * inputs, LEAST_RING * unit_taps(taps, columns) * _LEAST_CHANNELS) * columns * 4
    return 2 * 2 * _LEAST_CHANNELS * 4 * prod(box) + weights + _STAGING_BYTES <= SHARED_BYTES


def _waiting(read: int, positions: int, columns: int, taps: int) -> float:
    """Times over that the products of a tile take which waits for so many elements of every channel."""
    clocks = 2 * positions * columns * taps / _CLOCK_FLOPS  # for a channel of the input
    return max(1.0, 4 * read / clocks / FILL)


Lengths: TypeAlias = list[tuple[int, int]]
"""Of the input and of the output, by axis."""


def _axes(body: Graph, node: Node) -> tuple[list[Taps], Lengths]:
    """The taps along each axis, and its lengths at the traced sizes; positions of a line are one axis."""
    conv = node.op
    assert isinstance(conv, ConvOp)
    kernel = inference.kernel_size(body.node(node.inputs[1]).type)
    sizes, outputs = body.shape(node.inputs[0])[2:], body.shape(node.name)[2:]
    if inference.is_line(conv, kernel):
        return [Taps(1, 1, 0, 1, conv.transposed)], [(prod(sizes), prod(outputs))]
    structure = zip(kernel, conv.stride, conv.padding, conv.dilation, strict=True)
    return [Taps(*axis, conv.transposed) for axis in structure], list(zip(sizes, outputs, strict=True))


def residues(body: Graph, node: Node) -> int:
    """Grids that the input of a convolution is written as, one for every residue of its stride that some tap reads."""
    taps, _ = _axes(body, node)
    return prod(len(axis.shifts) for axis in taps)


def abreast(taps: list[Taps], inputs: int, outputs: int) -> int:
    """Taps along x that are columns of one product in TF32, which then reads its first operand once for all of them.

    Products of few columns wait for that operand from shared memory. What a tap makes of a slot belongs to the result
    of another one: the parts meet in shared memory, which longer sums are worth. ``inputs``, ``outputs``: of a group.
    """
    x, columns = taps[-1], -(-outputs // 8) * 8
    count = len(x.offsets)
    if any(axis.phases > 1 for axis in taps) or x.in_step > 1 or count < 3:
        return 1
    rows = prod(len(axis.offsets) for axis in taps[:-1])
    short = columns > _ABREAST_COLUMNS or x.reach > _ABREAST_REACH or rows * inputs < _ABREAST_DEPTH
    return 1 if short or columns * count > _COLUMNS else count


def in_block(phases: int) -> int:
    """Of so many phases along x, those that a block computes: it stages the results of these side by side.

    The last block may have some that are not there, which it computes for nothing.
    """
    if phases <= 2:
        return phases
    return 4 if -(-phases // 4) * 4 <= 1.5 * phases else 2


def _product_seconds(products: float, columns: int, machine: Machine) -> float:
    """The tensor cores' time for so many multiplications and additions, ``columns`` wide."""
    return products / machine.tensor_flops * (1 + _NARROW * (_COLUMNS / columns - 1))


def _tiled(body: Graph, node: Node) -> tuple[int, int, int]:
    """What a convolution whose input is prepared is cut into: base slots of all samples, columns of a group, groups."""
    conv = node.op
    assert isinstance(conv, ConvOp)
    x, w = (body.node(name) for name in node.inputs[:2])
    _, outputs = inference.group_channels(conv, x.type, w.type)
    taps, lengths = _axes(body, node)
    columns = -(-outputs // 8) * 8 * prod(axis.phases for axis in taps)
    return body.shape(x.name)[0] * prod(_pitches(taps, lengths)), columns, conv.groups


def blocks(body: Graph, node: Node) -> int:
    """Blocks' tiles of a convolution in TF32 whose input is prepared."""
    slots, columns, groups = _tiled(body, node)
    return -(-slots // _BLOCK_SLOTS) * -(-columns // _COLUMNS) * groups


def block_shape(slots: int, columns: int, groups: int, machine: Machine) -> tuple[int, int, float]:
    """(Warpgroups and columns of a block, how long the tiles of the busiest multiprocessor take), the fastest.

    ``slots``: base slots of all samples; ``columns``: results of each, of a group.
    """

    def busiest(shape: tuple[int, int, float]) -> float:
        warpgroups, width, loss = shape
        tiles = -(-slots // (64 * warpgroups)) * -(-columns // width) * groups
        return -(-tiles // machine.multiprocessors) * warpgroups * min(width, columns) * loss

    best = min(_SHAPES, key=busiest)
    return best[0], best[1], busiest(best)


def _of_any_shape(body: Graph, node: Node, machine: Machine) -> float:
    """As ``_last_turn``, with the blocks that suit the number of tiles."""
    conv = node.op
    assert isinstance(conv, ConvOp)
    x, w = (body.node(name) for name in node.inputs[:2])
    _, outputs = inference.group_channels(conv, x.type, w.type)
    taps, _ = _axes(body, node)
    if any(axis.phases > 1 for axis in taps) or outputs <= LEAST_WIDE:
        return _last_turn(body, node, machine)
    slots, columns, groups = _tiled(body, node)
    _, _, busiest = block_shape(slots, columns, groups, machine)
    warpgroups, width, _ = _SHAPES[0]
    found = busiest * machine.multiprocessors / (warpgroups * min(width, columns) * max(1, blocks(body, node)))
    if any(axis.in_step > 1 for axis in taps):  # what is read for every residue of the stride takes as long
        return (found + _last_turn(body, node, machine)) / 2
    return found


def _last_turn(body: Graph, node: Node, machine: Machine) -> float:
    """Times over that the tiles take since those of the last turn leave multiprocessors idle."""
    count = max(1, blocks(body, node))
    return -(-count // machine.multiprocessors) * machine.multiprocessors / count


def _pitches(taps: list[Taps], lengths: Lengths) -> list[int]:
    """Base slots along each axis of a sample; their product is those of a sample."""
    return [axis.pitch(*own) for axis, own in zip(taps, lengths, strict=True)]


def _depths(taps: list[Taps], inputs: int) -> tuple[int, float]:
    """Input channels of a slot, and those that products multiply for each tap: of four channels, taps go in pairs."""
    beside = [len(shifts) for shifts in taps[-1].shifts.values()]
    if inputs > 4 or min(beside) == 1:
        return (depth := -(-inputs // 8) * 8), depth
    return 4, 4 * sum(count + count % 2 for count in beside) / sum(beside)


def conv_seconds(
    body: Graph, node: Node, machine: Machine, precise: bool, plain: bool = False, in_halves: bool = False
) -> float:
    """Seconds at the traced sizes: the input is written once as a grid, then the products and what follows them.

    ``plain``: results are stored one by one, so that blocks may be of any shape; ``in_halves``: in fp16, not in TF32.
    """
    conv = node.op
    assert isinstance(conv, ConvOp)
    x, w = (body.node(name) for name in node.inputs[:2])
    inputs, outputs = inference.group_channels(conv, x.type, w.type)
    inputs = -(-inputs // 2) if in_halves else inputs  # words
    taps, lengths = _axes(body, node)
    pitches = _pitches(taps, lengths)
    slots = body.shape(x.name)[0] * prod(pitches)
    (depth, multiplied), width = _depths(taps, inputs), -(-outputs // 8) * 8
    halves = _HALVES if precise else 1
    beside = 1 if precise or in_halves else abreast(taps, inputs, outputs)
    columns = min(_COLUMNS, halves * width * beside * prod(axis.phases for axis in taps))
    along_x, together = taps[-1].phases, in_block(taps[-1].phases)
    kinds = -(-along_x // together)
    products = 2 * slots * prod(axis.products for axis in taps) * multiplied * halves * width * conv.groups
    products = products * kinds * together / along_x
    if beside > 1:
        products = products * _SLOTS / (_SLOTS - taps[-1].reach)
    grid = 4 * dims.numel(x.type.shape, body.sizes) + 4 * slots * depth * conv.groups * prod(
        len(axis.shifts) for axis in taps
    )
    tensor = _product_seconds(products, columns, machine)
    written = 4 * dims.numel(node.type.shape, body.sizes) / machine.bandwidth
    stored = (STORE + _SCATTERED * (kinds - 1)) * written
    if any(axis.phases > 1 for axis in taps):
        stored = max(stored, _STORE_PHASES * written - tensor)
    if precise:
        each = width * prod(axis.phases for axis in taps)
        tiles = _tile_seconds(slots * conv.groups, each, machine)
        tiles += slots * conv.groups / 64 * _rows_apart(taps, pitches) * _TILE_ROW / machine.multiprocessors
        return max(tensor, tiles, stored) + _scaled_seconds(body, x, grid, machine)
    tensor *= (_of_any_shape if plain else _last_turn)(body, node, machine)
    return tensor + _GRID * grid / machine.bandwidth + stored + (_LAUNCHES + _SCALES * in_halves) * machine.launch


def in_place_seconds(body: Graph, node: Node, machine: Machine) -> float:
    """Seconds of a convolution in TF32 that reads its input as it lies; infinite where it cannot, or is no faster."""
    conv = node.op
    assert isinstance(conv, ConvOp)
    x, w = (body.node(name) for name in node.inputs[:2])
    taps, lengths = _axes(body, node)
    if lengths[-1][0] % _ROW_ELEMENTS or in_place_refusal(taps, precise=False):
        return inf
    if any(axis.phases > 1 for axis in taps):
        return inf  # right, and slower: 1.08 against 0.74 ms for 64 channels to 64, stride 2
    inputs, outputs = inference.group_channels(conv, x.type, w.type)
    depth, width = (-(-count // 8) * 8 for count in (inputs, outputs))
    bases = [1, *(axis.bases(output) for axis, (_, output) in zip(taps, lengths, strict=True))]
    patch = in_place_patch(bases[-2], bases[-1])
    positions = body.shape(x.name)[0] * prod(bases[:-2]) * covered(patch, bases[-2], bases[-1])
    products = 2 * positions * prod(axis.products for axis in taps) * depth * width * conv.groups
    columns = min(_COLUMNS, width * prod(axis.phases for axis in taps))
    tensor = _product_seconds(products, columns, machine) * _last_turn(body, node, machine)
    read, stored = (4 * dims.numel(n.type.shape, body.sizes) / machine.bandwidth for n in (x, node))
    whole = [Taps(1, 1, 0, 1, conv.transposed)] * (3 - len(taps)) + taps
    box, of_all = in_place_box((1, *patch), whole), prod(axis.products for axis in taps)
    if any(axis.in_step > 1 for axis in taps) and not _fits(box, of_all, depth, columns):
        return inf
    # Boxes have elements that other taps' rows or other tiles have, too.
    work = max(tensor + read, tensor * _waiting(prod(box), prod(patch), columns, of_all))
    seconds = work + STORE * stored + _LAUNCHES * machine.launch
    return seconds if seconds < _IN_PLACE * conv_seconds(body, node, machine, False) else inf


def pays_in_halves(body: Graph, node: Node, windows: Windows | None, machine: Machine) -> bool:
    """Whether a convolution in fp16, scales included, is expected to be faster than in TF32, pooled over ``windows``
    or not."""
    if windows:
        prepared, in_place = _pooled_seconds(body, node, windows, machine, False)
        halves, _ = _pooled_seconds(body, node, windows, machine, False, in_halves=True)
        return halves < _IN_HALVES * min(prepared, in_place)
    others = min(conv_seconds(body, node, machine, False), in_place_seconds(body, node, machine))
    return conv_seconds(body, node, machine, False, in_halves=True) < _IN_HALVES * others


def reads_in_place(body: Graph, node: Node, machine: Machine) -> bool:
    """Whether a convolution in TF32 is expected to be faster without a preparation of its input."""
    return in_place_seconds(body, node, machine) < inf and not pays_in_halves(body, node, None, machine)


def _rows_apart(taps: list[Taps], pitches: list[int]) -> int:
    """Tap rows, where a stage does not hold all that a block reads of the input; else 0."""
    reached = 0
    for axis, pitch in zip(taps, pitches, strict=True):
        reached = reached * pitch + axis.reach
    if _BLOCK_SLOTS + reached <= _STAGE_SLOTS:
        return 0
    return prod(sum(map(len, axis.shifts.values())) for axis in taps[:-1]) * len(taps[-1].shifts)


def _tile_seconds(slots: int, columns: int, machine: Machine) -> float:
    """What follows the products of base slots, each with so many results, in full fp32."""
    tiles = slots / 64 * -(-columns * _HALVES // _COLUMNS)
    return (tiles * _TILE + slots / 64 * columns * _TILE_COLUMN) / machine.multiprocessors


def _scaled_seconds(body: Graph, x: Node, grid: float, machine: Machine) -> float:
    """A pass over the input finds the scales of full fp32, another one writes the grid."""
    traffic = grid + 4 * dims.numel(x.type.shape, body.sizes)
    return _SCALED * traffic / machine.bandwidth + _SCALED_LAUNCHES * machine.launch


def pooled_seconds(body: Graph, node: Node, windows: Windows, machine: Machine, precise: bool) -> float:
    """Seconds of a convolution whose results are pooled over ``windows`` before they are written."""
    ways = _pooled_seconds(body, node, windows, machine, precise)
    if not precise and pays_in_halves(body, node, windows, machine):
        ways = _pooled_seconds(body, node, windows, machine, False, in_halves=True)
    return min(ways)


def pools_in_place(body: Graph, node: Node, windows: Windows, machine: Machine) -> bool:
    """Whether such a convolution, in TF32, is expected to be faster without a preparation of its input."""
    prepared, in_place = _pooled_seconds(body, node, windows, machine, False)
    return in_place < _IN_PLACE * prepared and not pays_in_halves(body, node, windows, machine)


def _pooled_seconds(
    body: Graph, node: Node, windows: Windows, machine: Machine, precise: bool, in_halves: bool = False
) -> tuple[float, float]:
    """The same with its input prepared, and read as it lies; infinite where it cannot be."""
    conv = node.op
    assert isinstance(conv, ConvOp)
    x, w = (body.node(name) for name in node.inputs[:2])
    inputs, outputs = inference.group_channels(conv, x.type, w.type)
    inputs = -(-inputs // 2) if in_halves else inputs  # words
    absent = (1,) * (3 - conv.rank)
    kernel, stride, dilation = (absent + own for own in (inference.kernel_size(w.type), conv.stride, conv.dilation))
    padding = (0,) * len(absent) + conv.padding
    structure = zip(kernel, stride, padding, dilation, windows.parts, strict=True)
    taps = [Taps(k, s, p, d, conv.transposed, parts) for k, s, p, d, parts in structure]
    lengths = absent + body.shape(node.name)[2:]
    bases = [length // parts for length, parts in zip(lengths, windows.parts, strict=True)]
    batch, depth, width = body.shape(x.name)[0], *(-(-count // 8) * 8 for count in (inputs, outputs))
    halves = _HALVES if precise else 1
    patch, columns = windows.patch(bases[1], bases[2]), min(_COLUMNS, halves * width)
    stored, multiplied = (depth, depth) if precise else _depths(taps, inputs)
    results = batch * prod(windows.parts) * bases[0] * covered(patch, bases[1], bases[2])
    tensor = _product_seconds(2 * results * prod(kernel) * depth * halves * width * conv.groups, columns, machine)
    # For each tap along z a patch reads its rows and columns of every residue, the reach of the taps included.
    read = prod(size + own.reach for size, own in zip(patch, taps[1:], strict=True))
    read *= kernel[0] * prod(len(own.shifts) for own in taps[1:])
    prepared = tensor * multiplied / depth * _waiting(read, prod(patch), columns, prod(kernel))
    sizes = absent + body.shape(x.name)[2:]
    slots = batch * prod(own.pitch(*axis) for own, *axis in zip(taps, sizes, bases, strict=True))
    folds = _FOLD * results * outputs * conv.groups
    grids = prod(len({at for moved in own.moved for at, _ in moved.values()}) for own in taps)
    moved = 4 * dims.numel(x.type.shape, body.sizes)
    grid = moved + 4 * slots * stored * conv.groups * grids
    pooled = 4 * batch * outputs * conv.groups * prod(b // w for b, w in zip(bases, (1, *windows.within), strict=True))
    if precise:
        work = max(prepared, _tile_seconds(results * conv.groups, width, machine) + folds)
        return work + _scaled_seconds(body, x, grid, machine), inf
    more = folds + STORE * pooled / machine.bandwidth + (_LAUNCHES + _SCALES * in_halves) * machine.launch
    prepared += _GRID * grid / machine.bandwidth + more
    # A part would bring what the parts before it have brought.
    odd = sizes[-1] % _ROW_ELEMENTS or patch != PATCH or prod(windows.parts) > 1
    if odd or in_place_refusal(taps, precise) or any(axis.phases > 1 for axis in taps):
        return prepared, inf
    in_place = tensor * _waiting(prod(in_place_box((1, *PATCH), taps)), prod(PATCH), columns, prod(kernel))
    return prepared, in_place + moved / machine.bandwidth + more
