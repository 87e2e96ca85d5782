"""Follows an object of another process: python3 follow.py PATH NAME

After each growth, and after the owner took rows back, it prints "length N sum S":
the number of rows, and the sum of all their elements as one array. It ends with
status 0 when the object is sealed or deleted, or after --count such lines, and
with status 3 when the owner is gone.
"""

from __future__ import annotations

import argparse
import importlib
import pwd
import sys
from typing import Any, Optional

from cuvmm_reader import CUDA, OwnerGone, Reader


def total(reader: Reader, library: Optional[str]) -> Any:
    """The sum of all elements, computed where the memory is."""
    if library == "torch":
        import torch

        t = reader.torch()
        if t.data_ptr() != reader.address:
            raise RuntimeError("PyTorch made a copy")
        return t.sum(dtype=torch.float64 if t.is_floating_point() else None).item()
    if library == "cupy":
        a = reader.cupy()
        return a.sum(dtype="f8" if a.dtype.kind == "f" else None).item()
    a = reader.array()
    if isinstance(a, list):
        return sum(sum(row) for row in a)
    return a.sum(dtype="f8" if a.dtype.kind == "f" else None).item()


def follow(reader: Reader, library: Optional[str], count: int) -> None:
    def say(text: str) -> None:
        print(text, flush=True)

    reader.on_retire = lambda left: say(f"retire to {left // reader.pitch}")
    if reader.backend == CUDA and not library:
        raise SystemExit("the object is in a GPU's memory: use --torch or --cupy")
    shown = 0
    while True:
        rows = reader.rows()
        if rows != shown:
            shown = rows
            say(f"length {rows} sum {total(reader, library) if rows else 0}")
            count -= 1
            if count == 0:
                return
        if reader.sealed is not None and reader.length() == reader.sealed and reader.rows() == shown:
            say(f"sealed at {shown}")
            return
        if reader.deleted:
            say(f"deleted at {reader.rows()}")
            return
        reader.step(1)


def user_id(user: str) -> int:
    """The id of a user by number or name."""
    return int(user) if user.isdecimal() else pwd.getpwnam(user).pw_uid


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("path", help="the owner's socket")
    p.add_argument("name", help="the object")
    p.add_argument("--count", type=int, default=0, help="number of lines to print; 0 is no limit")
    p.add_argument("--owner", action="append", metavar="USER", help="a user, by name or id, whom the owner may run as; may be repeated (default: this user and root)")
    p.add_argument("--unsealed", action="store_true", help="also an object of a store that is not sealed")
    secret = p.add_mutually_exclusive_group()
    secret.add_argument("--token", default="", help="the owner's shared secret, which other users see in the list of processes")
    secret.add_argument("--token-file", metavar="FILE", help="a file with that secret")
    which = p.add_mutually_exclusive_group()
    for library in ("torch", "cupy"):
        which.add_argument("--" + library, dest="library", action="store_const", const=library)
    args = p.parse_args()
    if args.library:  # the import takes seconds, longer than an owner waits
        importlib.import_module(args.library)
    token = args.token.encode()
    if args.token_file:
        with open(args.token_file, "rb") as f:
            token = f.read().strip()
        if not token:
            p.error(f"--token-file {args.token_file} has no secret")
    try:
        uids = [user_id(u) for u in args.owner] if args.owner else None
    except KeyError as e:
        p.error(f"--owner: {e.args[0]}")
    try:
        with Reader(args.path, args.name, token=token, unsealed=args.unsealed, uids=uids) as reader:
            try:
                follow(reader, args.library, args.count)
            except OwnerGone as e:
                print(f"{e}; length {reader.rows()} stays", flush=True)
                return 3
    except OwnerGone as e:
        print(e, flush=True)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
