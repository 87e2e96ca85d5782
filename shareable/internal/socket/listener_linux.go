package socket

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// checkDirectory makes the user's own directory if path lies in it. It refuses a
// directory in which another user could replace the socket, or the directory that is made.
func checkDirectory(path string) error {
	// Any other directory must exist already: it is the caller's to make.
	dir := filepath.Dir(path)
	if dir != ownDirectory() {
		return checkOwner(dir, os.Lstat)
	}
	// The user has named the one above: it may be a link, or is made for this user alone.
	if err := checkOwner(filepath.Dir(dir), os.Stat); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if info, err := os.Lstat(dir); err == nil && info.IsDir() && info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("%w: %s has mode %#o, which admits other users", vmm.ErrPermission, dir, info.Mode().Perm())
	}
	return checkOwner(dir, os.Lstat)
}

// checkOwner refuses a directory in which another user could replace a file. Of links os.Lstat refuses all,
// since a link could be another user's.
func checkOwner(dir string, stat func(string) (fs.FileInfo, error)) error {
	info, err := stat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory, or is a link to one", vmm.ErrPermission, dir)
	}
	st, known := info.Sys().(*syscall.Stat_t)
	mode := info.Mode()
	switch {
	case known && st.Uid != uint32(os.Getuid()) && st.Uid != 0:
		return fmt.Errorf("%w: %s belongs to user %d", vmm.ErrPermission, dir, st.Uid)
	case mode.Perm()&0o022 != 0 && (mode&fs.ModeSticky == 0 || known && st.Uid != 0 && !wire.IsOwn(st.Uid)):
		return fmt.Errorf("%w: %s has mode %#o, so other users can replace the socket", vmm.ErrPermission, dir, mode.Perm())
	}
	return nil
}

// Listener is a listening socket and its name in the file system.
type Listener struct {
	*net.UnixListener
	path string
	lock int         // descriptor of the lock file, locked while the socket is open; -1 for an abstract name
	file fs.FileInfo // the socket file
	kept bool        // see KeptElsewhere
}

// check refuses what no file can have.
func (o Options) check(path string) error {
	switch {
	case strings.HasPrefix(path, "@") && (o.Mode != 0 || o.Group != nil):
		return fmt.Errorf("%w: %s is no file, and has neither mode nor group", vmm.ErrInvalid, path)
	case o.Mode&^fs.ModePerm != 0:
		return fmt.Errorf("%w: a socket of mode %v", vmm.ErrInvalid, o.Mode)
	case o.Group != nil && (*o.Group < 0 || int64(*o.Group) >= math.MaxUint32): // for chown MaxUint32 is: leave the group
		return fmt.Errorf("%w: group %d", vmm.ErrInvalid, *o.Group)
	}
	return nil
}

// set changes a file that is not yet where clients look for it.
func (o Options) set(path string) error {
	if o.Group != nil {
		if err := os.Chown(path, -1, *o.Group); err != nil {
			return err
		}
	}
	if o.Mode == 0 {
		return nil
	}
	return os.Chmod(path, o.Mode.Perm())
}

// Listen makes a socket at a path of Path. The lock file decides which server has the path,
// so the socket file of a dead server can be replaced. It returns vmm.ErrBusy if another
// server has the path. The caller must Close the Listener, and then Release it.
func Listen(path string, o Options) (*Listener, error) {
	if err := o.check(path); err != nil {
		return nil, err
	}
	s := &Listener{path: path, lock: -1}
	if strings.HasPrefix(path, "@") {
		var err error
		if s.UnixListener, err = listenAt(path, o); errors.Is(err, unix.EADDRINUSE) {
			err = fmt.Errorf("%w: another server has %s: %w", vmm.ErrBusy, path, err)
		}
		return s, err
	}
	if err := s.checkPath(); err != nil { // before there is a lock file
		return nil, err
	}
	// The lock file stays when the server ends: removing it would let two servers
	// lock two files of one name.
	lock, err := unix.Open(path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path + ".lock", Err: err}
	}
	s.lock = lock
	if err := s.bind(o); err != nil {
		s.unlock()
		return nil, err
	}
	return s, nil
}

// unlock gives the lock up. A process that another goroutine has started, and whose program does not
// run yet, has a descriptor of the same lock: its close alone would leave the path taken.
func (s *Listener) unlock() {
	if s.lock < 0 {
		return
	}
	if !s.kept { // or it is the keeper's, too
		_ = unix.Flock(s.lock, unix.LOCK_UN)
	}
	_ = unix.Close(s.lock)
	s.lock = -1
}

// checkPath refuses a path that no socket can have. Nothing but a socket is replaced.
func (s *Listener) checkPath() error {
	if len(s.path)+suffixSize > maxPath {
		return fmt.Errorf("%w: socket path %q is too long by %d bytes", vmm.ErrInvalid, s.path, len(s.path)+suffixSize-maxPath)
	}
	if err := checkDirectory(s.path); err != nil {
		return err
	}
	if info, err := os.Lstat(s.path); err == nil && info.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%w: %s is there and is not a socket", vmm.ErrInvalid, s.path)
	}
	return nil
}

// suffixSize is how many bytes a temporary name has after the path.
const suffixSize = 9

// bind binds a socket to a temporary name and renames it.
func (s *Listener) bind(o Options) error {
	if err := unix.Flock(s.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%w: another server holds %s: %w", vmm.ErrBusy, s.path, err)
	}
	temporary := s.path + "." + rand.Text()[:suffixSize-1]
	l, err := listenAt(temporary, o)
	if err != nil {
		return err
	}
	if err = o.set(temporary); err == nil {
		s.file, err = os.Lstat(temporary)
	}
	if err == nil {
		err = os.Rename(temporary, s.path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(temporary)
		return err
	}
	s.UnixListener = l
	return nil
}

// listenAt listens on a new socket. Its file is at no time open to other users: the mode
// is that of the socket when it is bound, less the umask.
func listenAt(address string, o Options) (*net.UnixListener, error) {
	prepare := func(_, _ string, c syscall.RawConn) error {
		if !o.TakeFDs {
			_ = wire.RefuseFDs(c) // where the kernel cannot, nothing takes them either
		}
		var failed error
		if err := c.Control(func(fd uintptr) { failed = unix.Fchmod(int(fd), 0o600) }); err != nil {
			return err
		}
		return failed
	}
	l, err := (&net.ListenConfig{Control: prepare}).Listen(context.Background(), "unixpacket", address)
	if err != nil {
		return nil, err
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w: a listener of type %T", vmm.ErrInvalid, l), l.Close())
	}
	ul.SetUnlinkOnClose(false) // Close does that itself, if the file is still this socket's
	return ul, nil
}

// KeptElsewhere reports whether another process keeps the socket: Close closes this one's
// descriptors alone.
func (s *Listener) KeptElsewhere() bool { return s.kept }

// Close ends the socket: no process can connect any more, and AcceptUnix returns. The
// listener stays open until Release.
func (s *Listener) Close() error {
	if s.kept { // another process has the socket, too
		s.unlock()
		return s.UnixListener.Close()
	}
	if s.lock >= 0 {
		// The file goes before the lock does: after that the path may be another
		// server's. It may be that too if someone has removed the lock file.
		if now, err := os.Lstat(s.path); err == nil && os.SameFile(now, s.file) {
			_ = os.Remove(s.path)
		}
		s.unlock()
	}
	err := s.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_RDWR) })
	return errors.Join(err, s.SetDeadline(time.Unix(1, 0)))
}

// TakeWaiting returns the connections that no AcceptUnix has returned, after Close. It
// returns false if that is not all of them.
func (s *Listener) TakeWaiting() (conns []*net.UnixConn, all bool) {
	err := s.control(func(listener int) error {
		for {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			if err != nil {
				return err
			}
			f := os.NewFile(uintptr(fd), "")
			c, err := net.FileConn(f)
			_ = f.Close() // c has another descriptor of it
			if err != nil {
				return err
			}
			if u, ok := c.(*net.UnixConn); ok {
				conns = append(conns, u)
			}
		}
	})
	return conns, errors.Is(err, unix.EAGAIN)
}

// Release closes the listener's descriptor, after Close. It can block: connections that were not
// accepted are closed with the descriptors that lie in them.
func (s *Listener) Release() { _ = s.UnixListener.Close() }

// control calls f with the listener's descriptor.
func (s *Listener) control(f func(fd int) error) error {
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}
