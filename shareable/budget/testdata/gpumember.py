"""A member of a budget that computes with PyTorch or CuPy on a GPU, and does what it is told: gpumember.py SOCKET LIBRARY BLOCK.

Each line of the input is a word and a number of bytes, each line of the output the state after it. What it has are
blocks of BLOCK bytes, each full of its own number, and memory that it keeps: a pattern, and with PyTorch a tensor to which
a captured graph adds 1 in each round.
"""

import importlib
import json
import sys
import time

path, name, block = sys.argv[1], sys.argv[2], int(sys.argv[3])
lib = importlib.import_module(name)
sys.path.insert(0, "../../examples/python")
from cuvmm_member import Member  # noqa: E402

on = {"device": "cuda"} if name == "torch" else {}
pressed = number = rounds = 0
blocks = []


def synchronize():
    if name == "torch":
        lib.cuda.synchronize()
    else:
        lib.cuda.get_current_stream().synchronize()


def press(size):
    """Drops the newest blocks. A block of which a check is under way is still referenced, and goes later."""
    global pressed
    pressed += 1
    drop(size)


def drop(size):
    while blocks and size > 0:
        blocks.pop()
        size -= block


def grow(to):
    global number
    while len(blocks) * block < to:
        with m.reserve(block):
            number += 1
            blocks.append((number, lib.full((block // 8,), number, dtype=lib.int64, **on)))
            synchronize()


def verify():
    """Reads every byte. The reductions need little memory, for which the budget has a reserve."""
    global rounds
    host = pattern.cpu() if name == "torch" else pattern.get()
    assert bool((host == expected).all()), "the pattern has changed"
    for value, x in list(blocks):
        assert int(x.min()) == value == int(x.max()), f"block {value} has changed"
    if graph:
        graph.replay()
        rounds += 1
        assert int(counter.min()) == rounds == int(counter.max()), f"the graph does not add: {int(counter.min())}, and not {rounds}"
    synchronize()


with Member(path, name, on_pressure=press) as m:
    graph = None
    with m.reserve(512 << 20):
        pattern = lib.arange(8 << 20, dtype=lib.int64, **on)
        if name == "torch":
            expected, counter = lib.arange(8 << 20, dtype=lib.int64), lib.zeros(8 << 20, dtype=lib.int64, **on)
            counter.add_(1)
            synchronize()
            graph = lib.cuda.CUDAGraph()
            with lib.cuda.graph(graph):
                counter.add_(1)
            rounds = 1
        else:
            import numpy

            expected = numpy.arange(8 << 20)
        verify()
    print("{}", flush=True)
    for line in sys.stdin:
        word, size = line.split()
        text, begin = "", time.monotonic()
        try:
            {"grow": grow, "drop": drop, "verify": lambda _: verify()}[word](int(size))
        except (MemoryError, RuntimeError, AssertionError) as e:
            text = f"{type(e).__name__}: {e}"
        took = time.monotonic() - begin
        state = {"Err": text, "Took": took, "Blocks": len(blocks), "Pressed": pressed, "Lease": m.lease}
        print(json.dumps(state), flush=True)
    drop(1 << 60)
