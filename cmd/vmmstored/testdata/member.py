"""A member of a budget in Python that does what it is told, with an allocator that only counts: member.py SOCKET NAME LEAST."""

import json
import os
import random
import sys
import threading
import time
import types

live = cached = pressed = granted = nested = 0
lock = threading.RLock()  # of live and cached


def empty_cache():
    global cached
    with lock:
        cached = 0


cuda = types.SimpleNamespace(memory_reserved=lambda device: live + cached, empty_cache=empty_cache)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
sys.path.insert(0, "../../examples/python")
from cuvmm_member import Member  # noqa: E402


def press(size):
    global pressed
    pressed += 1
    if nested:
        with m.reserve(1):
            pass
    drop(size)


def drop(size):
    global live, cached
    with lock:
        size = min(size, live)
        live, cached = live - size, cached + size


def storm(seconds):
    """Threads that allocate and drop. What the process has is never above the lease."""
    until, wrong = time.monotonic() + seconds, []

    def work():
        global live, granted
        while time.monotonic() < until:
            size = random.randrange(1, 16 << 20)
            try:
                with m.reserve(size):
                    time.sleep(random.random() * 0.002)
                    with m._changed, lock:
                        live += size
                        granted += 1
                        if live + cached > m.lease:
                            wrong.append((live, cached, size, m.lease))
            except MemoryError:
                drop(size)
            if random.random() < 0.3:
                drop(2 * size)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong, wrong[:3]


def do(word, size):
    global live, nested
    if word == "allocate":
        with m.reserve(size):
            assert m.lease >= live + cached + size
            with lock:
                live += size
    elif word == "take":  # unasked
        live += size
    elif word == "drop":
        drop(size)
    elif word == "nest":
        nested = size
    elif word == "storm":
        storm(size / 1000)
    elif word == "fork":  # the child has the connection, too
        if os.fork() == 0:
            m.close()
            try:
                with m.reserve(1):
                    os._exit(1)
            except RuntimeError:
                os._exit(0)
        assert os.wait()[1] == 0
    elif word == "close":
        m.close()


m = Member(sys.argv[1], sys.argv[2], least=int(sys.argv[3]), on_pressure=press)
print("{}", flush=True)
for line in sys.stdin:
    word, size = line.split()
    text = ""
    try:
        do(word, int(size))
    except MemoryError as e:
        text = str(e)
    print(json.dumps({"Err": text, "Lease": m.lease, "Used": live + cached, "Pressed": pressed, "Granted": granted}), flush=True)
