"""The order of gradient contributions, written down as slowly and plainly as possible.

A graph is a list of steps ``(op, operand indices)``; values are plain floats.  Numbering is the
textbook recursion, buffers are dictionaries.
"""

from __future__ import annotations


def evaluate(leaves: list[float], steps: list[tuple[str, tuple[int, ...]]]) -> list[float]:
    """Values of the leaves and of every step."""
    values = list(leaves)
    for op, operands in steps:
        chosen = [values[i] for i in operands]
        if op == "add":
            values.append(chosen[0] + chosen[1])
        elif op == "multiply":
            values.append(chosen[0] * chosen[1])
        else:
            values.append(chosen[0] * 3.7)
    return values


def gradients(leaves: list[float], steps: list[tuple[str, tuple[int, ...]]]) -> list[float]:
    """Gradient of the last step at every leaf."""
    values = evaluate(leaves, steps)
    n_leaves = len(leaves)
    emitted: list[int] = []

    def walk(index: int) -> None:
        if index in emitted:
            return
        if index >= n_leaves:
            for operand in steps[index - n_leaves][1]:
                walk(operand)
        emitted.append(index)

    root = len(values) - 1
    walk(root)
    adjoint = dict.fromkeys(range(len(values)), 0.0)
    adjoint[root] += 1.0
    for index in reversed(emitted):
        if index < n_leaves:
            continue
        op, operands = steps[index - n_leaves]
        upstream = adjoint[index]
        if op == "add":
            adjoint[operands[0]] += upstream
            adjoint[operands[1]] += upstream
        elif op == "multiply":
            adjoint[operands[0]] += upstream * values[operands[1]]
            adjoint[operands[1]] += upstream * values[operands[0]]
        else:
            adjoint[operands[0]] += upstream * 3.7
    return [adjoint[i] for i in range(n_leaves)]
