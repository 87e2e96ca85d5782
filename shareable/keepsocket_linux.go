package shareable

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
)

// KeptSocket is for package store. It is a server's socket in a process that serves nothing itself.
type KeptSocket struct {
	Path  string
	Files []*os.File // for the process that serves: the listener, and the lock file if there is one

	socket *socket
}

// KeepSocket is for package store. It makes a socket at path, which is as for Listen. The caller must Close it.
func KeepSocket(path string) (*KeptSocket, error) {
	path, err := socketPath(path)
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	l, err := listen(path, hooks{})
	if err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	k := &KeptSocket{Path: path, socket: l}
	err = l.control(func(fd int) error { return k.add(fd, "listener") })
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
