"""The backward pass: who contributes to which gradient, in which order.

Numerics contract, section 8.  Every adjoint is a buffer that starts at +0 and receives whole
contributions in arrival order.  The first contribution may *become* the buffer instead of being
added to zeros: kernels hand out contributions that hold no -0 (folds start at +0, elementwise
results are ``0 + value``), and for such numbers ``0 + x`` is ``x`` bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError
from llmcy.tape.tensor import Node, Tensor, _Zeros, check_finite

__all__ = ["BackwardPass", "CarriedGradients", "run_backward"]

Array = NDArray[Any]


class BackwardPass:
    """Takes the contributions of one pass.  Rules of operations call its methods.

    A rule that finds an operand unwanted (:meth:`wants`) can save itself the work.
    """

    __slots__ = ("_adjoints", "_carry", "_joined", "_op", "_uses")

    def __init__(self, carry: CarriedGradients | None) -> None:
        self._adjoints: dict[Node | Tensor, Array] = {}
        self._joined: set[Node | Tensor] = set()  # sums not known to be finite yet
        self._carry = carry
        self._uses: dict[Tensor, int] = {}
        self._op = ""

    def wants(self, operand: Tensor) -> bool:
        """Does this operand get a gradient?"""
        return operand._requires_grad

    def give(self, operand: Tensor, contribution: Array, *, op: str | None = None) -> None:
        """Send a whole contribution.

        ``contribution`` is a new array without -0 of the operand's shape and dtype, that the
        rule gives away.  ``op`` is the operation to name in messages, where one rule stands for
        several operations.
        """
        if op is not None:
            self._op = op
        if operand._requires_grad:
            check_finite(self._op, contribution, "NonFiniteGradient")
            self._receive(operand, contribution)

    def relay(self, operand: Tensor, d_out: Array, *, last: bool) -> None:
        """Send the adjoint that the rule was given on to an operand, as it is.

        ``last`` says that the rule is done with ``d_out``; otherwise a copy is taken.
        """
        if operand._requires_grad:
            self._receive(operand, d_out if last else kernels.copy(d_out))

    def _key(self, operand: Tensor) -> Node | Tensor:
        if operand._node is not None:
            return operand._node
        if self._carry is not None:
            raise AutodiffError(
                "NotCarried",
                f"{self._op}: its contribution to a leaf is no fold that the next piece of the "
                "batch could continue",
                op=self._op,
            )
        return operand

    def _receive(self, operand: Tensor, contribution: Array) -> None:
        key = self._key(operand)
        buffer = self._adjoints.get(key)
        if buffer is None:
            self._adjoints[key] = contribution
        else:
            kernels.accumulate(buffer, contribution)
            self._joined.add(key)

    def buffer(self, operand: Tensor) -> Array:
        """The operand's adjoint buffer itself, for a rule that adds its terms in place.

        Call :meth:`received` when the terms are in.  For an operand that wants no gradient it is
        scratch memory.
        """
        array = operand._value.array
        if not operand._requires_grad:
            return kernels.zeros(array.shape, array.dtype)
        key = self._key(operand)
        buffer = self._adjoints.get(key)
        if buffer is None:
            buffer = self._adjoints[key] = kernels.zeros(array.shape, array.dtype)
        return buffer

    def received(self, operand: Tensor) -> None:
        """The terms of this operation are in the operand's buffer: check them."""
        if operand._requires_grad:
            key = self._key(operand)
            check_finite(self._op, self._adjoints[key], "NonFiniteGradient")
            self._joined.discard(key)

    def fold(self, operand: Tensor, *, zeros: bool) -> tuple[Array, bool]:
        """The accumulator of a contribution that is a fold over the rows of a batch.

        Returns
        -------
        array, carried
            When ``carried``, the rule continues the fold from what the array holds.  Otherwise it
            is new: filled with +0 if ``zeros``, else arbitrary.  Finish with :meth:`folded`.
        """
        array = operand._value.array
        carried = self.carried(operand)
        if carried is not None:
            return carried, True
        make = kernels.zeros if zeros else kernels.empty
        return make(array.shape, array.dtype), False

    def carried(self, operand: Tensor) -> Array | None:
        """The accumulator of :meth:`fold` if an earlier piece of the batch has left one."""
        if self._carry is None or operand._node is not None or not operand._requires_grad:
            return None
        return self._carry._accumulator(operand, self._uses.get(operand, 0))

    def folded(self, operand: Tensor, fold: Array, *, op: str | None = None) -> None:
        """Hand the accumulator of :meth:`fold` back, finished for this pass; ``op`` as above."""
        if op is not None:
            self._op = op
        if not operand._requires_grad:
            return
        check_finite(self._op, fold, "NonFiniteGradient")
        if self._carry is not None and operand._node is None:
            use = self._uses.get(operand, 0)
            self._carry._store(operand, use, fold)
            self._uses[operand] = use + 1
        else:
            self._receive(operand, fold)

    # ------------------------------------------------------------------ running
    def run(self, root: Tensor, seed: Array, order: list[Node]) -> None:
        """Process the operations in reverse order; leaf adjoints are left behind."""
        key = root._node or root
        self._adjoints[key] = seed
        for node in reversed(order):
            self._op = node.op
            adjoint = self._adjoints.pop(node, None)
            if adjoint is None:  # every consumer contributed to other operands only
                continue
            if node in self._joined:
                check_finite(node.op, adjoint, "NonFiniteGradient")
                self._joined.discard(node)
            node.rule(node, adjoint, self)

    def leaf_adjoints(self) -> Iterator[tuple[Tensor, Array]]:
        """What the leaves received, checked."""
        for leaf, adjoint in self._adjoints.items():
            assert isinstance(leaf, Tensor)
            if leaf in self._joined:
                check_finite("backward", adjoint, "NonFiniteGradient")
            yield leaf, adjoint


class CarriedGradients:
    """Gradients of a batch that goes backward in consecutive pieces of whole rows.

    Every use of a parameter has one accumulator, whose fold each piece continues where the
    previous one stopped; the uses are joined once, at the end, so that the bits are those of one
    pass over the whole batch (contract, part two, section 2).  All pieces must run the same
    operations.

    Examples
    --------
    >>> carry = CarriedGradients()
    >>> for inputs, targets in pieces:
    ...     model.loss(inputs, targets, n_total=n_tokens).backward(carry=carry)
    >>> carry.commit()
    """

    __slots__ = ("_failed", "_folds")

    def __init__(self) -> None:
        self._folds: dict[Tensor, list[Array]] = {}
        self._failed = False

    def _accumulator(self, leaf: Tensor, use: int) -> Array | None:
        folds = self._folds.get(leaf)
        return folds[use] if folds is not None and use < len(folds) else None

    def _store(self, leaf: Tensor, use: int, fold: Array) -> None:
        folds = self._folds.setdefault(leaf, [])
        if use == len(folds):
            folds.append(fold)

    def commit(self) -> None:
        """Join the uses of every leaf and add the result to its gradient.

        Raises
        ------
        AutodiffError
            ``CarryFailed`` if a backward pass into these accumulators failed;
            ``NonFiniteGradient``.  No gradient has then changed.
        """
        if self._failed:
            raise AutodiffError(
                "CarryFailed", "a backward pass failed halfway; these gradients are incomplete"
            )
        self._failed = True  # the accumulators are about to be used up
        joined = []
        for leaf, folds in self._folds.items():
            adjoint = folds[0]
            for fold in folds[1:]:
                kernels.accumulate(adjoint, fold)
            check_finite("backward", adjoint, "NonFiniteGradient")
            joined.append((leaf, adjoint))
        _commit(joined)
        self._folds = {}
        self._failed = False


def run_backward(
    root: Tensor, seed: ArrayLike | None, retain_graph: bool, carry: CarriedGradients | None
) -> None:
    """Implementation of :meth:`llmcy.tape.Tensor.backward`."""
    if not root._requires_grad:
        raise AutodiffError(
            "NotRecorded",
            "backward: this tensor does not depend on a tensor that requires a gradient, or was "
            "computed without recording",
        )
    start = _seed(root, seed)
    order = _numbered(root)
    for node in order:
        for operand, recorded in zip(node.inputs, node.revisions, strict=True):
            current = operand._value.revision
            if current != recorded:
                raise AutodiffError(
                    "ValueRevisionChanged",
                    f"{node.op}: an operand was at revision {recorded} when this was recorded and "
                    f"is at revision {current} now",
                    op=node.op,
                    recorded=recorded,
                    current=current,
                )
    if carry is not None and carry._failed:
        raise AutodiffError("CarryFailed", "an earlier backward pass into this carry failed")
    contributions = BackwardPass(carry)
    try:
        contributions.run(root, start, order)
        _commit(contributions.leaf_adjoints())
    except BaseException:
        if carry is not None:
            carry._failed = True
        raise
    if not retain_graph:
        for node in order:
            node.release()


def _seed(root: Tensor, seed: ArrayLike | None) -> Array:
    shape, dtype = root.shape, root.dtype
    if seed is None:
        if root.size != 1:
            raise AutodiffError(
                "NonScalarBackward",
                f"backward: a tensor of shape {shape} needs a seed; only one with a single "
                "element has 1.0 as its natural one",
                shape=shape,
            )
        return np.ones(shape, dtype)
    given = np.array(seed, dtype, order="C")
    if given.shape != shape:
        raise AutodiffError(
            "SeedShapeMismatch",
            f"backward: the seed must have shape {shape}, got {given.shape}",
            expected=shape,
            actual=given.shape,
        )
    check_finite("seed", given, "NonFiniteGradient")
    return kernels.accumulate(kernels.zeros(shape, dtype), given)


def _numbered(root: Tensor) -> list[Node]:
    """Operations below ``root`` in depth-first order, each after its operands, each once."""
    order: list[Node] = []
    if root._node is None:
        return order
    seen = {root._node}
    path = [(root._node, iter(root._node.inputs))]
    while path:
        node, operands = path[-1]
        if node.released:
            raise AutodiffError(
                "GraphReleased",
                f"{node.op}: an earlier backward pass without retain_graph released this "
                "operation",
                op=node.op,
            )
        for operand in operands:
            below = operand._node
            if below is not None and below not in seen:
                seen.add(below)
                path.append((below, iter(below.inputs)))
                break
        else:
            order.append(node)
            path.pop()
    return order


def _commit(adjoints: Any) -> None:
    """Add adjoints to stored gradients: all of them, or none when a sum is not finite."""
    sums: list[tuple[Tensor, Array]] = []
    for leaf, adjoint in adjoints:
        stored = leaf._grad
        if stored is not None and not isinstance(stored, _Zeros):
            kernels.accumulate(adjoint, stored)
            check_finite("backward", adjoint, "NonFiniteGradient")
        sums.append((leaf, adjoint))
    for leaf, total in sums:
        leaf._grad = total
