"""Plays the roles of ipcroles with the CUDA runtime's own calls, beside processes in Go.

    python3 roles.py main DIR [COUNT]      allocates numbers, sets all to 1, and prints what others make of them
    python3 roles.py memory DIR [COUNT]    sets them to 8 by copying
    python3 roles.py rtc DIR [COUNT]       adds 3 to each by a kernel that is compiled here

DIR is the -dir of ipcroles, and COUNT its -count. It needs cuda-bindings, and uses the first GPU.
A handle is the first line of its file; this program reads no more of it, and writes no more.
Nothing runs on the GPU when a turn ends here, so no event is needed; main makes the two that
processes in Go use.
"""

import array
import base64
import contextlib
import ctypes
import errno
import hashlib
import os
import signal
import socket
import stat
import sys

from cuda.bindings import driver, nvrtc
from cuda.bindings import runtime as rt

# As in owner.go and turn.go.
MEMORY, READY, FINISHED, TURNS = "memory.handle", "ready.handle", "finished.handle", "turns.sock"
TURN_TIME = 10  # seconds for each read and write of a turn
YOUR_TURN, HAS_QUEUED, SEEN = "your turn\n", " has queued its work\n", "seen\n"

SOURCE = b"""
extern "C" __global__ void add(int *x, unsigned long long n, int what)
{
    unsigned long long i = (unsigned long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n)
        x[i] += what;
}
"""


def call(result):
    """What a call returns beside its error, which ends the program."""
    if int(result[0]) != 0:
        sys.exit(f"{result[0]!r}")
    return result[1] if len(result) > 1 else None


def write_handle(path, handle):
    """Whoever can read the file can use the memory, so no other user may."""
    fd = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(fd, "wb") as f:
        f.write(base64.b64encode(bytes(handle.reserved)) + b"\n")
    os.replace(path + ".new", path)


def read_handle(path, handle):
    with open(path, "rb") as f:
        handle.reserved = base64.b64decode(f.readline())
    return handle


def copy_in(ptr, value, count):
    numbers = array.array("i", [value]) * count
    call(rt.cudaMemcpy(ptr, numbers.buffer_info()[0], 4 * count, rt.cudaMemcpyKind.cudaMemcpyHostToDevice))


def show(after, ptr, count):
    numbers = array.array("i", [0]) * count
    call(rt.cudaMemcpy(numbers.buffer_info()[0], ptr, 4 * count, rt.cudaMemcpyKind.cudaMemcpyDeviceToHost))
    print(f"after {after} all {count} numbers are {' or '.join(map(str, sorted(set(numbers))))}", flush=True)


def lock(directory):
    """As lockDirectory in owner.go: no second main can have this name."""
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind("\0ipcroles-" + hashlib.sha256(os.fsencode(os.path.realpath(directory))).hexdigest())
    except OSError as err:
        if err.errno != errno.EADDRINUSE:
            raise
        sys.exit(f"another main is there: {directory}: {err}")
    return name


class End:
    """Ends main at the first SIGINT or SIGTERM. wanted stays set if another exception replaces KeyboardInterrupt."""

    def __init__(self):
        self.wanted = False
        for number in signal.SIGINT, signal.SIGTERM:
            signal.signal(number, self.end)

    def end(self, *_):
        self.wanted = True
        raise KeyboardInterrupt


def play_main(directory, count):
    files = [os.path.join(directory, name) for name in (TURNS, MEMORY, READY, FINISHED)]
    with lock(directory), socket.socket(socket.AF_UNIX) as listener:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(os.lstat(files[0]).st_mode):
                sys.exit(f"{files[0]} is there and is not a socket")
            os.remove(files[0])  # of a main that was killed
        listener.bind(files[0])
        end = End()
        try:
            listener.listen()
            ptr = call(rt.cudaMalloc(4 * count))
            copy_in(ptr, 1, count)
            flags = rt.cudaEventDisableTiming | rt.cudaEventInterprocess
            ready, finished = (call(rt.cudaEventCreateWithFlags(flags)) for _ in range(2))
            write_handle(files[1], call(rt.cudaIpcGetMemHandle(ptr)))
            write_handle(files[2], call(rt.cudaIpcGetEventHandle(ready)))
            write_handle(files[3], call(rt.cudaIpcGetEventHandle(finished)))
            show("main", ptr, count)
            with contextlib.suppress(KeyboardInterrupt):
                while not end.wanted:
                    with contextlib.suppress(OSError):  # a process that has gone, or takes too long
                        give_turn(listener.accept()[0], finished, ptr, count)
            call(rt.cudaEventDestroy(ready))
            call(rt.cudaEventDestroy(finished))
            call(rt.cudaFree(ptr))
        finally:
            for path in files:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)


def give_turn(connection, finished, ptr, count):
    connection.settimeout(TURN_TIME)
    with connection, connection.makefile("rw", encoding="ascii", errors="replace") as lines:
        print(YOUR_TURN, end="", file=lines, flush=True)
        name = lines.readline(100).removesuffix(HAS_QUEUED)
        if name not in ("memory", "rtc"):
            return  # it has ended, or is none of the roles
        call(rt.cudaEventSynchronize(finished))
        show(name, ptr, count)
        print(SEEN, end="", file=lines, flush=True)
        lines.readline(100)  # until it has closed the memory


def take_turn(name, directory, count, work):
    with socket.socket(socket.AF_UNIX) as s:
        try:
            s.connect(os.path.join(directory, TURNS))
        except (FileNotFoundError, ConnectionRefusedError):
            sys.exit("main is gone")
        with s.makefile("rw", encoding="ascii") as lines:
            expect(lines, YOUR_TURN)
            handle = read_handle(os.path.join(directory, MEMORY), rt.cudaIpcMemHandle_t())
            ptr = call(rt.cudaIpcOpenMemHandle(handle, rt.cudaIpcMemLazyEnablePeerAccess))
            work(ptr)
            call(rt.cudaDeviceSynchronize())
            print(name, end=HAS_QUEUED, file=lines, flush=True)
            expect(lines, SEEN)
            call(rt.cudaIpcCloseMemHandle(ptr))
    print(f"{name} has changed {count} numbers on cuda:0")


def expect(lines, line):
    if lines.readline() != line:
        sys.exit("main is gone")


def play_memory(directory, count):
    take_turn("memory", directory, count, lambda ptr: copy_in(ptr, 8, count))


def play_rtc(directory, count):
    add = compile_add()  # before the turn, which others wait for

    def work(ptr):
        args = ((ptr, count, 3), (ctypes.c_void_p, ctypes.c_ulonglong, ctypes.c_int))
        call(driver.cuLaunchKernel(add, (count + 255) // 256, 1, 1, 256, 1, 1, 0, 0, args, 0))

    take_turn("rtc", directory, count, work)


def compile_add():
    attribute = rt.cudaDeviceAttr
    major = call(rt.cudaDeviceGetAttribute(attribute.cudaDevAttrComputeCapabilityMajor, 0))
    minor = call(rt.cudaDeviceGetAttribute(attribute.cudaDevAttrComputeCapabilityMinor, 0))
    program = call(nvrtc.nvrtcCreateProgram(SOURCE, b"add.cu", 0, [], []))
    options = [f"--gpu-architecture=sm_{major}{minor}".encode()]
    call(nvrtc.nvrtcCompileProgram(program, len(options), options))
    code = b" " * call(nvrtc.nvrtcGetCUBINSize(program))
    call(nvrtc.nvrtcGetCUBIN(program, code))
    return call(driver.cuModuleGetFunction(call(driver.cuModuleLoadData(code)), b"add"))


def main():
    role, directory, *count = sys.argv[1:]
    roles = {"main": play_main, "memory": play_memory, "rtc": play_rtc}
    call(rt.cudaSetDevice(0))
    call(rt.cudaFree(0))  # has the device's primary context made
    roles[role](directory, int(count[0]) if count else 1 << 20)


main()
