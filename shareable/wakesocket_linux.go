package shareable

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// wakeSender is the owner's end of a wake socket. Each connection has one of its own. A
// byte in it tells the reader that something has changed since it read the socket empty.
// No other reader has it, so none can take the bytes or wake its threads.
type wakeSender struct {
	fd     int
	reader int // the other end, to be passed to the reader

	// A send of its own takes what the reader makes it take: it wakes all that the
	// reader has poll the socket.
	slow  atomic.Bool  // the last send took longer than slowSend
	state atomic.Int32 // of sendApart
	apart sync.WaitGroup
}

// newWakeSender makes a wake socket.
func newWakeSender() (*wakeSender, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, systemError("wake socket: socketpair", err)
	}
	w := &wakeSender{fd: fds[0], reader: fds[1]}
	// A few bytes fill it: for one that does not read, sends cost next to nothing. And
	// the reader can send nothing to this end, files above all.
	err = unix.SetsockoptInt(w.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
	if err == nil {
		err = unix.Shutdown(w.fd, unix.SHUT_RD)
	}
	if err != nil {
		w.close()
		return nil, systemError("wake socket: setsockopt, shutdown", err)
	}
	return w, nil
}

// yieldProcessor lets a reader run that has been woken. The kernel takes a send for the
// last thing that a thread does before it sleeps, and so puts the reader on the same
// processor.
func yieldProcessor() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// slowSend is far more than a send takes, which is some us.
const slowSend = time.Millisecond

// send tells the reader that something has changed. It never waits for the reader. If
// the socket is full, the reader knows already.
func (w *wakeSender) send() {
	begun := time.Now()
	_ = unix.Sendto(w.fd, []byte{0}, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	w.slow.Store(time.Since(begun) > slowSend)
}

// The states of sendApart.
const (
	apartIdle  = iota
	apartSends // a goroutine sends
	apartAgain // and has to send once more, since there was another change
)

// sendApart is send in a goroutine of its own, of which there is one at a time.
func (w *wakeSender) sendApart() {
	if w.state.Swap(apartAgain) != apartIdle {
		return
	}
	w.apart.Go(func() {
		for !w.state.CompareAndSwap(apartSends, apartIdle) {
			w.state.Store(apartSends)
			w.send()
		}
	})
}

// close closes both ends. Nothing may use them any more. A nil wakeSender is fine.
func (w *wakeSender) close() {
	if w == nil {
		return
	}
	w.apart.Wait()
	_, _ = unix.Close(w.fd), unix.Close(w.reader)
}

// wakeReceiver is the reader's end of a wake socket.
type wakeReceiver struct {
	f     *os.File
	raw   syscall.RawConn
	bytes [64]byte // of the wait that runs; they mean nothing
}

// openWakeReceiver makes a wakeReceiver of the owner's descriptor and takes it, unless
// it returns an error.
func openWakeReceiver(fd *wire.FD) (*wakeReceiver, error) {
	for _, want := range [][2]int{{unix.SO_DOMAIN, unix.AF_UNIX}, {unix.SO_TYPE, unix.SOCK_STREAM}} {
		is, err := unix.GetsockoptInt(fd.Int(), unix.SOL_SOCKET, want[0])
		if err != nil {
			return nil, fmt.Errorf("%w: wake socket: %w", ErrProtocol, err)
		}
		if is != want[1] {
			return nil, fmt.Errorf("%w: wake socket: option %d is %d instead of %d", ErrProtocol, want[0], is, want[1])
		}
	}
	if err := unix.SetNonblock(fd.Int(), true); err != nil { // for the runtime to wait for it
		return nil, fmt.Errorf("wake socket: %w", err)
	}
	f := os.NewFile(uintptr(fd.Take()), "wake socket")
	raw, err := f.SyscallConn()
	return &wakeReceiver{f: f, raw: raw}, err
}

// wait waits until something has changed, and reads the socket empty. It returns false
// once nothing more comes. One goroutine at a time calls it.
func (w *wakeReceiver) wait() bool {
	n := 0
	err := w.raw.Read(func(fd uintptr) bool {
		// The owner has a descriptor of this end, too, and can make it block.
		var failed error
		n, _, failed = unix.Recvfrom(int(fd), w.bytes[:], unix.MSG_DONTWAIT)
		return !errors.Is(failed, unix.EAGAIN) && !errors.Is(failed, unix.EINTR)
	})
	return err == nil && n > 0
}

// shutdown ends a wait, and has every later one return false. It never waits.
func (w *wakeReceiver) shutdown() {
	_ = w.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
}

// close ends a wait and waits for it. What the owner has put into the socket is closed, as
// long as that takes. A nil wakeReceiver is fine.
func (w *wakeReceiver) close() {
	if w != nil {
		w.shutdown()
		_ = w.f.Close()
	}
}
