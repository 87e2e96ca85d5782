"""Grows a PyTorch tensor to 8 GiB by 64 MiB: a new tensor, a copy, and the old one freed.

Beside `cuda.test -test.run 'TestAgainstCGrowth$/warm-steps'`, which grows a range. For expandable
segments set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.

"empty" begins each growth with an empty cache of the allocator, "kept" with the memory of the
growth before. Times are milliseconds, from an idle device to an idle device.
"""

import os
import statistics
import time

import torch

STEP, TOTAL = 64 << 20, 8 << 30


def grow():
    x = torch.empty(STEP, dtype=torch.uint8, device="cuda")
    while x.numel() < TOTAL:
        longer = torch.empty(x.numel() + STEP, dtype=torch.uint8, device="cuda")
        longer[: x.numel()].copy_(x)
        x = longer
    return x


def timed(times, keep):
    took = []
    for _ in range(times):
        if not keep:
            torch.cuda.empty_cache()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        x = grow()
        torch.cuda.synchronize()
        took.append((time.perf_counter() - begun) * 1e3)
        del x
    return f"{statistics.median(took):.1f} ({min(took):.1f} to {max(took):.1f}, {times} times)"


print("torch", torch.__version__, os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "by default"))
grow()
print("empty", timed(7, keep=False))
print("peak of reserved memory", torch.cuda.max_memory_reserved() >> 20, "MiB")
print("kept ", timed(15, keep=True))
