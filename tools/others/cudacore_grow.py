"""Grows a buffer of cuda.core's VirtualMemoryResource to 8 GiB by 64 MiB.

Beside `cuda.test -test.run 'TestAgainstCGrowth$/cold-steps'`, which grows a range by new memory.
Prints milliseconds, and how often the address changed.
"""

import statistics
import time
import traceback

import cuda.core
from cuda.core import Device, VirtualMemoryResource, VirtualMemoryResourceOptions

STEP, TOTAL = 64 << 20, 8 << 30


def grow(resource):
    begun = time.perf_counter()
    b = resource.allocate(STEP)
    size, moved, at = STEP, 0, int(b.handle)
    while size < TOTAL:
        size += STEP
        b = resource.modify_allocation(b, size)
        if int(b.handle) != at:
            moved, at = moved + 1, int(b.handle)
    took = (time.perf_counter() - begun) * 1e3
    b.close()
    return took, moved


print("cuda.core", cuda.core.__version__)
device = Device(0)
device.set_current()
for handle in "posix_fd", None:
    try:
        resource = VirtualMemoryResource(device, VirtualMemoryResourceOptions(handle_type=handle))
        all = [grow(resource) for _ in range(7)]
        took = [t for t, _ in all]
        print(f"handle type {handle}: {statistics.median(took):.1f} ({min(took):.1f} to {max(took):.1f}), moved {all[0][1]} times")
    except Exception:
        print("handle type", handle)
        traceback.print_exc(limit=4)
