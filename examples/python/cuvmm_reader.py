"""Reader follows an object that a process shares with cuvmm while it grows.

    with Reader("/run/user/1000/cuvmm/default.sock", "embeddings") as r:
        while r.wait(r.length() + 1, timeout=10):
            rows = r.array()        # NumPy, or memoryviews: nothing is copied

It implements the protocol of docs/reference/protocol.md and needs only the standard
library; objects in a GPU's memory also need cuda-bindings. The first address,
Reader.address, never changes. Use a Reader in one thread only.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import math
import mmap
import os
import re
import select
import socket
import stat
import struct
import sys
import threading
import time
import types
import warnings
from typing import Any, Callable, Iterable, NamedTuple, Optional

__all__ = ["CUDA", "HOST", "OwnerGone", "ProtocolError", "Reader", "Refused", "TakenBack"]

Bytes = bytes  # where Reader.bytes has the name

__version__ = "0.1.0"

MAJOR, MINOR = 1, 0
MAGIC, PAGE_MAGIC, PAGE_VERSION = 0x4D565543, 0x50565543, 1
HEADER = struct.Struct("<IBBHIHHIIQ")
MAX_FRAME, MAX_FDS, MAX_CHUNKS = 64 << 10, 64, 65536
KERNEL_FDS = 253  # the kernel's limit for one message
OPTIONAL = 1  # flag of a frame that may be skipped if its type is unknown

HELLO, ATTACH, RESYNC, ACK = 1, 4, 5, 7
CHUNKS, PUBLISH, RETIRE, SEALED, DELETED, CLOSING, ERROR, OBJECT = 64, 65, 66, 67, 68, 69, 70, 72
PAGE, HANDOVER = 74, 78
KNOWN = set(range(1, 31)) | set(range(64, 81))
UNSEALED = 2  # flag of ATTACH: an object of a store also if it is not sealed
HOST, CUDA = 1, 2  # backends

PAGE_BYTES, AT_DONE, AT_GENERATION = 4096, 128, 192

SEAL_SHRINK, SEAL_GROW, SEAL_FUTURE_WRITE = 2, 4, 16
GET_SEALS = getattr(fcntl, "F_GET_SEALS", 1034)

KINDS = ("opaque", "int", "uint", "float", "complex", "bool")
ATTACH_REQUEST = 1

# Seconds between two requests of a reader that has no free descriptor.
SHORT_PAUSE, MAX_SHORT_PAUSE = 0.001, 0.1


class OwnerGone(Exception):
    """The owner has ended. Mapped memory stays, and nothing more comes."""


class TakenBack(OwnerGone):
    """Some bytes that length() had reported are no longer valid: the writer of a store's object has
    lost its lease, or the owner took back bytes that a DLPack export kept. length() is what counts."""


class ProtocolError(Exception):
    """The owner broke the protocol. The connection is closed."""


class Refused(Exception):
    """The owner sent an ERROR frame."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"the owner says {text!r} (code {code})")
        self.code = code


def expect(ok: object, what: str) -> None:
    if not ok:
        raise ProtocolError(what)


def close_later(closing: Callable[[], object]) -> None:
    """Closes what the owner chose in a thread that nothing waits for. The close of a
    file can wait for as long as its sender likes, and so can that of a socket with
    files in packets that were not read."""
    threading.Thread(target=closing, daemon=True).start()


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


# Pages.

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

PROT_NONE, MAP_FIXED, MAP_NORESERVE = 0, 0x10, 0x4000
NOTHING = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE


def map_pages(address: Optional[int], size: int, prot: int, flags: int, fd: int = -1) -> int:
    got: Any = libc.mmap(address, size, prot, flags, fd, 0)
    if got in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {size} bytes: {os.strerror(code)}")
    return int(got)


def check_memory_file(fd: int, size: int, seals: int) -> None:
    """Checks seals and size: an owner that could truncate the file could kill
    this process with SIGBUS. Only a file in memory has seals; fstat of any other
    file could wait for the daemon of a file system."""
    try:
        have = fcntl.fcntl(fd, GET_SEALS)
    except OSError as e:
        raise ProtocolError(f"a file without seals: {e}") from e
    expect(have & seals == seals, f"memory with seals {have:#x}, not {seals:#x}")
    st = os.fstat(fd)
    expect(st.st_size == size, f"{st.st_size} bytes of memory instead of {size}")


AT_EMPTY_PATH, AT_STATX_DONT_SYNC, STATX_TYPE = 0x1000, 0x4000, 1


def is_device(fd: int) -> bool:
    """Whether fd is a character device. fstat could wait for the daemon of a file
    system; this asks the kernel only."""
    found = ctypes.create_string_buffer(256)  # struct statx
    if libc.statx(fd, b"", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, found) != 0:
        return False
    return stat.S_ISCHR(struct.unpack_from("<H", found.raw, 28)[0])


class HostMemory:
    """Reserved addresses with the owner's files mapped over them, from the first on."""

    granularity = mmap.PAGESIZE
    uuid = bytes(16)

    def __init__(self, owner_uuid: bytes) -> None:
        self.address = self.size = 0

    def reserve(self, size: int) -> None:
        self.address, self.size = map_pages(None, size, PROT_NONE, NOTHING), size

    def map(self, offset: int, size: int, fd: int) -> None:
        check_memory_file(fd, size, SEAL_SHRINK | SEAL_GROW)
        map_pages(self.address + offset, size, mmap.PROT_READ, mmap.MAP_SHARED | MAP_FIXED, fd)

    def unmap(self, offset: int, sizes: list[int]) -> None:
        if sizes:  # the addresses stay reserved
            map_pages(self.address + offset, sum(sizes), PROT_NONE, NOTHING | MAP_FIXED)

    def synchronize(self) -> None:
        pass

    def close(self) -> None:
        if self.address:
            libc.munmap(self.address, self.size)
            self.address = 0


class CudaMemory:
    """The same on a GPU."""

    def __init__(self, owner_uuid: bytes) -> None:
        from cuda.bindings import driver

        self.cu, self.address, self.size, self.context = driver, 0, 0, None
        self.call("cuInit", 0)
        # The owner's device if it is visible here, else the first: any device that
        # can access the memory will do.
        self.device = self.uuid = None
        for n in range(self.call("cuDeviceGetCount")):
            device = self.call("cuDeviceGet", n)
            uuid = bytes(self.call("cuDeviceGetUuid", device).bytes)
            if self.device is None or uuid == owner_uuid:
                self.device, self.handle, self.uuid = n, device, uuid
        if self.device is None:
            raise RuntimeError("the object is in a GPU's memory, and there is no GPU here")
        prop = driver.CUmemAllocationProp()
        prop.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        prop.location = self.location()
        least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
        self.granularity = self.call("cuMemGetAllocationGranularity", prop, least)

    def call(self, name: str, *args: Any) -> Any:
        err, *rest = getattr(self.cu, name)(*args)
        if err != self.cu.CUresult.CUDA_SUCCESS:
            raise RuntimeError(f"{name}: {err.name}")
        return rest[0] if rest else None

    def location(self) -> Any:
        where = self.cu.CUmemLocation()
        where.type = self.cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        where.id = self.device
        return where

    def reserve(self, size: int) -> None:
        # The primary context is the one that PyTorch and CuPy use.
        self.context = self.call("cuDevicePrimaryCtxRetain", self.handle)
        self.address, self.size = int(self.call("cuMemAddressReserve", size, 0, 0, 0)), size

    def map(self, offset: int, size: int, fd: int) -> None:
        # For any other file the driver returns CUDA_ERROR_UNKNOWN.
        expect(is_device(fd), "a file that is no device instead of GPU memory")
        posix = self.cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
        handle = self.call("cuMemImportFromShareableHandle", fd, posix)
        at = self.address + offset
        try:
            self.call("cuMemMap", at, size, 0, handle, 0)
        finally:
            self.call("cuMemRelease", handle)  # the mapping keeps the memory
        access = self.cu.CUmemAccessDesc()
        access.location = self.location()
        access.flags = self.cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READ
        try:
            self.call("cuMemSetAccess", at, size, [access], 1)
        except RuntimeError:
            self.call("cuMemUnmap", at, size)
            raise

    def unmap(self, offset: int, sizes: list[int]) -> None:
        for size in sizes:
            self.call("cuMemUnmap", self.address + offset, size)
            offset += size

    def synchronize(self) -> None:
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuCtxSynchronize")

    def close(self) -> None:
        if self.address:
            self.call("cuMemAddressFree", self.address, self.size)
            self.address = 0
        if self.context is not None:
            self.call("cuDevicePrimaryCtxRelease", self.handle)
            self.context = None


def parse_name(name: str) -> tuple[str, Optional[bytes]]:
    """The name for ATTACH, and the instance that the owner must be: an object of a store
    that was printed as an ID, "@7:" and 32 hexadecimal digits, is "@7" of that store. Any
    other name is of whatever owner is there: None."""
    number, colon, instance = name.partition(":")
    if not (name.startswith("@") and colon):
        return name, None
    if not re.fullmatch("@(0|[1-9][0-9]*):[0-9a-f]{32}", name):
        raise ValueError(f"{name!r} is no ID")
    return number, bytes.fromhex(instance)


class Frame:
    """One packet. Its exit closes the descriptors that came with it and are still in
    fds: no one knows what they are."""

    def __init__(self, fds: list[int]) -> None:
        self.fds, self.type, self.request, self.payload, self.truncated = fds, 0, 0, b"", False

    def __enter__(self) -> Frame:
        return self

    def __exit__(self, *_: object) -> None:
        fds, self.fds = self.fds, []
        if fds:
            close_later(lambda: close_all(fds))


class Payload:
    """Decodes the fields of a payload, one after the other."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n: int) -> bytes:
        expect(self.at + n <= len(self.data), "a payload that is too short")
        self.at += n
        return self.data[self.at - n : self.at]

    def unpack(self, form: str) -> Any:
        got = struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))
        return got if len(got) > 1 else got[0]

    def string(self, most: int) -> bytes:
        n = self.unpack("I")
        expect(n <= most, f"a string of {n} bytes, over {most}")
        return self.take(n)

    def end(self) -> None:
        expect(self.at == len(self.data), f"{len(self.data) - self.at} bytes too many")


# DLPack.

DL_VERSION, DL_READ_ONLY, DL_COPIED = (1, 0), 1, 2
DL_CODES = {"int": 0, "uint": 1, "float": 2, "complex": 5, "bool": 6}
DL_BITS = {"int": (8, 16, 32, 64), "uint": (8, 16, 32, 64), "float": (16, 32, 64), "complex": (64, 128), "bool": (8,)}
DL_TENSOR = struct.Struct("QiiiBBHQQQ")
DL_BEFORE, DL_AFTER = struct.Struct("IIQQQ"), struct.Struct("QQ")  # fields around it, with a version and without
DL_ROOM = 128  # for either struct
DL_ALIGNMENT = 256

HOLD_PAUSE = 0.005  # seconds between two looks at exports that keep memory

libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
FREE, TIME = (ctypes.cast(f, ctypes.c_void_p).value for f in (libc.free, libc.time))
new_capsule, is_capsule = ctypes.pythonapi.PyCapsule_New, ctypes.pythonapi.PyCapsule_IsValid
new_capsule.restype, new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
is_capsule.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Export:
    """A DLPack struct in memory of C, and the capsule that brings it to a consumer.

    A consumer may call the deleter in any thread, without the GIL, at the interpreter's end, and
    while an exception is pending, where a ctypes callback would lose the exception or crash the
    interpreter. So the deleter is a function of the C library. That of a copy is free:
    the copy is in one block with its struct. That of the object's memory is time. It stores the
    seconds since 1970 at the address that it gets, where the version was, and is_over sees that.
    For the same reason the capsule has no destructor: is_over also sees that a capsule was dropped
    before a consumer took it.
    """

    def __init__(self, fields: list[int], dims: list[int], version: Optional[tuple[int, int]], end: int, copy: Optional[int]) -> None:
        """fields are those of DLTensor from the address to the lanes. dims are the shape and then
        the strides. version None makes the struct that has no version. end is where the bytes end
        that the export keeps, counted from the first chunk. copy is the size of a copy, or None."""
        size = 8 * len(dims)
        block = libc.malloc(DL_ROOM + size + (0 if copy is None else copy + DL_ALIGNMENT))
        if not block:
            raise MemoryError("no memory for a DLPack export")
        self.block, self.end, self.copied = int(block), end, copy is not None
        at = self.block + DL_ROOM
        if copy is not None:
            data = (at + size + DL_ALIGNMENT - 1) & -DL_ALIGNMENT
            ctypes.memmove(data, fields[0], copy)
            fields = [data, *fields[1:]]
        ctypes.memmove(at, struct.pack(f"{len(dims)}q", *dims), size)
        packed = DL_TENSOR.pack(*fields, at, at + size // 2, 0)
        if version:
            self.name = b"dltensor_versioned"
            packed = DL_BEFORE.pack(*version, 0, *((FREE, DL_COPIED) if self.copied else (TIME, DL_READ_ONLY))) + packed
        else:
            self.name = b"dltensor"
            packed += DL_AFTER.pack(0, FREE)
        ctypes.memmove(self.block, packed, len(packed))
        self.version = self._word()
        self.capsule: Any = new_capsule(self.block, self.name, None)

    def _word(self) -> int:
        word: int = ctypes.c_uint64.from_address(self.block).value
        return word

    def is_over(self) -> bool:
        """Whether no consumer can use the memory any more. After True it must not be called again."""
        if self.capsule is not None:
            # Another thread may consume it now. Only while no one else has it, that cannot be.
            alone = references(self) == ALONE
            if is_capsule(self.capsule, self.name):  # not consumed
                if alone:
                    libc.free(self.block)
                return alone
            self.capsule = None
        if not self.copied:
            if self._word() == self.version:
                return False
            libc.free(self.block)
        return True


def references(export: Any) -> int:
    return sys.getrefcount(export.capsule)


ALONE = references(types.SimpleNamespace(capsule=object()))  # the count of a capsule that has no other reference


class Hello(NamedTuple):
    """What the owner says of itself."""

    instance: bytes
    uuid: bytes  # of the device
    backend: int  # HOST or CUDA
    granularity: int


class Connection:
    """A connection to an owner, and the frames over it."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.sent = self.received = 0
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.sock.settimeout(timeout)

    def _connect(self, path: str, token: Bytes, uids: Optional[Iterable[int]]) -> Hello:
        """Connects to the owner, checks who it is, and exchanges HELLO."""
        if len(token) > 32:
            raise ValueError(f"a token of {len(token)} bytes, over 32")
        try:
            self.sock.connect(path)
        except (ConnectionRefusedError, FileNotFoundError) as e:
            raise OwnerGone(f"no owner listens at {path}") from e
        creds = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        uid, allowed = struct.unpack("3i", creds)[1], {os.getuid(), 0} if uids is None else set(uids)
        if uid not in allowed:
            raise PermissionError(f"{path} is served by user {uid}, and not by one of {', '.join(map(str, sorted(allowed)))}")
        # The owner sends HELLO at once. This side has no backend of its own, so it reads
        # that first and replies with the same one.
        with self._reply(HELLO, 0) as frame:
            expect(len(frame.payload) == 96, f"HELLO of {len(frame.payload)} bytes")
            _, instance, uuid, backend, _, granularity = struct.unpack_from("<Q16s16sIIQ", frame.payload)
        expect(backend in (HOST, CUDA) and granularity > 0, f"backend {backend}, granularity {granularity}")
        self._send(HELLO, struct.pack(
            "<Q16s16sIIQII32s", 0, bytes(16), uuid, backend, os.getpid(), granularity, len(token), 0, token
        ))  # fmt: skip
        return Hello(instance, uuid, backend, granularity)

    def _shutdown(self) -> None:
        """Ends the connection: the owner knows at once. The socket is still to be closed."""
        try:
            self.sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it is not connected any more

    def _send(self, kind: int, payload: Bytes, request: int = 0) -> None:
        self.sent += 1
        head = HEADER.pack(MAGIC, MAJOR, MINOR, kind, 0, 0, 0, len(payload), request, self.sent)
        try:
            self.sock.send(head + payload)
        except (BrokenPipeError, ConnectionResetError):
            pass  # frames that the owner sent before can still be read

    def _receive(self) -> Frame:
        """Receives one frame, which the caller must close. Waits up to the timeout."""
        size = socket.CMSG_SPACE(KERNEL_FDS * 4)
        try:
            data, control, flags, _ = self.sock.recvmsg(MAX_FRAME, size, socket.MSG_CMSG_CLOEXEC)
        except ConnectionResetError:
            # Reported once. What the owner sent before can still be read.
            data, control, flags, _ = self.sock.recvmsg(MAX_FRAME, size, socket.MSG_CMSG_CLOEXEC)
        frame = Frame([])
        try:
            for level, kind, body in control:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    n = len(body) // 4
                    frame.fds += struct.unpack(f"{n}i", body[: 4 * n])
            self._check(frame, data, flags)
        except BaseException:
            frame.__exit__()
            raise
        return frame

    def _check(self, frame: Frame, data: Bytes, flags: int) -> None:
        if not data and not frame.fds:
            raise OwnerGone("the owner is gone")
        expect(len(data) >= HEADER.size and not flags & socket.MSG_TRUNC, f"a packet of {len(data)} bytes")
        magic, major, _, kind, bits, nfds, zero, size, request, sequence = HEADER.unpack_from(data)
        expect(magic == MAGIC, f"a frame that begins with {magic:#x}")
        expect(major == MAJOR, f"the owner speaks version {major}")
        expect(bits & ~OPTIONAL == 0 and zero == 0, "unknown flags or a reserved field")
        expect(size == len(data) - HEADER.size, "a length that is not the packet's")
        expect(sequence == self.received + 1, f"frame {sequence} after {self.received}")
        self.received = sequence
        frame.truncated = bool(flags & socket.MSG_CTRUNC)
        expect(frame.truncated or nfds == len(frame.fds), f"{len(frame.fds)} descriptors instead of {nfds}")
        expect(kind in KNOWN or bits & OPTIONAL, f"a frame of type {kind}")
        most = MAX_FDS if kind == CHUNKS or kind not in KNOWN else {OBJECT: 2, PAGE: 1, HANDOVER: MAX_FDS}.get(kind, 0)
        expect(nfds <= most, f"{nfds} descriptors")
        frame.type, frame.request, frame.payload = kind, request, data[HEADER.size :]

    def _reply(self, kind: int, request: int) -> Frame:
        """Receives the frame that must come next. The caller must close it."""
        while True:
            frame = self._receive()
            if frame.type in KNOWN:
                break
            frame.__exit__()  # an optional frame of a later minor version
        if frame.type != kind or frame.request != request:
            with frame:
                self._check_end(frame)
                raise ProtocolError(f"type {frame.type} instead of {kind}")
        return frame

    def _check_end(self, frame: Frame) -> None:
        """Raises if the frame is ERROR or CLOSING."""
        p = Payload(frame.payload)
        if frame.type == ERROR:
            code, zero = p.unpack("II")
            text = p.string(1024).decode(errors="replace")
            p.end()
            expect(zero == 0, "a reserved field")
            raise Refused(code, text)
        if frame.type == CLOSING:
            text = p.string(1024).decode(errors="replace")
            p.end()
            raise OwnerGone(f"the owner is gone: {text}")


class Reader(Connection):
    """One object of another process, mapped for reading. Its name may be the ID of an
    object of a store, as the store's clients print it.

    Attributes: address, the first address; max, the bytes it can grow to;
    backend, HOST or CUDA; device, the GPU's ordinal; kind, bits and size of an
    element; shape of a row; pitch, the bytes from row to row; metadata; fields,
    the owner's description of a struct as JSON, empty without one;
    generation, which rises when the owner takes bytes back; sealed and deleted.

    unsealed asks for an object of a store also if it is not sealed.

    on_retire, if set, is called before memory is unmapped, with the length that
    is left. Arrays that were made before must not be used after it.
    """

    address: int
    max: int
    backend: int
    device: Optional[int]
    kind: str
    bits: int
    size: int
    shape: tuple[int, ...]
    pitch: int
    base: int
    metadata: Bytes
    fields: Bytes

    def __init__(
        self,
        path: str,
        name: str,
        token: Bytes = b"",
        timeout: float = 5.0,
        max_bytes: Optional[int] = None,
        unsealed: bool = False,
        uids: Optional[Iterable[int]] = None,
    ) -> None:
        """Attaches to the object name of the owner that listens at path. uids are the users whom the
        owner may run as; None is this process's user and root."""
        super().__init__(timeout)
        self.name, self.max_bytes, self.unsealed = name, max_bytes, unsealed
        self.on_retire: Optional[Callable[[int], object]] = None
        self.sealed: Optional[int] = None
        self.deleted: Optional[bool] = None
        self.digest: Optional[Bytes] = None
        self.gone: Optional[Exception] = None  # the error that ended the connection
        self.generation = self.last_length = self.end = self.last_id = 0
        self.chunks: list[tuple[int, int, int]] = []  # (id, offset, size) of the mapped chunks
        self.batch, self.resyncing = MAX_FDS, False
        self.short_since: Optional[float] = None  # too few descriptors
        self.short_pause = SHORT_PAUSE
        self.memory: Any = None  # HostMemory or CudaMemory
        self.exports: list[Export] = []
        self.exports_to_look = 16  # how many there are when a new one first looks which are over
        self.page: Any = None  # an address
        self.wake: Any = None  # a socket
        try:
            self._attach(path, token, uids)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Reader:
        raise TypeError("a Reader cannot be copied: attach another one")

    def close(self) -> None:
        """Unmaps everything. Arrays must not be used any more, except those made from DLPack:
        their memory is unmapped after the last of them. Twice is fine."""
        self._disconnect()
        if self.page:
            libc.munmap(self.page, PAGE_BYTES)
            self.page = None
        if self.memory:
            memory, sizes, self.memory = self.memory, [size for _, _, size in self.chunks], None
            if self._holds(0):
                close_later(lambda: self._free(memory, sizes))
            else:
                self._free(memory, sizes)
        self.chunks, self.end, self.last_length = [], 0, 0
        self.gone = self.gone or ValueError("the reader is closed")

    def _free(self, memory: Any, sizes: list[int]) -> None:
        while self._holds(0):
            time.sleep(HOLD_PAUSE)
        if sizes:
            memory.synchronize()
            memory.unmap(0, sizes)
        memory.close()

    def _holds(self, offset: int) -> bool:
        """Whether an export keeps mapped bytes from the offset on."""
        self.exports = [e for e in self.exports if not e.is_over()]
        return any(e.end > offset for e in self.exports)

    def _disconnect(self) -> None:
        self._shutdown()
        close_later(lambda: [s.close() for s in (self.sock, self.wake) if s])

    # Attaching.

    def _attach(self, path: str, token: Bytes, uids: Optional[Iterable[int]]) -> None:
        name, wanted = parse_name(self.name)
        hello = self._connect(path, token, uids)
        instance, uuid, self.backend, granularity = hello.instance, hello.uuid, hello.backend, hello.granularity
        if wanted not in (None, instance):
            raise LookupError(f"{self.name} is of another store, or of one before its restart")
        asked = name.encode()
        self._send(ATTACH, struct.pack("<III", 1, UNSEALED if self.unsealed else 0, len(asked)) + asked, ATTACH_REQUEST)
        with self._reply(OBJECT, ATTACH_REQUEST) as frame:
            self._object(Payload(frame.payload), instance, asked)
            if frame.truncated:
                raise OSError("the limit on open files is reached")
            expect(len(frame.fds) == 2, f"{len(frame.fds)} descriptors")
            self._open_page(frame.fds[0], instance)
            self._open_wake(frame.fds)
        # Only now: CUDA takes longer to start than an owner waits for ATTACH.
        memory: Any = HostMemory if self.backend == HOST else CudaMemory
        self.memory = memory(uuid)
        self.device = getattr(self.memory, "device", None)
        if granularity % self.memory.granularity:
            raise ValueError(f"the owner's chunks are multiples of {granularity} bytes, and those here of {self.memory.granularity}")
        self.granularity = granularity
        expect(self.max % granularity == 0, f"a maximum of {self.max} bytes, no multiple of {granularity}")
        self.memory.reserve(self.max)
        self.address = self.memory.address + self.base

    def _object(self, p: Payload, instance: Bytes, name: Bytes) -> None:
        self.id, self.max, self.generation, length, _, capacity, self.base = p.unpack("7Q")
        state, access, kind, self.bits, self.size, self.hash = p.unpack("4IQ32s")
        ndim, zero, *dims = p.unpack("2I4Q")
        self.pitch = p.unpack("Q")
        same = p.take(16) == instance and p.string(256) == name
        self.metadata = p.string(32 << 10)
        self.fields = p.string(4 << 10)
        p.end()
        expect(same, "an object that was not asked for")
        expect(self.id > 0 and self.base < self.max and length <= self.max - self.base and capacity <= self.max, "more bytes than the maximum")
        expect(kind < len(KINDS) and state in (1, 2, 3) and access in (1, 2), "an unknown kind of object")
        expect(not self.fields or KINDS[kind] == "opaque", "a dtype of elements that are numbers")
        expect(zero == 0 and ndim <= 4 and all(dims[:ndim]) and not any(dims[ndim:]), f"{ndim} dimensions {dims}")
        self.kind, self.shape = KINDS[kind], tuple(dims[:ndim])
        if self.size == 0:  # the owner does not describe the bytes
            self.kind, self.bits, self.size, self.shape, self.pitch = "opaque", 8, 1, (), 1
        row = self.size * math.prod(self.shape)
        self.pitch = self.pitch or row
        expect(self.pitch >= row, f"rows of {row} bytes, {self.pitch} apart")

    def _open_page(self, fd: int, instance: Bytes) -> None:
        check_memory_file(fd, PAGE_BYTES, SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)
        self.page = map_pages(None, PAGE_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, fd)
        head = struct.unpack("<II16sQ", ctypes.string_at(self.page, 32))
        expect(head == (PAGE_MAGIC, PAGE_VERSION, instance, self.id), "the control page of something else")

    def _open_wake(self, fds: list[int]) -> None:
        try:
            wake = socket.socket(fileno=fds[1])  # asks the kernel what kind it is
        except OSError as e:
            raise ProtocolError(f"a wake socket that is none: {e}") from e
        if (wake.family, wake.type) != (socket.AF_UNIX, socket.SOCK_STREAM):
            wake.detach()
            raise ProtocolError(f"a wake socket of family {wake.family} and type {wake.type}")
        self.wake = wake
        del fds[1]

    # Following.

    def _word(self, offset: int) -> int:
        """One load of 8 bytes; struct would load byte by byte. On x86-64 loads
        stay in order; on other machines a reader needs acquire loads."""
        word: int = ctypes.c_uint64.from_address(self.page + offset).value
        return word

    def length(self) -> int:
        """How many bytes can be read now. It makes no system call."""
        if self.gone is None and self.page:
            mapped = max(self.end - self.base, 0)
            if self.sealed is not None:
                self.last_length = min(self.sealed, mapped)
            else:
                done = self._word(AT_DONE)
                if self._word(AT_GENERATION) == self.generation:
                    self.last_length = max(self.last_length, min(done, mapped))
        return self.last_length

    def rows(self) -> int:
        """How many whole rows that is."""
        return self.length() // self.pitch

    def wait(self, n: int, timeout: Optional[float] = None) -> bool:
        """Waits until length() is at least n. Returns False after the timeout, or
        if the object is sealed or deleted before. Raises OwnerGone if the owner
        is gone, and TakenBack if bytes that length() has counted do not count."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self.length() < n:
            if self.deleted or self.sealed is not None and n > self.sealed:
                return False
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return False
            self.step(left)
        return True

    def step(self, timeout: Optional[float] = None) -> None:
        """Waits until a frame was handled or the length has changed. Call it
        often: it sends the acknowledgements that the owner waits for."""
        if self.gone is not None:
            raise self.gone
        deadline = None if timeout is None else time.monotonic() + timeout
        before = self.last_length
        watch = select.poll()
        watch.register(self.sock, select.POLLIN)
        watch.register(self.wake, select.POLLIN)
        while True:
            left = None if deadline is None else max(0, math.ceil((deadline - time.monotonic()) * 1000))
            ready = dict(watch.poll(left))
            if self.wake.fileno() in ready:
                # Read empty first, so that no later change is missed.
                try:
                    if not self.wake.recv(64, socket.MSG_DONTWAIT):
                        watch.unregister(self.wake)  # the end; that of the connection follows
                except BlockingIOError:
                    pass
            if self.sock.fileno() in ready:
                return self._take()
            if self.length() != before or not ready:
                return None

    def _take(self) -> None:
        try:
            with self._receive() as frame:
                self._do(frame)
        except Exception as e:
            self.length()  # the page's last length is final
            self.gone = e
            self._disconnect()  # so that the owner does not wait for this reader
            raise

    def _do(self, frame: Frame) -> None:
        if frame.type not in KNOWN:
            return
        if frame.truncated:
            return self._resync(frame)
        p = Payload(frame.payload)
        if frame.type == CHUNKS:
            return self._map(p, frame)
        if frame.type == RETIRE:
            return self._retire(p)
        if frame.type == PAGE:
            return self._replace_page(p, frame)
        if frame.type == SEALED:
            object_id, length, has, zero, digest = p.unpack("QQII32s")
            p.end()
            expect(object_id == self.id and length <= self.max - self.base and zero == 0, "sealed is something else")
            self.sealed, self.digest = length, digest if has else None
            return None
        if frame.type == DELETED:
            expect(p.unpack("Q") == self.id, "deleted is something else")
            p.end()
            self.length()
            self.deleted = True
            return None
        self._check_end(frame)
        raise ProtocolError(f"type {frame.type} to a reader")

    def _ack(self) -> None:
        self._send(ACK, struct.pack("<QQQ", self.id, self.last_id, self.generation))

    def _map(self, p: Payload, frame: Frame) -> None:
        object_id, generation, count, zero = p.unpack("QQII")
        expect((object_id, generation, zero) == (self.id, self.generation, 0), "chunks of something else")
        expect(0 < count == len(frame.fds), f"{count} chunks and {len(frame.fds)} descriptors")
        records = [p.unpack("QQQ") for _ in range(count)]
        p.end()
        if self.resyncing and records[0][1] > self.end:
            return  # sent before the owner read the RESYNC; it comes again
        self.resyncing = False
        known, at, last = set(self.chunks), self.end, self.last_id
        fresh: list[tuple[int, int, int, int]] = []
        for fd, (chunk, offset, size) in zip(frame.fds, records):
            if not fresh and (chunk, offset, size) in known:
                continue
            expect(chunk > last, f"chunk {chunk} after {last}")
            expect(size > 0 and size % self.granularity == 0, f"a chunk of {size} bytes")
            expect(offset == at and size <= self.max - at, f"a chunk at {offset} of {size} bytes where {at} is the end")
            fresh.append((fd, chunk, offset, size))
            at, last = at + size, chunk
        expect(len(self.chunks) + len(fresh) <= MAX_CHUNKS, "too many chunks")
        if self.max_bytes is not None and at > self.max_bytes:
            raise MemoryError(f"{at} bytes, over a limit of {self.max_bytes}")
        for fd, chunk, offset, size in fresh:
            self.memory.map(offset, size, fd)
            frame.fds.remove(fd)
            os.close(fd)  # it is memory, whose close does not wait
            self.chunks.append((chunk, offset, size))
            self.end, self.last_id = offset + size, chunk
        self.short_since, self.short_pause = None, SHORT_PAUSE
        self._ack()

    def _replace_page(self, p: Payload, frame: Frame) -> None:
        """Another process writes to the object, or none any more."""
        expect(p.unpack("Q") == self.id and len(frame.fds) == 1, "the page of something else")
        p.end()
        check_memory_file(frame.fds[0], PAGE_BYTES, SEAL_SHRINK | SEAL_GROW | SEAL_FUTURE_WRITE)
        page = map_pages(None, PAGE_BYTES, mmap.PROT_READ, mmap.MAP_SHARED, frame.fds[0])
        libc.munmap(self.page, PAGE_BYTES)
        self.page, shown = page, self.last_length
        self.short_since, self.short_pause = None, SHORT_PAUSE
        # What the old page shows that is not on this one was stored after the lease had ended.
        done = self._word(AT_DONE)
        if done < shown and self._word(AT_GENERATION) == self.generation:
            self.last_length = done
            raise TakenBack(f"the writer has lost its lease: {done} of the {shown} bytes that it showed count")

    def _resync(self, frame: Frame) -> None:
        """Descriptors were lost at the limit on open files: requests the same
        chunks in smaller frames, and single ones, or a page, again after a pause."""
        if frame.type not in (CHUNKS, PAGE):
            return
        p, count = Payload(frame.payload), 1
        if frame.type == CHUNKS:
            _, _, count, _, _, offset = p.unpack("QQIIQQ")
            if self.resyncing and offset > self.end:
                return  # sent before the owner read the RESYNC; it comes again
        frame.__exit__()  # those that came take up room
        self.short_since = self.short_since or time.monotonic()
        if count == 1:
            if time.monotonic() - self.short_since > self.timeout:
                raise OSError("the limit on open files is reached")
            time.sleep(self.short_pause)
            self.short_pause = min(2 * self.short_pause, MAX_SHORT_PAUSE)
        if frame.type == CHUNKS:
            self.batch = max(min(self.batch, count) // 2, 1)
        self.resyncing = True
        self._send(RESYNC, struct.pack("<QQII", self.id, self.last_id + 1 if self.last_id else 0, self.batch, 0))

    def _retire(self, p: Payload) -> None:
        object_id, generation, capacity = p.unpack("QQQ")
        p.end()
        expect(object_id == self.id and generation > self.generation, "something else is retired")
        expect(self.sealed is None or capacity == 0, "sealed memory is taken back")
        keep = len(self.chunks)
        while keep and self.chunks[keep - 1][1] >= capacity:
            keep -= 1
        gone = self.chunks[keep:]
        end = gone[0][1] if gone else self.end
        expect(capacity <= self.max and (end == capacity or not gone and capacity > end), "retired is half a chunk")
        left = max(capacity - self.base, 0)
        self.last_length = min(self.last_length, left)
        if gone:
            if self.on_retire:
                self.on_retire(left)
            deadline = time.monotonic() + self.timeout
            while self._holds(end):
                # The error ends the connection, so the owner goes on, and all stays mapped.
                if time.monotonic() > deadline:
                    raise TakenBack(f"an export keeps bytes after {left}, which the owner took back")
                time.sleep(HOLD_PAUSE)
            self.memory.synchronize()
            self.memory.unmap(end, [size for _, _, size in gone])
        del self.chunks[keep:]
        self.end, self.generation = end, generation
        if self._word(AT_GENERATION) == generation:
            # The owner may have shortened the object inside a chunk that stays.
            self.last_length = min(self.last_length, self._word(AT_DONE))
        self._ack()

    # Arrays. None of them is a copy.

    def bytes(self) -> memoryview:
        """The first length() bytes as a memoryview; only for host memory."""
        if self.backend != HOST:
            raise TypeError("the CPU cannot read the memory of a GPU")
        n = self.length()
        if n == 0:
            return memoryview(b"")
        return memoryview((ctypes.c_char * n).from_address(self.address)).cast("B").toreadonly()

    def typestr(self) -> str:
        """The element's type as NumPy spells it."""
        if self.kind == "opaque":
            return "|u1"
        letter = {"int": "i", "uint": "u", "float": "f", "complex": "c", "bool": "b"}[self.kind]
        return ("|" if self.size == 1 else "<") + letter + str(self.size)

    def dtype(self) -> Any:
        """The element's type for NumPy: with named fields, if the owner describes those of a
        struct, else bytes where it is opaque."""
        import numpy

        if not self.fields:
            return numpy.dtype(self.typestr() if self.kind != "opaque" else f"|V{self.size}")
        try:
            described = json.loads(self.fields)
            wanted: Any = {key: described[key] for key in ("names", "formats", "offsets", "itemsize")}
            dtype = numpy.dtype(wanted)
        except (ValueError, TypeError, KeyError, RecursionError) as e:
            raise ProtocolError(f"a dtype that NumPy does not take: {e}") from e
        expect(dtype.itemsize == self.size and not dtype.hasobject, f"a dtype of {dtype.itemsize} bytes for elements of {self.size}")
        return dtype

    def layout(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape, and strides in bytes, of all rows as one array. Opaque elements
        become bytes, with one more dimension for the bytes of an element."""
        dims, step = list(self.shape), self.size
        if self.kind == "opaque":
            step = 1
            if self.size > 1:
                dims.append(self.size)
        strides: list[int] = []
        for n in reversed(dims):
            strides.insert(0, step)
            step *= n
        return (self.rows(), *dims), (self.pitch, *strides)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        if self.backend != CUDA:
            raise AttributeError("the object is in host memory")
        shape, strides = self.layout()
        # PyTorch refuses memory that is marked read-only. Writes to it fault.
        return {
            "shape": shape, "typestr": self.typestr(), "strides": strides,
            "data": (self.address if shape[0] else 0, False), "version": 3,
        }  # fmt: skip

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device of the memory, as DLPack has it: the CPU is 1, and CUDA is 2."""
        return (1, 0) if self.device is None else (2, self.device)

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[tuple[int, int]] = None,
        dl_device: Optional[tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """All rows as a capsule of DLPack: from_dlpack(reader) of a library calls it. The memory is
        read-only, which only DLPack 1 can say. Without it, only a copy can be exported. Memory of
        a GPU cannot be copied here: make a copy in the library.

        The rows stay mapped until the library has dropped them, also after close. If the owner
        takes them back, step waits for that after on_retire, up to the timeout. Then it raises
        TakenBack: the rows stay mapped and may be stale."""
        device = self.__dlpack_device__()
        if self.memory is None:
            raise BufferError("the reader is closed")
        if dl_device is not None and tuple(dl_device) != device:
            raise BufferError(f"device {dl_device} for memory of {device}")
        # The owner's writes have ended before it publishes them, so no stream has to wait.
        if not (stream is None or stream == -1 or self.backend == CUDA and stream > 0):
            raise ValueError(f"stream {stream!r} for memory of device {device}")
        if copy and self.backend == CUDA:
            raise BufferError("memory of a GPU is not copied here")
        versioned = max_version is not None and tuple(max_version) >= DL_VERSION
        if not (versioned or copy):
            raise BufferError("read-only memory needs DLPack 1, which this library does not ask for; or copy it")
        if self.bits not in DL_BITS.get(self.kind, ()) or self.bits != 8 * self.size:
            raise BufferError(f"DLPack has no {self.kind} elements of {self.bits} bits in {self.size} bytes")
        if self.pitch % self.size or self.address % (self.size // 2 if self.kind == "complex" else self.size):
            raise BufferError(f"rows of {self.pitch} bytes at {self.address:#x}, no multiple of an element's {self.size}")
        shape, strides = self.layout()
        size = shape[0] * self.pitch
        if len(self.exports) >= self.exports_to_look:
            self._holds(0)  # drops those that are over
            self.exports_to_look = 2 * len(self.exports) + 16
        fields = [self.address, *device, len(shape), DL_CODES[self.kind], self.bits, 1]
        dims = [*shape, *(n // self.size for n in strides)]
        version = DL_VERSION if versioned else None
        export = Export(fields, dims, version, 0 if copy or not size else self.base + size, size if copy else None)
        self.exports.append(export)
        return export.capsule

    def array(self) -> Any:
        """All rows as one NumPy array; without NumPy, a memoryview of each row. Elements
        whose fields the owner describes have dtype(), other opaque ones are bytes."""
        try:
            import numpy
        except ImportError:
            return self._plain()
        if not self.fields:
            return self._numbers()
        shape, strides = self.layout()
        dims = len(self.shape) + 1  # without the one for the bytes of an element
        return numpy.ndarray(shape[:dims], self.dtype(), self.bytes(), strides=strides[:dims])

    def _numbers(self) -> Any:
        """All rows as one NumPy array, where opaque elements are bytes."""
        import numpy

        shape, strides = self.layout()
        return numpy.ndarray(shape, self.typestr(), self.bytes(), strides=strides)

    def _plain(self) -> list[memoryview]:
        form = {"i1": "b", "i2": "h", "i4": "i", "i8": "q", "u1": "B", "u2": "H", "u4": "I", "u8": "Q",
                "f4": "f", "f8": "d", "b1": "?"}.get(self.typestr()[1:])  # fmt: skip
        if form is None:
            raise TypeError(f"{self.kind} of {self.bits} bits needs NumPy")
        data, row = self.bytes(), self.size * math.prod(self.shape)
        return [data[at : at + row].cast(form) for at in range(0, self.rows() * self.pitch, self.pitch)]

    def torch(self) -> Any:
        """All rows as one tensor, which does not keep them mapped: torch.from_dlpack(reader) does."""
        import torch

        if self.backend == CUDA:
            return torch.as_tensor(self, device=f"cuda:{self.device}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the array is read-only
            return torch.from_numpy(self._numbers())

    def cupy(self) -> Any:
        """All rows as one CuPy array, which does not keep them mapped: cupy.from_dlpack(reader) does.
        Only for a GPU's memory."""
        import cupy

        if self.backend != CUDA:
            raise TypeError("CuPy has no arrays of host memory")
        shape, strides = self.layout()
        with cupy.cuda.Device(self.device):
            memory = cupy.cuda.UnownedMemory(self.address, self.length(), self, self.device)
            return cupy.ndarray(shape, self.typestr(), cupy.cuda.MemoryPointer(memory, 0), strides=strides)

    def verify(self) -> bool:
        """Whether the sealed bytes have the digest that the owner sent."""
        if self.digest is None:
            raise ValueError("there is no digest")
        return hashlib.sha256(self.bytes()).digest() == self.digest
