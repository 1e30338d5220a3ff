"""Look into a recorded graph: the result and the adjoint of every operation, in order."""

from __future__ import annotations

import numpy as np

from llmcy.tape import Tensor
from llmcy.tape.backward import _numbered
from llmcy.tape.tensor import Node


class Trace:
    """Operations below a tensor in the contract's numbering.

    Attributes
    ----------
    ops
        Their names.
    results
        Their values; the root's is last.
    adjoints
        What had arrived when the backward pass processed each (filled by that pass).
    saved
        What each kept for its gradient.
    """

    def __init__(self, root: Tensor) -> None:
        nodes = _numbered(root)
        made: dict[Node, np.ndarray] = {root._node: root.data}
        for node in nodes:
            for operand in node.inputs:
                if operand._node is not None:
                    made[operand._node] = operand.data
        self.ops = [node.op for node in nodes]
        self.results = [made[node] for node in nodes]
        self.saved = [node.saved for node in nodes]
        self.adjoints: list[np.ndarray | None] = [None] * len(nodes)
        for index, node in enumerate(nodes):
            self._listen(index, node)

    def _listen(self, index: int, node: Node) -> None:
        rule = node.rule

        def listening(node, d_out, to):
            self.adjoints[index] = d_out.copy()
            rule(node, d_out, to)

        node.rule = listening
