"""A consumer of the DLPack capsules of examples/python/cuvmm_reader.py, which reads the structs itself.

Arguments: a part of the test, the owner's socket, and the name of the object.
"""

import ctypes
import gc
import os
import sys
import threading

sys.path.insert(0, "../examples/python")
import cuvmm_reader as c  # noqa: E402

ROWS, PITCH = 5, 32  # rows of 2 by 3 float32, and padding


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # it is called without the GIL


class Versioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", DELETER),
        ("flags", ctypes.c_uint64), ("tensor", Tensor),
    ]  # fmt: skip


class Unversioned(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]


api = ctypes.pythonapi
api.PyCapsule_GetPointer.restype = ctypes.c_void_p
api.PyCapsule_GetPointer.argtypes = api.PyCapsule_IsValid.argtypes = api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Taken:
    """What a consumer has of a capsule."""

    def __init__(self, capsule, versioned=True):
        name = b"dltensor_versioned" if versioned else b"dltensor"
        self.at = api.PyCapsule_GetPointer(capsule, name)
        self.used = b"used_" + name  # a capsule does not copy its name
        assert api.PyCapsule_SetName(capsule, self.used) == 0
        self.managed = (Versioned if versioned else Unversioned).from_address(self.at)
        self.tensor = self.managed.tensor
        n = self.tensor.ndim
        self.shape, self.strides = self.tensor.shape[:n], self.tensor.strides[:n]

    def value(self, row, i, j):
        at = row * self.strides[0] + i * self.strides[1] + j * self.strides[2]
        return ctypes.c_float.from_address(self.tensor.data + 4 * at).value

    def delete(self):
        self.managed.deleter(self.at)


def refused(error, call):
    try:
        call()
    except error as e:
        return str(e)
    raise AssertionError("not refused")


def take(r, **how):
    return Taken(r.__dlpack__(max_version=(1, 0), **how))


def fields(r):
    device = r.__dlpack_device__()
    assert device == (1, 0)
    for how in {}, {"copy": False}, {"dl_device": device}, {"stream": None}, {"stream": -1}:
        t = take(r, **how)
        x = t.tensor
        assert (t.managed.major, t.managed.minor, t.managed.flags) == (1, 0, 1), t.managed.flags
        assert (x.data, x.device_type, x.device_id, x.byte_offset) == (r.address, 1, 0, 0)
        assert (x.code, x.bits, x.lanes) == (2, 32, 1)
        assert (t.shape, t.strides) == ([ROWS, 2, 3], [8, 3, 1]), (t.shape, t.strides)
        assert t.value(4, 1, 2) == 4 * 8 + 5
        t.delete()
    for asked in (1, 3), (2, 0):  # of later versions
        t = Taken(r.__dlpack__(max_version=asked))
        assert (t.managed.major, t.managed.minor) == (1, 0)
        t.delete()
    for stream in 0, 1, 2, -2, 77:
        refused(ValueError, lambda: take(r, stream=stream))
    for device in (2, 0), (1, 1), (3, 0):
        assert "device" in refused(BufferError, lambda: take(r, dl_device=device))
    for version in None, (0, 8):
        for copy in None, False:
            assert "read-only" in refused(BufferError, lambda: r.__dlpack__(max_version=version, copy=copy))
    assert not r._holds(0) and not r.exports


def copies(r):
    for t in Taken(r.__dlpack__(copy=True), False), take(r, copy=True):
        assert t.tensor.data != r.address and t.tensor.data % 256 == 0
        assert (t.shape, t.strides) == ([ROWS, 2, 3], [8, 3, 1]) and t.value(4, 1, 2) == 4 * 8 + 5
        ctypes.c_float.from_address(t.tensor.data).value = 9.0  # it is writable
        if isinstance(t.managed, Versioned):
            assert t.managed.flags == 2
        assert not r._holds(0) and not r.exports  # the consumer alone has it
        t.delete()


def elements(r):
    """Other types, by changing what the owner has told."""
    kept = r.kind, r.bits, r.size, r.shape, r.pitch, r.address
    types = [(kind, bits, bits // 8) for kind, all_bits in c.DL_BITS.items() for bits in all_bits]
    for r.kind, r.bits, r.size in types:
        r.shape = ()
        t = take(r)
        assert (t.tensor.code, t.tensor.bits, t.shape, t.strides) == (c.DL_CODES[r.kind], r.bits, [ROWS], [PITCH // r.size])
        t.delete()
    for r.kind, r.bits, r.size in ("opaque", 8, 1), ("opaque", 384, 48), ("int", 24, 3), ("float", 16, 4), ("bool", 32, 4):
        assert "elements" in refused(BufferError, lambda: take(r))
    r.kind, r.bits, r.size, r.pitch = "float", 64, 8, 36
    assert "multiple" in refused(BufferError, lambda: take(r))
    r.pitch, r.address = PITCH, kept[-1] + 4
    assert "multiple" in refused(BufferError, lambda: take(r))
    r.kind, r.bits, r.size, r.shape, r.pitch, r.address = kept


def dropped(r):
    """A capsule that is not consumed, also while an exception is pending."""
    for copy in None, True:
        capsule = r.__dlpack__(max_version=(1, 0), copy=copy)
        assert r._holds(0) == (not copy) and len(r.exports) == 1
        del capsule
        assert not r._holds(0) and not r.exports
        refused(ZeroDivisionError, lambda: print(r.__dlpack__(max_version=(1, 0), copy=copy), 1 // 0))
        assert not r._holds(0) and not r.exports


def consumed_meanwhile(r):
    """Another thread looks at the exports while the capsule is consumed and dropped."""
    capsules = [r.__dlpack__(max_version=(1, 0))]
    taken, references = [], c.references

    def consume(export):
        if capsules:
            taken.append(Taken(capsules.pop()))
        return references(export)

    c.references = consume
    assert r._holds(0), "freed below its consumer"
    c.references = references
    taken[0].delete()
    assert not r._holds(0)


def in_threads(r):
    all_taken = [take(r) for _ in range(100)]
    assert r._holds(0)
    threads = [threading.Thread(target=t.delete) for t in all_taken]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not r._holds(0) and not r.exports


def protocol(r):
    for part in fields, copies, elements, dropped, consumed_meanwhile, in_threads:
        part(r)
    take(r)  # and it is there at the interpreter's end


def is_mapped(address):
    with open("/proc/self/maps") as f:
        spans = [line.split()[:2] for line in f]
    return any(prot[0] == "r" and int(lo, 16) <= address < int(hi, 16) for (lo, hi), prot in ((s.split("-"), p) for s, p in spans))


def closed(r):
    t = take(r)
    address = r.address
    r.close()
    assert "closed" in refused(BufferError, lambda: take(r))
    print("read", t.value(4, 1, 2), flush=True)
    t.delete()
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join()  # it unmaps the memory
    assert not is_mapped(address)


def unheld(r):
    """What the hold is for: without it, this reads memory that is not mapped."""
    c.Reader._holds = lambda self, offset: False
    closed(r)


def retire(r):
    """The owner takes back all but the first chunk, which is acknowledged after the deleter."""
    low = take(r)  # this one stays
    print("taken", flush=True)
    assert r.wait(6 << 20, 60)
    t = take(r)
    row = t.shape[0] - 1

    def release():
        print("read", t.value(row, 1, 2), flush=True)
        sys.stdin.readline()  # the owner still waits
        print("read", t.value(row, 1, 2), flush=True)
        t.delete()

    r.timeout = 60
    r.on_retire = lambda left: threading.Thread(target=release).start()
    print("ready", flush=True)
    while r.generation == 0:
        r.step(60)
    assert not is_mapped(r.address + row * PITCH)
    print("read", low.value(4, 1, 2), len(r.exports), flush=True)


def kept(r):
    """The owner takes bytes back, and an export keeps them for longer than the timeout."""
    assert r.wait(6 << 20, 60)
    t = take(r)
    row = t.shape[0] - 1
    r.timeout = 0
    print("ready", flush=True)
    try:
        while True:
            r.step(60)
    except c.TakenBack as e:
        print(e, flush=True)
    print("read", t.value(row, 1, 2), r.rows(), take(r).shape[0], flush=True)


def library(r, name):
    """A library takes the rows without a copy, and again after they have grown."""
    import importlib

    module = importlib.import_module(name)
    take = (module.dlpack if name == "jax" else module).from_dlpack
    address = {
        "torch": lambda a: a.data_ptr(), "numpy": lambda a: a.ctypes.data,
        "cupy": lambda a: a.data.ptr, "jax": lambda a: a.unsafe_buffer_pointer(),
    }[name]  # fmt: skip
    kept = []
    for rows in ROWS, 70_000:
        assert r.wait(rows * PITCH, 60)
        try:
            a = take(r)
        except BufferError as e:
            assert "needs DLPack 1" in str(e), e
            print("before DLPack 1:", name, module.__version__)
            return
        assert tuple(a.shape) == (rows, 2, 3) and address(a) == r.address, a.shape
        assert float(a[rows - 1, 1, 2]) == (rows - 1) * 8 + 5
        kept.append(a)
        print("taken", rows, flush=True)
        sys.stdin.readline()
    r.close()
    assert float(kept[0][4, 1, 2]) == 4 * 8 + 5
    del a
    kept.clear()
    gc.collect()


def numpy_copy(r):
    """NumPy of before DLPack 1 takes a copy."""
    import numpy

    class Copy:
        def __dlpack_device__(self):
            return r.__dlpack_device__()

        def __dlpack__(self, *, stream=None, **_):
            return r.__dlpack__(stream=stream, copy=True)

    a = numpy.from_dlpack(Copy())
    assert a.shape == (ROWS, 2, 3) and (a == r.array()).all() and a.ctypes.data != r.address
    del a
    refused(ZeroDivisionError, lambda: print(numpy.from_dlpack(Copy()), 1 // 0))
    assert not r._holds(0) and not r.exports


part, path, name = sys.argv[1:4]
if len(sys.argv) > 4:
    __import__(sys.argv[4])  # it takes longer than an owner waits
with c.Reader(path, name) as r:
    assert r.wait(ROWS * PITCH, 60)
    globals()[part](r, *sys.argv[4:])
print("done", flush=True)
