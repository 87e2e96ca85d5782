//go:build linux

package silentfs

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// File returns a descriptor of a file whose attributes only the daemon knows. A call
// that asks for them waits until end is called; then it fails. The test's end calls
// end, and closes the descriptor. With flush each close of a descriptor of the file
// waits for the daemon too, also that at the end of a process. File skips the test where
// it may not mount.
func File(tb testing.TB, flush bool) (fd int, end func()) {
	tb.Helper()
	if os.Geteuid() != 0 {
		tb.Skip("needs root, to mount a file system")
	}
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		tb.Skipf("needs /dev/fuse: %v", err)
	}
	end = sync.OnceFunc(func() { _ = unix.Close(dev) }) // the kernel fails what waits
	tb.Cleanup(end)
	served := make(chan error, 1)
	fd, err = openFile(dev, tb.TempDir(), func() {
		err := serve(dev, flush)
		if err != nil {
			end() // or the opening would wait
		}
		served <- err
	})
	select {
	case err := <-served:
		if err != nil {
			tb.Fatal(err)
		}
	default: // nothing was mounted, or serve is about to return
	}
	if err != nil {
		tb.Skipf("needs a FUSE mount: %v", err)
	}
	tb.Cleanup(func() {
		end() // or close would wait, too
		_ = unix.Close(fd)
	})
	return fd, end
}

// openFile opens a file of a file system that serve serves. The mount is in a
// namespace of one thread and goes with it, so no other program meets it.
func openFile(dev int, dir string, serve func()) (int, error) {
	type result struct {
		fd  int
		err error
	}
	opened := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if err := mount(dev, dir); err != nil {
			opened <- result{-1, err}
			return
		}
		go serve()
		fd, err := unix.Open(filepath.Join(dir, "file"), unix.O_RDWR|unix.O_CLOEXEC, 0)
		opened <- result{fd, err}
	}()
	r := <-opened
	return r.fd, r.err
}

// mount mounts the file system of dev at dir, for the calling thread only.
func mount(dev int, dir string) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", dev)
	return unix.Mount("silent", dir, "fuse", unix.MS_NODEV|unix.MS_NOSUID, options)
}

// The part of the FUSE protocol (linux/fuse.h) that leads to an open file.
const (
	opLookup = 1
	opOpen   = 14
	opInit   = 26

	noFlush = 1 << 5 // close does not wait for a reply

	headerIn    = 40 // bytes before a request's body
	protocol    = 7
	minor       = 31
	requestSize = 1 << 17 // at least what the kernel wants room for
)

// serve replies until the file is open, and to nothing after that. The requests that
// come then stay with the kernel, so what waits for them can be killed.
func serve(dev int, flush bool) error {
	request := make([]byte, requestSize)
	order := binary.NativeEndian
	for {
		n, err := unix.Read(dev, request)
		if err != nil {
			return fmt.Errorf("read a FUSE request: %w", err)
		}
		if n < headerIn {
			return fmt.Errorf("a FUSE request of %d bytes", n)
		}
		op, id := order.Uint32(request[4:]), order.Uint64(request[8:])
		var errno unix.Errno
		var body []byte
		switch op {
		case opInit:
			body = make([]byte, 64)
			order.PutUint32(body[0:], protocol)
			order.PutUint32(body[4:], minor)
			order.PutUint32(body[20:], 1<<16) // the largest write
		case opLookup:
			// An entry without times is valid for none: each question comes here.
			body = make([]byte, 40+88)
			order.PutUint64(body[0:], 2)                      // the node
			order.PutUint64(body[40:], 2)                     // its number
			order.PutUint64(body[48:], 4096)                  // its size
			order.PutUint32(body[40+60:], unix.S_IFREG|0o600) // its mode
			order.PutUint32(body[40+64:], 1)                  // its links
		case opOpen:
			body = make([]byte, 16)
			if !flush {
				order.PutUint32(body[8:], noFlush)
			}
		default:
			errno = unix.ENOSYS
		}
		reply := make([]byte, 16, 16+len(body))
		order.PutUint32(reply[0:], uint32(16+len(body)))
		order.PutUint32(reply[4:], uint32(-int32(errno)))
		order.PutUint64(reply[8:], id)
		if _, err := unix.Write(dev, append(reply, body...)); err != nil {
			return fmt.Errorf("reply to FUSE request %d: %w", op, err)
		}
		if op == opOpen {
			return nil
		}
	}
}
