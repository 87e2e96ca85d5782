package socket

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Kept is a server's socket in a process that serves nothing itself.
type Kept struct {
	Path  string
	Files []*os.File // for the process that serves: the listener, and the lock file if there is one

	listener *Listener
}

// Keep makes a socket at path, which is as for Path. The caller must Close it.
func Keep(path string, o Options) (*Kept, error) {
	path, err := Path(path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := Listen(path, o)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return keep(l)
}

// KeepListener is Keep of a socket of the kind "unixpacket" that another process has made, such as
// systemd, and that is that process's to remove. It takes f.
func KeepListener(f *os.File) (*Kept, error) {
	l, err := Adopt(f, "", -1)
	if err != nil {
		return nil, fmt.Errorf("keep a socket: %w", err)
	}
	if raw, err := l.SyscallConn(); err == nil {
		_ = wire.RefuseFDs(raw) // as listenAt does
	}
	return keep(l)
}

// Adopt returns the Listener of a socket of the kind "unixpacket" that another process keeps. It
// takes f, and the lock file's descriptor, unless it returns an error; -1: there is none. Without a
// path it is the socket's.
func Adopt(f *os.File, path string, lock int) (*Listener, error) {
	defer f.Close() //nolint:errcheck // the Listener has another descriptor of it
	if err := checkListens(f); err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().Network() != "unixpacket" {
		return nil, errors.Join(fmt.Errorf("%w: a socket of the kind %s", vmm.ErrInvalid, l.Addr().Network()), l.Close())
	}
	ul.SetUnlinkOnClose(false)
	if path == "" {
		path = ul.Addr().String()
	}
	return &Listener{UnixListener: ul, path: path, lock: lock, kept: true}, nil
}

// checkListens asks the kernel: net takes a socket of which accept returns an error at once, for ever.
func checkListens(f *os.File) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	listens, failed := 0, error(nil)
	if err := raw.Control(func(fd uintptr) { listens, failed = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN) }); err != nil {
		return err
	}
	if failed == nil && listens == 0 {
		failed = errors.New("a socket that does not listen, such as one of Accept=yes")
	}
	if failed != nil {
		return fmt.Errorf("%w: %w", vmm.ErrInvalid, failed)
	}
	return nil
}

func keep(l *Listener) (*Kept, error) {
	k := &Kept{Path: l.path, listener: l}
	err := l.control(func(fd int) error { return k.add(fd, "listener") })
	if err == nil && l.lock >= 0 {
		err = k.add(l.lock, "lock")
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *Kept) add(fd int, name string) error {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err == nil {
		k.Files = append(k.Files, os.NewFile(uintptr(own), name))
	}
	return err
}

// Close ends the socket: no process can connect any more.
func (k *Kept) Close() error {
	err := k.listener.Close()
	k.listener.Release()
	for _, f := range k.Files {
		err = errors.Join(err, f.Close())
	}
	return err
}
