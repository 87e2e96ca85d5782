#!/usr/bin/env python3
"""Records what PyTorch's caching allocator is asked for while a small model is trained.

    python3 record.py training.trace.gz

The file is a trace in RMM's form, as package internal/trace reads it. It needs PyTorch and a GPU with 24 GiB.
"""

import gzip
import random
import sys

import torch
from torch import nn

HEADER = "Thread,Time,Action,Pointer,Size,Stream"
WIDTH, LAYERS, HEADS, WORDS, BATCH, STEPS = 1536, 8, 12, 32_000, 8, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], device=x.device)
        return self.head(self.layers(self.embed(x), mask=mask, is_causal=True))


def train():
    """Trains on batches of another length each; every eighth is only evaluated."""
    copies = torch.cuda.Stream()
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        length = 8 * random.randint(16, 128)
        with torch.cuda.stream(copies):
            batch = torch.randint(WORDS, (BATCH, length)).pin_memory().cuda(non_blocking=True)
        torch.cuda.current_stream().wait_stream(copies)
        batch.record_stream(torch.cuda.current_stream())
        train_this = step % 8 != 7
        with torch.set_grad_enabled(train_this), torch.autocast("cuda", torch.bfloat16):
            words = model(batch[:, :-1])
            loss = nn.functional.cross_entropy(words.flatten(0, 1).float(), batch[:, 1:].flatten())
        del words
        if train_this:
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        print(f"step {step}: length {length}, loss {loss.item():.2f}", file=sys.stderr)
        torch.cuda.synchronize()


def convert(events):
    """Yields the lines of a trace. A block is freed when the program asks for it."""
    live, streams = {}, {}
    for event in events:
        action, addr, size = event["action"], event["addr"], event["size"]
        stream = streams.setdefault(event["stream"], len(streams))
        if action == "alloc" and size > 0:
            live[addr] = (size, stream)
            yield line("allocate", addr, size, stream)
        elif action == "free_requested" and addr in live:
            yield line("free", addr, live.pop(addr)[0], stream)
    for addr, (size, stream) in live.items():
        yield line("free", addr, size, stream)


def line(action, addr, size, stream):
    return f"1,00:00:00.000000,{action},{addr:#x},{size},{f'{stream:#x}' if stream else 0}"


def main():
    random.seed(16)
    torch.manual_seed(16)
    torch.cuda.init()
    torch.cuda.memory._record_memory_history(context=None, max_entries=10_000_000)
    train()
    events = torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    lines = [HEADER, *convert(events)]
    with open(sys.argv[1], "wb") as f, gzip.GzipFile("", "wb", 9, f, mtime=0) as z:
        z.write(("\n".join(lines) + "\n").encode())
    peak = torch.cuda.memory_stats()["allocated_bytes.all.peak"], torch.cuda.memory_stats()["reserved_bytes.all.peak"]
    print(f"{len(lines) - 1} operations; PyTorch's peaks: {peak[0]} bytes allocated, {peak[1]} reserved", file=sys.stderr)


if __name__ == "__main__":
    main()
