"""Access to a tensor's numbers: revisions, read leases, write leases."""

import numpy as np
import pytest

from llmcy import ops
from llmcy.errors import AutodiffError, DTypeError, ShapeError
from llmcy.tape import Tensor


def kind(caught) -> str:
    return caught.value.kind


def test_data_is_one_read_only_view():
    x = Tensor([1.0, 2.0])
    assert x.data is x.data
    with pytest.raises(ValueError, match="read-only"):
        x.data[0] = 5.0


def test_assign_replaces_the_numbers_in_the_same_memory():
    x = Tensor([1.0, 2.0], requires_grad=True)
    address = x.data.ctypes.data
    seen = x.data
    x.assign(np.array([3.0, 4.0]))
    assert x.data.ctypes.data == address
    assert seen.tolist() == [3.0, 4.0]
    assert x.revision == 1
    x.assign(np.array([3.0, 4.0]))
    assert x.revision == 2


def test_assign_checks_shape_and_dtype():
    x = Tensor([1.0, 2.0])
    with pytest.raises(ShapeError):
        x.assign(np.zeros(3))
    with pytest.raises(DTypeError):
        x.assign(np.zeros(2, np.float32))
    assert (x.revision, x.data.tolist()) == (0, [1.0, 2.0])


def test_assign_takes_any_memory_order():
    x = Tensor(np.zeros((2, 3)))
    x.assign(np.arange(6.0).reshape(3, 2).T)
    assert x.data.tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


@pytest.mark.feature("B33")
def test_a_borrowed_value_cannot_be_written():
    x = Tensor([1.0, 2.0])
    with x.borrow() as data:
        second = x.borrow()
        assert data.tolist() == [1.0, 2.0]
        for attempt in (lambda: x.assign(np.zeros(2)), x.write, lambda: x.detach().write()):
            with pytest.raises(AutodiffError) as caught:
                attempt()
            assert (kind(caught), caught.value.borrows) == ("ParameterValueBorrowed", 2)
        second.release()
    assert (x.revision, x.data.tolist()) == (0, [1.0, 2.0])
    x.assign(np.zeros(2))
    assert x.revision == 1


def test_a_lease_ends_with_its_scope_by_an_exception_or_with_its_last_reference():
    x = Tensor([1.0])
    with pytest.raises(KeyError), x.borrow():
        raise KeyError
    x.assign(np.array([2.0]))
    lease = x.borrow()
    assert lease.revision == 1
    assert lease.data.tolist() == [2.0]
    del lease
    x.assign(np.array([3.0]))
    released = x.borrow()
    released.release()
    released.release()
    with pytest.raises(AutodiffError) as caught:
        _ = released.data
    assert kind(caught) == "LeaseReleased"
    x.assign(np.array([4.0]))


def test_write_leases_exclude_everybody():
    x = Tensor([1.0])
    with x.write() as lease:
        with pytest.raises(AutodiffError) as caught:
            x.borrow()
        assert kind(caught) == "ValueBeingWritten"
        with pytest.raises(AutodiffError) as caught:
            x.write()
        assert kind(caught) == "ParameterValueBorrowed"
        lease.array[0] = 5.0
    assert (x.revision, x.item()) == (1, 5.0)
    with pytest.raises(AutodiffError) as caught:
        _ = lease.array
    assert kind(caught) == "LeaseReleased"


def test_a_write_lease_that_was_not_used_leaves_no_trace():
    x = Tensor([1.0])
    with x.write():
        pass
    assert x.revision == 0

    def fail_halfway():
        with x.write() as lease:
            lease.array[0] = 2.0
            raise KeyError

    with pytest.raises(KeyError):
        fail_halfway()
    assert x.revision == 1  # the numbers may have changed


def test_results_of_operations_cannot_be_written():
    x = Tensor([1.0], requires_grad=True)
    for result in (ops.scale(x, 2.0), ops.scale(x, 2.0).detach(), ops.reshape(x, (1, 1))):
        with pytest.raises(AutodiffError) as caught:
            result.assign(np.zeros(result.shape))
        assert kind(caught) == "NotALeaf"
