"""The taps of a convolution along one axis as shifts, and windows of its results, as ``conv_sm90.cu.j2`` has them.

Every axis is brought to one form. The input lies in slots, a grid per residue of the stride; bases
count output positions (of every phase of a transposed convolution); tap and phase together say
which slot, base + shift, a base reads:

- convolution: output b, tap k. Input stride * b + k * dilation - padding is slot b + shift of residue r,
  where k * dilation = stride * shift + r.
- transposed: output stride * b + phase (up to an offset) gets the taps with k * dilation = phase
  (mod stride); they read inputs b, b - 1, ..., the more the larger k.
- convolution by parts: base b stands for a window of ``parts`` outputs, part p of it for output
  parts * b + p. That is a convolution of stride * parts, whose taps start p * stride further: the taps of
  a residue read another residue, and all of them may read the slot after.
"""

from __future__ import annotations

from dataclasses import dataclass


class Taps:
    """The taps of one axis as (residue, shift), those of part 0; ``idle``: some phase lacks a shift that others have.

    ``moved``: for each part, what residue the taps of a residue read, and how many slots further.
    """

    def __init__(self, kernel: int, stride: int, padding: int, dilation: int, transposed: bool, parts: int = 1):
        step = stride * parts
        self.moved: tuple[dict[int, tuple[int, int]], ...] = ({0: (0, 0)},)
        reach = ((kernel - 1) * dilation + (parts - 1) * stride) // step
        self.reach, self.step = reach, step
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
            self.in_step, self.in_origin = step, -padding
            self.out_step, self.out_origin = 1, 0
            taps = {divmod(k * dilation, step) for k in range(kernel)}
            residues = sorted({residue for _, residue in taps})
            self.shifts = {r: tuple(sorted(shift for shift, residue in taps if residue == r)) for r in residues}
            self.moved = tuple(
                {r: ((r + part * stride) % step, (r + part * stride) // step) for r in residues}
                for part in range(parts)
            )
            last = max(residue for own in self.moved for residue, _ in own.values())
            self.lead = min(max(-(-(padding - last) // step), 0), reach)
            self.phases = 1
            self.idle = False

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where taps read, in input positions from the first that a base slot reads."""
        return tuple(sorted(shift * self.in_step + r for r, shifts in self.shifts.items() for shift in shifts))

    @property
    def products(self) -> int:
        """Products of a base slot, those with the weights of taps that a phase lacks included."""
        return self.phases * sum(map(len, self.shifts.values()))

    def bases(self, output: int) -> int:
        """Base positions of so many outputs."""
        return (output - 1 - self.out_origin) // self.out_step + 1

    def pitch(self, size: int, output: int) -> int:
        """Slots of an axis with these lengths of input and output; the launcher computes the same."""
        bases = self.bases(output)
        filled = (size - 1 - self.in_origin) // self.in_step + 1
        trail = bases + self.reach - filled
        return bases + self.reach - max(0, min(trail, self.lead))


@dataclass(frozen=True)
class Windows:
    """The windows that a kernel reduces its results over, along z, y, x.

    ``within``: those that lie in a patch of results; ``parts``: those whose positions are computed in turn.
    """

    within: tuple[int, int]
    """Along y and x."""
    parts: tuple[int, int, int]

    @classmethod
    def of(cls, kernel: tuple[int, ...]) -> Windows:
        z, y, x = [*[1] * (3 - len(kernel)), *kernel]
        inner = tuple(size if size in (1, 2, 4, 8) else 1 for size in (y, x))
        return cls((inner[0], inner[1]), (z, y // inner[0], x // inner[1]))

    def patch(self, height: int, width: int) -> tuple[int, int]:
        """Rows and columns of the 64 results of a product: the one that wastes least, at this size of the result."""
        shapes = [(8, 8), (1, 64)] if self.within[0] == 1 else [(8, 8)]
        return min(shapes, key=lambda shape: covered(shape, height, width))


def covered(shape: tuple[int, int], height: int, width: int) -> int:
    """Results that patches of ``shape`` compute."""
    rows, columns = shape
    return -(-height // rows) * rows * -(-width // columns) * columns
