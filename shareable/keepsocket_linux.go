package shareable

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// KeptSocket is for package store. It is a server's socket in a process that serves nothing itself.
type KeptSocket struct {
	Path  string
	Files []*os.File // for the process that serves: the listener, and the lock file if there is one
	Own   bool       // this process has made it

	socket *socket
}

// set changes a file that is not yet where clients look for it.
func (a SocketAccess) set(path string) error {
	if a.Group != nil {
		if err := os.Chown(path, -1, *a.Group); err != nil {
			return err
		}
	}
	if a.Mode == 0 {
		return nil
	}
	return os.Chmod(path, a.Mode.Perm())
}

// KeepSocket is for package store. It makes a socket at path, which is as for Listen. The caller must Close it.
func KeepSocket(path string, a SocketAccess) (*KeptSocket, error) {
	path, err := socketPath(path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	if strings.HasPrefix(path, "@") && a != (SocketAccess{}) {
		return nil, fmt.Errorf("listen: %w: %s is no file, and has neither mode nor group", vmm.ErrInvalid, path)
	}
	l, err := listen(path, hooks{access: a})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	return keep(path, l, true)
}

// KeepListener is KeepSocket of a socket of the kind "unixpacket" that another process has made, such as systemd, and
// that is that process's to remove. It takes f.
func KeepListener(f *os.File) (*KeptSocket, error) {
	l, err := net.FileListener(f)
	_ = f.Close() // l has another descriptor of it
	if err != nil {
		return nil, fmt.Errorf("keep a socket: %w", err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || ul.Addr().Network() != "unixpacket" {
		return nil, errors.Join(fmt.Errorf("keep a socket: %w: a socket of the kind %s", vmm.ErrInvalid, l.Addr().Network()), l.Close())
	}
	ul.SetUnlinkOnClose(false)
	if raw, err := ul.SyscallConn(); err == nil {
		_ = wire.RefuseFDs(raw) // as listenAt does
	}
	path := ul.Addr().String()
	return keep(path, &socket{UnixListener: ul, path: path, lock: -1, kept: true}, false)
}

func keep(path string, l *socket, own bool) (*KeptSocket, error) {
	k := &KeptSocket{Path: path, Own: own, socket: l}
	err := l.control(func(fd int) error { return k.add(fd, "listener") })
	if err == nil && l.lock >= 0 {
		err = k.add(l.lock, "lock")
	}
	if err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

func (k *KeptSocket) add(fd int, name string) error {
	own, err := dup(fd)
	if err == nil {
		k.Files = append(k.Files, os.NewFile(uintptr(own), name))
	}
	return err
}

// Close ends the socket: no process can connect any more.
func (k *KeptSocket) Close() error {
	err := k.socket.Close()
	k.socket.closeListener()
	for _, f := range k.Files {
		err = errors.Join(err, f.Close())
	}
	return err
}

// SignalKeeper is for package store. It sends a signal to the process that keeps the socket at path. It
// returns vmm.ErrNotSupported if that cannot be seen from here. The caller knows that there is such a process.
func SignalKeeper(path string, sig syscall.Signal) error {
	path, err := socketPath(path)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was sent
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return &noServerError{path: path, cause: err}
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return err
	}
	if cred.Pid <= 0 {
		return fmt.Errorf("%w: the process that keeps %s is in another namespace of process ids", vmm.ErrNotSupported, path)
	}
	return unix.Kill(int(cred.Pid), sig)
}
