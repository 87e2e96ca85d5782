"""Member shares the memory of a GPU with other processes, through a broker: vmmstored --budget.

    with Member("/run/user/1000/cuvmm/store.sock", "trainer", least=2 << 30, on_pressure=shrink) as m:
        with m.reserve(1 << 30):
            cache = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")

A member has a lease: so many bytes it may have. It implements the section "A budget" of
docs/reference/protocol.md, and needs cuvmm_reader.py and the standard library. Nothing keeps an
allocator below the lease: memory for which reserve did not ask is counted a second later at most.
"""

from __future__ import annotations

import contextlib
import os
import select
import struct
import sys
import threading
import time
import uuid as uuids
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from cuvmm_reader import Connection, Frame, OwnerGone, Payload, close_later, expect

__all__ = ["Member"]

JOIN, ASK, GAVE, LEAVE, DONE, LENT, DEMAND = 26, 27, 28, 29, 73, 79, 80
MAX_TEXT, NO_BOUND = 1024, 2**64 - 1
REDIAL, REPORT, PAUSE = 0.2, 1.0, 0.01  # seconds between two connections, reports, calls of on_pressure
STEP_PARTS, LEAST_STEP = 4, 2 << 20  # an ask is for a part more than is needed, so that the next one is rarer


def string(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data


class Member:
    """This process as a member of a device's budget. Safe for use in many threads. After a fork it is
    of the parent alone.

    path is the broker's socket. least is how many bytes are never taken from the process, and most
    how many it may have. device is the ordinal that PyTorch and CuPy use, and uuid the device's, as
    nvidia-smi prints it; None is that of the broker.

    on_pressure is called in a thread of its own with the bytes that others need, when emptying the
    allocator's cache is not enough. It frees memory, or has another thread do so and returns True. It
    is called again until enough is free or the time is up, unless it frees nothing and returns nothing.

    used returns how many bytes the process has. None is what the allocators of PyTorch and CuPy have,
    as far as those are imported. It must not wait for another thread that uses the member.

    token, uids and timeout are as for Reader."""

    def __init__(
        self,
        path: str,
        name: str,
        least: int = 0,
        most: Optional[int] = None,
        device: int = 0,
        uuid: Union[str, bytes, None] = None,
        on_pressure: Optional[Callable[[int], object]] = None,
        used: Optional[Callable[[], int]] = None,
        token: bytes = b"",
        uids: Optional[Iterable[int]] = None,
        timeout: float = 10.0,
    ) -> None:
        """Joins, and returns once the lease has what the process has already, and least. Raises
        OwnerGone, Refused or PermissionError if it cannot join, and MemoryError if others do not give
        enough."""
        self.name, self.least, self.most, self.device = name, least, NO_BOUND if most is None else most, device
        self._uuid = uuids.UUID(uuid[4:] if uuid[:4] in ("GPU-", "MIG-") else uuid).bytes if isinstance(uuid, str) else uuid
        self._on_pressure, self._used = on_pressure, used or self._allocated
        self._terms = self.least, self.most
        self._path, self._token, self._timeout = path, token, timeout
        self._uids = None if uids is None else set(uids)
        self._id, self._pid = os.urandom(16), os.getpid()
        self._changed = threading.Condition()  # guards what follows, and is held while a frame is sent
        self._conn: Optional[Connection] = None
        self._joined = self._closed = False
        self._error: Optional[Exception] = None  # why there is no connection
        self._lease = self._reported = self._number = 0
        self._ask: Optional[tuple[int, int, bytes]] = None  # number, bytes and payload of what reserve waits for
        self._answer = (0, "")  # the code and text that came for it
        self._held: dict[int, int] = {}  # the bytes of each block of reserve
        self._base = 0  # what the process has without those blocks, or more
        self._asking = threading.Lock()  # one reserve asks at a time
        self._turn = threading.Lock()  # one demand at a time calls on_pressure
        self._giver: Optional[threading.Thread] = None  # that has the turn
        self._thread = threading.Thread(target=self._run, name="cuvmm member", daemon=True)
        self._thread.start()
        try:
            with self._changed:
                if not self._changed.wait_for(lambda: self._joined or self._error, timeout):
                    raise TimeoutError(f"the broker at {path} does not answer")
                if self._error:
                    raise self._error
            with self.reserve(max(0, least - self._used()), timeout):
                pass
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Member:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def lease(self) -> int:
        """How many bytes the process may have."""
        return self._lease

    @property
    def error(self) -> Optional[Exception]:
        """Why there is no connection to a broker; None while there is one. The lease stays meanwhile."""
        return self._error

    @contextlib.contextmanager
    def reserve(self, size: int, timeout: float = 10.0) -> Iterator[None]:
        """Asks for a lease of size bytes beyond what the process has, for what the block allocates:

            with m.reserve(n): ...

        If the lease is short it first empties the allocator's cache. In the block the lease stays that
        high, the cache is not emptied, and no call of on_pressure begins. So be short, and capture a
        CUDA graph in a block.

        Raises MemoryError if others do not give enough, and TimeoutError without an answer."""
        number = self._borrow(size, timeout)
        try:
            yield
        finally:
            with self._changed:
                self._base += self._held.pop(number)

    def close(self) -> None:
        """Leaves the budget: what the process still has counts no more. Free it first. Twice is fine."""
        if os.getpid() != self._pid:
            return
        if threading.current_thread() is self._giver:
            raise RuntimeError("on_pressure must not close its member")
        with self._changed:
            conn, leaves, self._closed = self._conn, self._joined and not self._closed, True
            self._changed.notify_all()
            if conn and leaves:
                self._send(conn, LEAVE, b"", 1)
        self._thread.join(1 if leaves else 0)
        if conn:
            conn._shutdown()

    # What the process has.

    def _allocated(self) -> int:
        total, torch, cupy = 0, sys.modules.get("torch"), sys.modules.get("cupy")
        with contextlib.suppress(AttributeError):  # another thread is importing it
            total += torch.cuda.memory_reserved(self.device) if torch else 0
        with contextlib.suppress(AttributeError):
            if cupy:
                with cupy.cuda.Device(self.device):
                    total += cupy.get_default_memory_pool().total_bytes()
        return total

    def _empty(self) -> None:
        """Gives the cached memory of the allocators back to the driver."""
        torch, cupy = sys.modules.get("torch"), sys.modules.get("cupy")
        with contextlib.suppress(AttributeError):
            if torch:
                torch.cuda.empty_cache()
        with contextlib.suppress(AttributeError):
            if cupy:
                with cupy.cuda.Device(self.device):
                    cupy.get_default_memory_pool().free_all_blocks()

    # Asking.

    def _borrow(self, size: int, timeout: float) -> int:
        if os.getpid() != self._pid or threading.current_thread() is self._giver:
            raise RuntimeError("reserve is for the process that has joined, and not for on_pressure")
        until = time.monotonic() + timeout
        if not self._asking.acquire(timeout=timeout):
            raise TimeoutError("another reserve waits for the broker")
        try:
            with self._changed:
                return self._await(size, until)
        finally:
            self._asking.release()

    def _needs(self) -> int:
        """The lease that the process needs for what it has, and for what blocks of reserve allocate."""
        have = self._used()
        return max(have, min(have, self._base) + sum(self._held.values()))

    def _hold(self, number: int, size: int) -> bool:
        """Begins a block of reserve, if the lease is high enough."""
        if self._needs() + size > self._lease:
            return False
        if not self._held:
            self._base = self._used()
        self._held[number] = size
        return True

    def _await(self, size: int, until: float) -> int:
        try:
            while not self._closed:
                self._number += 1
                number = self._number
                if self._hold(number, size) or self._empty_unless_held() and self._hold(number, size):
                    return number
                need = self._needs() + size
                want = max(need, min(self.most, need + max(need // STEP_PARTS, LEAST_STEP)))
                self._ask, self._answer = (number, size, struct.pack("<IIQQQ", number, 1, need, want, self._used())), (0, "")
                if self._conn and self._joined:
                    self._send(self._conn, ASK, self._ask[2])
                if not self._changed.wait_for(lambda: self._ask is None or self._closed, until - time.monotonic()):
                    raise TimeoutError(f"the broker has not answered: {self._error}")
                code, text = self._answer
                if number in self._held:
                    return number
                if code:
                    raise MemoryError(text)
            raise ValueError("the member is closed")
        finally:
            self._ask = None  # what is lent later counts all the same

    # The connection.

    def _run(self) -> None:
        while not self._closed:
            conn = Connection(self._timeout)
            try:
                self._follow(conn)
            except Exception as e:
                with self._changed:
                    self._conn, self._joined, self._error = None, False, e
                    self._changed.notify_all()
            conn._shutdown()
            close_later(conn.sock.close)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, REDIAL)

    def _follow(self, conn: Connection) -> None:
        """Joins over a new connection, and handles its frames until it ends."""
        hello = conn._connect(self._path, self._token, self._uids)
        with self._changed:
            if self._closed:
                return
            self._conn, self._uuid, self._reported = conn, self._uuid or hello.uuid, self._used()
            terms = (self._lease, self._reported, *self._terms)
            self._send(conn, JOIN, struct.pack("<16s16sQQQQ", self._uuid, self._id, *terms) + string(self.name.encode()))
        watch = select.poll()
        watch.register(conn.sock, select.POLLIN)
        due = time.monotonic() + REPORT
        while True:
            if watch.poll(max(0.0, due - time.monotonic()) * 1000):
                with conn._receive() as frame:
                    self._do(conn, frame)
            if time.monotonic() >= due:
                due = time.monotonic() + REPORT
                self._report(conn)

    def _send(self, conn: Connection, kind: int, payload: bytes, request: int = 0) -> None:
        try:
            conn._send(kind, payload, request)
        except OSError:
            conn._shutdown()  # the thread that reads connects again

    def _report(self, conn: Connection) -> None:
        with self._changed:
            have = self._used()
            if self._closed or not self._joined:
                return
            if have > self._lease:  # the allocator took memory unasked: it is to count if it is idle
                self._number += 1
                self._send(conn, ASK, struct.pack("<IIQQQ", self._number, 0, have, have, have))
            elif have != self._reported:
                self._gave(conn, 0, 0, have, "")
            self._reported = have

    def _gave(self, conn: Connection, number: int, given: int, have: int, why: str) -> None:
        text = why.encode(errors="replace")[:MAX_TEXT].decode(errors="ignore").encode()
        self._send(conn, GAVE, struct.pack("<IIQQ", number, 0, given, have) + string(text))

    def _do(self, conn: Connection, frame: Frame) -> None:
        p = Payload(frame.payload)
        if frame.type == LENT:
            self._lent(conn, p)
        elif frame.type == DEMAND:
            number, soft, within, zero, target = p.unpack("IIIIQ")
            p.end()
            expect(soft in (0, 1) and zero == 0, "a demand that is neither soft nor hard")
            args = (conn, number, bool(soft), time.monotonic() + within / 1000, target)
            threading.Thread(target=self._give, args=args, name="cuvmm demand", daemon=True).start()
        elif frame.type == DONE:  # the reply to LEAVE
            raise OwnerGone("the member is closed")
        else:
            conn._check_end(frame)

    def _lent(self, conn: Connection, p: Payload) -> None:
        number, code, more, least, most = p.unpack("IIQQQ")
        text = p.string(MAX_TEXT).decode(errors="replace")
        p.end()
        with self._changed:
            if self._joined:
                self._lease += more
            else:  # the reply to JOIN: the lease that the broker knows of
                self._lease, self._joined, self._error = min(self._lease, more), True, None
                if self._ask:  # over a connection of before
                    self._send(conn, ASK, self._ask[2])
            self.least, self.most = least, most or NO_BOUND
            if self._ask and number == self._ask[0]:
                if code == 0:
                    self._hold(number, self._ask[1])  # else a GAVE has crossed the LENT, and reserve asks again
                self._ask, self._answer = None, (code, text)
            self._changed.notify_all()

    # Giving.

    def _give(self, conn: Connection, number: int, soft: bool, until: float, target: int) -> None:
        """Replies to a demand. What it gives is counted here, whatever on_pressure says."""
        why = ""
        if not self._turn.acquire(blocking=False):
            why = "it is giving already"
        else:
            self._giver = threading.current_thread()
            try:
                why = self._free(soft, until, target)
            except Exception as e:  # of on_pressure
                why = f"{type(e).__name__}: {e}"
            finally:
                self._giver = None
                self._turn.release()
        with self._changed:
            if conn is not self._conn or not self._joined or self._closed:
                return  # the next JOIN says what the lease is
            have, given = self._used(), max(0, self._lease - max(target, self._needs()))
            self._lease -= given
            self._reported = have
            self._gave(conn, number, given, have, why)

    def _free(self, soft: bool, until: float, target: int) -> str:
        """Frees memory until the process has target bytes or less. Returns why it may be more."""
        if self._used() <= target:
            return ""
        if not self._empty_unless_held():
            return "it is allocating"
        while not soft and (have := self._used()) > target:
            if not self._on_pressure:
                return "it has no on_pressure"
            if time.monotonic() >= until:
                return "its time is up"
            more = self._on_pressure(have - target)
            if not self._empty_unless_held():
                return "it is allocating"
            if self._used() >= have:
                if not more:
                    return "on_pressure frees no more"
                time.sleep(PAUSE)
        return ""

    def _empty_unless_held(self) -> bool:
        with self._changed:  # so that no block of reserve begins meanwhile
            if not self._held:
                self._empty()
            return not self._held
