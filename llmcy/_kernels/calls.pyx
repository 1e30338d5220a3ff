"""Compiled calls made again: the same functions on the same arrays, one after the other."""

from cpython.object cimport PyObject_CallObject


cdef class Calls:
    """A list of calls and what each must return.

    Parameters
    ----------
    functions, arguments, results
        The functions, their positional arguments and their results, one entry a call.
    """

    cdef tuple functions
    cdef tuple arguments
    cdef tuple results

    def __init__(self, tuple functions, tuple arguments, tuple results):
        if not len(functions) == len(arguments) == len(results):
            raise ValueError("functions, arguments and results must have one entry a call")
        if not all(type(call) is tuple for call in arguments):
            raise TypeError("the arguments of a call must be a tuple")
        self.functions = functions
        self.arguments = arguments
        self.results = results

    def __len__(self):
        return len(self.functions)

    def run(self):
        """Make the calls in order; the index of the first with another result, or -1."""
        cdef Py_ssize_t i
        cdef object result, expected
        for i in range(len(self.functions)):
            result = PyObject_CallObject(self.functions[i], self.arguments[i])
            expected = self.results[i]
            if result is not expected and result != expected:
                return i
        return -1
