"""Shares memory of CUDA's pools with a process of package ipc.

    pool.py open-block TOKEN SIZE     imports the pool of descriptor 3, and a block of it
    pool.py make-pool SIZE            makes a pool, and sends it by the socket that is descriptor 3

What opens prints the first byte that it finds, and sets all to 8. What makes sets all to 5, and
prints the token; after a line of input it prints the first byte.
"""

import array
import base64
import ctypes
import socket
import sys

from cuda.bindings import driver as cu

FD = cu.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
INHERITED = 3
STREAM = cu.CUstream(0)


def call(result):
    """Returns what a call returns beside its error."""
    if result[0] != cu.CUresult.CUDA_SUCCESS:
        sys.exit(f"{result[0]!r}")
    return result[1] if len(result) > 1 else None


def first(ptr):
    byte = (ctypes.c_ubyte * 1)()
    call(cu.cuMemcpyDtoH(ctypes.addressof(byte), ptr, 1))
    return byte[0]


def fill(ptr, value, size):
    call(cu.cuMemsetD8(ptr, value, size))
    call(cu.cuCtxSynchronize())


def say(text):
    print(text, flush=True)


def open_block(token, size):
    pool = call(cu.cuMemPoolImportFromShareableHandle(INHERITED, FD, 0))
    data = cu.CUmemPoolPtrExportData()
    data.reserved = base64.b64decode(token)
    ptr = call(cu.cuMemPoolImportPointer(pool, data))
    say(first(ptr))
    fill(ptr, 8, size)
    call(cu.cuMemFreeAsync(ptr, STREAM))
    call(cu.cuStreamSynchronize(STREAM))
    call(cu.cuMemPoolDestroy(pool))


def make_pool(size):
    where = cu.CUmemLocation()
    where.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    where.id = 0
    props = cu.CUmemPoolProps()
    props.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    props.handleTypes = FD
    props.location = where
    pool = call(cu.cuMemPoolCreate(props))
    ptr = call(cu.cuMemAllocFromPoolAsync(size, pool, STREAM))
    fill(ptr, 5, size)
    fd = int(call(cu.cuMemPoolExportToShareableHandle(pool, FD, 0)))
    rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))
    with socket.socket(fileno=INHERITED) as s:
        s.sendmsg([b"\1"], [rights])
    data = call(cu.cuMemPoolExportPointer(ptr))
    say(base64.b64encode(bytes(data.reserved)).decode())
    sys.stdin.readline()
    say(first(ptr))
    call(cu.cuMemFreeAsync(ptr, STREAM))
    call(cu.cuStreamSynchronize(STREAM))
    call(cu.cuMemPoolDestroy(pool))


def main():
    role, *args = sys.argv[1:]
    args[-1] = int(args[-1])
    call(cu.cuInit(0))
    context = call(cu.cuDevicePrimaryCtxRetain(call(cu.cuDeviceGet(0))))
    call(cu.cuCtxSetCurrent(context))
    roles = {"open-block": open_block, "make-pool": make_pool}
    roles[role](*args)


main()
