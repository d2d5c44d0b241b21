"""Convolutions in TF32 on sm_90a (``conv_sm90.cu.j2``): their taps as shifts, and their expected time.

Every axis is brought to one form. The input lies in slots, a grid per residue of the stride; bases
count output positions (of every phase of a transposed convolution); tap and phase together say
which slot, base + shift, a base reads:

- convolution: output b, tap k. Input stride * b + k * dilation - padding is slot b + shift of residue r,
  where k * dilation = stride * shift + r.
- transposed: output stride * b + phase (up to an offset) gets the taps with k * dilation = phase
  (mod stride); they read inputs b, b - 1, ..., the more the larger k.
"""

from __future__ import annotations

from math import prod

from fusegen import dims, ops
from fusegen.ir import ConvOp, Graph, Node
from fusegen.machines import Machine

_GRID = 1.5
"""Times over that the traffic of writing the input as a grid counts."""
_STORE = 0.8
"""Likewise that of the results."""
_NARROW = 0.11
"""Loss of a product of 64 columns, which waits for its operand from shared memory, against one of 128."""
_COLUMNS = 128
_LAUNCHES = 3.5
_LEAST_CHANNELS = 8
"""Depth of one product."""
# Fitted to benchmarks/results/convolutions-h200.json: within a tenth on average, at most a third.


class Taps:
    """The taps of one axis as (residue, shift); ``idle``: some phase lacks a shift that others have."""

    def __init__(self, kernel: int, stride: int, padding: int, dilation: int, transposed: bool):
        reach = (kernel - 1) * dilation // stride
        self.reach = reach
        if transposed:
            first = padding // stride  # base 0 is this many strides into the padded output
            self.in_step, self.in_origin = 1, first - reach
            self.out_step, self.out_origin = stride, first * stride - padding
            self.lead = min(max(reach - first, 0), reach)
            shifts = {reach - k * dilation // stride for k in range(kernel)}
            self.shifts = {0: tuple(sorted(shifts))}
            self.phases = stride
            self.idle = len(shifts) * stride > kernel
        else:
            self.in_step, self.in_origin = stride, -padding
            self.out_step, self.out_origin = 1, 0
            taps = {divmod(k * dilation, stride) for k in range(kernel)}
            residues = sorted({residue for _, residue in taps})
            self.shifts = {r: tuple(sorted(shift for shift, residue in taps if residue == r)) for r in residues}
            self.lead = min(max(-(-(padding - residues[-1]) // stride), 0), reach)
            self.phases = 1
            self.idle = False

    @property
    def products(self) -> int:
        """Products of a base slot, those with the weights of taps that a phase lacks included."""
        return self.phases * sum(map(len, self.shifts.values()))

    def pitch(self, size: int, output: int) -> int:
        """Slots of an axis with these lengths of input and output; the launcher computes the same."""
        bases = (output - 1 - self.out_origin) // self.out_step + 1
        filled = (size - 1 - self.in_origin) // self.in_step + 1
        trail = bases + self.reach - filled
        return bases + self.reach - max(0, min(trail, self.lead))


def refusal(conv: ConvOp, channels: tuple[int, int]) -> str | None:
    """Why a convolution of (input, output) ``channels`` has no kernel, or None."""
    inputs, outputs = (count // conv.groups for count in channels)
    if inputs < _LEAST_CHANNELS or outputs < _LEAST_CHANNELS:
        return f"groups of fewer than {_LEAST_CHANNELS} channels would mostly multiply zeros"
    return None


def conv_seconds(body: Graph, node: Node, machine: Machine) -> float:
    """Seconds at the traced sizes: the input is written once as a grid, then the products and what follows them."""
    conv = node.op
    assert isinstance(conv, ConvOp)
    x, w = (body.node(name) for name in node.inputs[:2])
    inputs, outputs = (count // conv.groups for count in ops.conv_channels(conv, x.type, w.type))
    structure = zip(ops.kernel_size(w.type), conv.stride, conv.padding, conv.dilation, strict=True)
    taps = [Taps(*axis, conv.transposed) for axis in structure]
    lengths = zip(body.shape(x.name)[2:], body.shape(node.name)[2:], strict=True)
    slots = body.shape(x.name)[0] * prod(axis.pitch(*own) for axis, own in zip(taps, lengths, strict=True))
    depth, width = (-(-count // 8) * 8 for count in (inputs, outputs))
    columns = min(_COLUMNS, width * prod(axis.phases for axis in taps))
    products = 2 * slots * prod(axis.products for axis in taps) * depth * width * conv.groups
    grid = 4 * dims.numel(x.type.shape, body.sizes) + 4 * slots * depth * conv.groups * prod(
        len(axis.shifts) for axis in taps
    )
    results = 4 * dims.numel(node.type.shape, body.sizes)
    tensor = products / machine.tensor_flops * (1 + _NARROW * (_COLUMNS / columns - 1))
    return tensor + (_GRID * grid + _STORE * results) / machine.bandwidth + _LAUNCHES * machine.launch
