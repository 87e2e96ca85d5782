"""Read a table of rows that grows, by DLPack, in this process.

Arguments: the C library of testdata/shared, a device, and the libraries that read, such as numpy,torch,cupy,jax.
"""

import ctypes
import gc
import importlib
import sys
import time

table = ctypes.CDLL(sys.argv[1])
device, libraries = sys.argv[2], sys.argv[3].split(",")
table.table_export.restype = ctypes.c_void_p
table.table_export.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_int64]
table.table_append.argtypes = [ctypes.c_int64]
table.table_first.restype = ctypes.c_float
table.table_first.argtypes = [ctypes.c_int64]
new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
WIDTH, NAMES = 8, (b"dltensor_versioned", b"dltensor")


class Rows:
    """The first n rows, as the array API standard has it."""

    def __init__(self, n, versioned=True):
        self.n, self.versioned = n, versioned

    def __dlpack_device__(self):
        return (2, 0) if device.startswith("cuda") else (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        unversioned = not self.versioned or max_version is None
        p = table.table_export(self.n, unversioned, stream or 0)
        if not p:
            raise BufferError("no export")
        return new_capsule(p, NAMES[unversioned], None)


def take(library, rows):
    module = importlib.import_module(library)
    return (module.dlpack if library == "jax" else module).from_dlpack(rows)


def address(library, a):
    return {
        "torch": lambda: a.data_ptr(),
        "numpy": lambda: a.ctypes.data,
        "cupy": lambda: a.data.ptr,
        "jax": lambda: a.unsafe_buffer_pointer(),
    }[library]()


def released_by_a_stream(torch, n):
    """Calls deleters in the callbacks of a stream, as a library in C does, while the table grows."""
    cuda, stream = ctypes.CDLL("libcuda.so.1"), torch.cuda.Stream()
    cuda.cuLaunchHostFunc.argtypes = [ctypes.c_void_p] * 3
    for _ in range(1000):
        p = table.table_export(n, 0, stream.cuda_stream)
        deleter = ctypes.cast(p + 16, ctypes.POINTER(ctypes.c_void_p))[0]
        assert cuda.cuLaunchHostFunc(stream.cuda_stream, deleter, p) == 0
        assert table.table_append(1000) == 0
        n += 1000
    stream.synchronize()
    return n


assert table.table_open(device.encode()) == 0
kept, addresses, n = [], set(), 0
for step in (1000, 4000, 16000, 64000, 256000):
    assert table.table_append(step) == 0
    n += step
    for library in libraries:
        for versioned in (True, False):
            a = take(library, Rows(n, versioned))
            assert tuple(a.shape) == (n, WIDTH), a.shape
            assert float(a[n - 1, WIDTH - 1]) == n * WIDTH - 1
            assert float(a[n // 2, 3]) == n // 2 * WIDTH + 3
            addresses.add(address(library, a))
            kept.append(a)
assert len(addresses) == 1, addresses
for library in libraries:
    if library in ("torch", "cupy"):  # NumPy's and JAX's are read-only
        a = take(library, Rows(n))
        a[7, 0] = -5.0
        if library == "torch" and device.startswith("cuda"):
            importlib.import_module(library).cuda.synchronize()
        elif library == "cupy":
            importlib.import_module(library).cuda.Device().synchronize()
        assert table.table_first(7) == -5.0, library
        a[7, 0] = 7.0 * WIDTH
if "torch" in libraries and device.startswith("cuda"):
    n = released_by_a_stream(importlib.import_module("torch"), n)
assert table.table_close() != 0, "closed below the tensors"
del a
kept.clear()
gc.collect()
for _ in range(200):  # the holds are dropped soon after the deleters
    if table.table_close() == 0:
        break
    time.sleep(0.05)
else:
    raise SystemExit("still held")
print("followed", n, "rows at", hex(addresses.pop()))
