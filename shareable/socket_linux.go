package shareable

import (
	"crypto/rand"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
)

func ownerOf(info fs.FileInfo) (uid uint32, known bool) {
	st, known := info.Sys().(*syscall.Stat_t)
	if !known {
		return 0, false
	}
	return st.Uid, true
}

// makeDirectory makes the user's own directory if path lies in it. It refuses a
// directory that another user could have made.
func makeDirectory(path string) error {
	// Any other directory must exist already: it is the caller's to make.
	dir := filepath.Dir(path)
	own := dir == ownDirectory()
	if own {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// Lstat, since a link could be another user's.
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is not a directory, or is a link to one", vmm.ErrPermission, dir)
	}
	uid, known := ownerOf(info)
	switch {
	case known && uid != uint32(os.Getuid()) && (own || uid != 0):
		return fmt.Errorf("%w: %s belongs to user %d", vmm.ErrPermission, dir, uid)
	case own && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: %s has mode %#o, which admits other users", vmm.ErrPermission, dir, info.Mode().Perm())
	}
	return nil
}

// socket is a listening socket and its name in the file system.
type socket struct {
	*net.UnixListener
	path string
	lock int // descriptor of the lock file, locked while the socket is open; -1 for an abstract name
}

// listen makes a socket at path. The lock file decides which server has the path,
// so the socket file of a dead server can be replaced.
func listen(path string) (*socket, error) {
	if strings.HasPrefix(path, "@") {
		l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
		if err != nil {
			return nil, err
		}
		return &socket{l, path, -1}, nil
	}
	if err := makeDirectory(path); err != nil {
		return nil, err
	}
	// The lock file stays when the server ends: removing it would let two servers
	// lock two files of one name.
	lock, err := unix.Open(path+".lock", unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path + ".lock", Err: err}
	}
	s := &socket{path: path, lock: lock}
	if err := s.bind(); err != nil {
		_ = unix.Close(lock)
		return nil, err
	}
	return s, nil
}

// bind binds a socket to a temporary name, restricts its mode, and renames it. So
// the socket is at no time open to other users under its path.
func (s *socket) bind() error {
	if err := unix.Flock(s.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%w: another server holds %s: %w", vmm.ErrBusy, s.path, err)
	}
	temporary := s.path + "." + rand.Text()[:8]
	if len(temporary) > maxPath {
		return fmt.Errorf("%w: socket path %q is too long by %d bytes", vmm.ErrInvalid, s.path, len(temporary)-maxPath)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: temporary, Net: "unixpacket"})
	if err != nil {
		return err
	}
	// Close removes the file at path itself, while the lock is held.
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(temporary, 0o600); err == nil {
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

// Close removes the socket file before it unlocks the lock file: after that the
// path may be another server's.
func (s *socket) Close() error {
	if s.lock >= 0 {
		_ = os.Remove(s.path)
	}
	err := s.UnixListener.Close()
	if s.lock >= 0 {
		_ = unix.Close(s.lock)
	}
	return err
}
