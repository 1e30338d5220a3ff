"""Recording and the scopes that switch it off: nesting, errors, threads, generators, tasks."""

import asyncio
import contextlib
import threading

import pytest

from llmcy import ops
from llmcy.errors import AutodiffError
from llmcy.tape import Tensor, is_recording, no_grad


def leaf() -> Tensor:
    return Tensor([1.0, -2.0], requires_grad=True)


def test_operations_on_constants_are_not_recorded():
    assert ops.scale(Tensor([1.0]), 2.0).op is None


@pytest.mark.feature("B12")
def test_no_grad_suppresses_recording_as_operations_happen():
    x = leaf()
    with no_grad():
        y = ops.scale(x, 3.0)
    assert y.op is None
    assert y.is_leaf
    assert not y.requires_grad
    assert ops.scale(y, 2.0).op is None  # no detach needed afterwards
    z = ops.add(x, y)
    assert z.op == "add"
    z.backward(seed=[1.0, 1.0])
    assert x.grad.tolist() == [1.0, 1.0]  # nothing flowed through y
    with pytest.raises(AutodiffError) as caught:
        y.backward(seed=[1.0, 1.0])
    assert caught.value.kind == "NotRecorded"


def test_no_grad_does_not_change_values():
    x = Tensor([0.1, 0.7, -3.0], requires_grad=True)
    recorded = ops.sum(ops.multiply(x, x))
    with no_grad():
        plain = ops.sum(ops.multiply(x, x))
    assert plain.data.tobytes() == recorded.data.tobytes()


@pytest.mark.feature("B13")
def test_no_grad_nests():
    with no_grad():
        with no_grad():
            assert not is_recording()
        assert not is_recording()
        assert ops.scale(leaf(), 2.0).op is None
    assert is_recording()


def test_one_scope_object_can_be_entered_again_inside_itself():
    scope = no_grad()
    with scope:
        with scope:
            assert not is_recording()
        assert not is_recording()
    assert is_recording()


@pytest.mark.feature("B14")
def test_no_grad_ends_with_an_exception():
    with pytest.raises(KeyError), no_grad(), no_grad():
        raise KeyError
    assert is_recording()
    assert ops.scale(leaf(), 2.0).op == "scale"


@pytest.mark.feature("B15")
def test_no_grad_belongs_to_one_thread():
    inside = threading.Barrier(2, timeout=60)
    seen = {}

    def other():
        inside.wait()  # the main thread is in its scope now
        seen["other"] = ops.scale(leaf(), 2.0).op
        with no_grad():
            seen["own scope"] = ops.scale(leaf(), 2.0).op
        inside.wait()

    thread = threading.Thread(target=other)
    thread.start()
    with no_grad():
        inside.wait()
        seen["main"] = ops.scale(leaf(), 2.0).op
        inside.wait()
    thread.join()
    assert seen == {"other": "scale", "own scope": None, "main": None}


@pytest.mark.feature("B15")
def test_a_thread_started_inside_a_scope_records_even_with_the_same_context():
    import contextvars

    seen = []
    with no_grad():
        context = contextvars.copy_context()
        thread = threading.Thread(target=lambda: context.run(lambda: seen.append(is_recording())))
        thread.start()
        thread.join()
        assert not is_recording()
    assert seen == [True]


@pytest.mark.feature("B16")
def test_finite_checks_still_run_in_no_grad():
    x = Tensor([1.0, 1e200])
    with no_grad(), pytest.raises(AutodiffError) as caught:
        ops.multiply(x, x)
    error = caught.value
    assert (error.kind, error.op, error.index) == ("NonFiniteValue", "multiply", 1)
    assert error.value == float("inf")


# ------------------------------------------------------------------ generators
@pytest.mark.feature("B14", "B15")
def test_a_generator_does_not_switch_recording_off_for_its_consumer():
    def values():
        assert is_recording()
        with no_grad():
            for i in range(3):
                assert not is_recording()
                yield i
                assert not is_recording()
        assert is_recording()
        yield 3

    seen = []
    for i in values():
        assert is_recording()
        seen.append(i)
    assert seen == [0, 1, 2, 3]
    assert is_recording()


def test_functions_called_by_a_generator_are_inside_its_scope():
    def inner():
        return is_recording()

    def delegate():
        yield inner()

    def values():
        with no_grad():
            yield inner()
            yield from delegate()

    assert list(values()) == [False, False]


def test_interleaved_and_abandoned_generators_leave_no_trace():
    def values():
        with no_grad():
            yield is_recording()
            yield is_recording()

    first, second = values(), values()
    assert not next(first)
    with no_grad():
        assert not next(second)
        first.close()
        assert not is_recording()  # ending the generator's scope does not end this one
    assert is_recording()
    assert not next(second)
    del second
    assert is_recording()

    def fails():
        with no_grad():
            yield 1
            raise KeyError

    broken = fails()
    next(broken)
    with pytest.raises(KeyError):
        next(broken)
    assert is_recording()


def test_a_generator_that_contextlib_drives_covers_the_body():
    @contextlib.contextmanager
    def evaluating():
        with no_grad():
            yield

    with evaluating():
        assert not is_recording()
    assert is_recording()
    with pytest.raises(KeyError), evaluating():
        raise KeyError
    assert is_recording()


def test_an_exit_stack_can_hold_a_scope():
    with contextlib.ExitStack() as stack:
        stack.enter_context(no_grad())
        assert not is_recording()
    assert is_recording()


# ------------------------------------------------------------------ decorators
def test_no_grad_decorates_functions_generators_and_coroutines():
    @no_grad()
    def plain(x, *, y):
        """Doc."""
        return is_recording(), x, y

    @no_grad()
    def generator():
        got = yield is_recording()
        yield got
        return is_recording()

    @no_grad()
    async def coroutine():
        await asyncio.sleep(0)
        return is_recording()

    assert plain(1, y=2) == (False, 1, 2)
    assert plain.__doc__ == "Doc."
    running = generator()
    assert next(running) is False
    assert is_recording()
    assert running.send("sent") == "sent"
    with pytest.raises(StopIteration) as caught:
        next(running)
    assert caught.value.value is False
    assert asyncio.run(coroutine()) is False
    assert is_recording()


def test_asynchronous_generator_functions_are_refused_as_decorated():
    async def values():
        yield 1

    with pytest.raises(TypeError, match="asynchronous generator"):
        no_grad()(values)


# ------------------------------------------------------------------ asyncio
@pytest.mark.feature("B15")
def test_no_grad_belongs_to_one_task():
    async def main():
        entered, looked = asyncio.Event(), asyncio.Event()
        seen = {}

        async def silent():
            with no_grad():
                entered.set()
                await looked.wait()
                seen["silent"] = is_recording()

        async def recorder():
            await entered.wait()
            seen["recorder"] = ops.scale(leaf(), 2.0).op
            looked.set()

        await asyncio.gather(silent(), recorder())
        seen["main"] = is_recording()
        return seen

    assert asyncio.run(main()) == {"recorder": "scale", "silent": False, "main": True}


def test_awaited_work_is_inside_the_scope_of_its_task():
    async def work():
        await asyncio.sleep(0)
        return is_recording()

    async def main():
        with no_grad():
            inside = await work()
            gathered = await asyncio.gather(work(), work())
        return inside, gathered, await work()

    assert asyncio.run(main()) == (False, [False, False], True)


def test_an_asynchronous_generator_does_not_switch_recording_off_for_its_consumer():
    async def values():
        with no_grad():
            for _ in range(2):
                await asyncio.sleep(0)
                yield is_recording()

    async def main():
        seen = []
        async for inside in values():
            seen.append((inside, is_recording()))
        return seen

    assert asyncio.run(main()) == [(False, True), (False, True)]


def test_an_asynchronous_context_manager_covers_the_body():
    @contextlib.asynccontextmanager
    async def evaluating():
        with no_grad():
            yield

    async def main():
        async with evaluating():
            await asyncio.sleep(0)
            inside = is_recording()
        return inside, is_recording()

    assert asyncio.run(main()) == (False, True)
