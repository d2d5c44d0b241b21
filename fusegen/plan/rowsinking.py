"""Statements of elements move to the phase that needs them: between phases, each is an array in registers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fusegen.plan.rowdraft import Draft, DraftReduction, DraftScan, Value

Drafts = Sequence[Draft | DraftReduction | DraftScan]


def _operands(draft: Draft | DraftReduction | DraftScan) -> tuple[Value, ...]:
    return draft.operands if isinstance(draft, Draft) else (draft.operand,)


def sink(drafts: Drafts, count: int, results: Iterable[Value], along: set[str]) -> None:
    """Statements that only later phases of ``count`` need are of the first of these, where no more arrays are kept.

    ``1 - weight`` beside a sum over the row and read behind it: an array before, a statement of the last phase after.
    ``results`` are read in the last phase; ``along``: operands of the row's axis alone, which any phase may read.
    Others are on their way from the first phase on.
    """
    made = {id(draft.value): draft for draft in drafts if isinstance(draft, Draft)}
    last = {id(value) for value in results}

    def first_use(value: Value, but: set[int]) -> int:
        users = (d.value.phase for d in drafts if id(d.value) not in but and any(o is value for o in _operands(d)))
        return min(users, default=count - 1)

    def moved(draft: Draft, phase: int, taken: set[int]) -> set[int] | None:
        """``draft`` and what it takes along to ``phase``, by the values' identities; None if it has to stay."""
        taken = taken | {id(draft.value)}
        for operand in draft.operands:
            if not operand.element or operand.array:
                continue
            if operand.literal is not None:
                if operand.name not in along:
                    return None
                continue
            own = made.get(id(operand))
            if own is None or id(operand) in last or first_use(operand, taken) < phase:
                return None
            found = moved(own, phase, taken)
            if found is None:
                return None
            taken = found
        return taken

    for draft in reversed([d for d in drafts if isinstance(d, Draft) and d.value.array]):
        phase = first_use(draft.value, set())
        if not draft.value.element or phase <= draft.value.phase:
            continue
        for own in moved(draft, phase, set()) or ():
            made[own].value.phase = phase
        users = [d.value.phase for d in drafts if any(o is draft.value for o in _operands(d))]
        users += [count - 1] if id(draft.value) in last else []
        draft.value.array = any(use > draft.value.phase for use in users)
