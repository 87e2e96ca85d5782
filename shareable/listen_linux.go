package shareable

import (
	"crypto/rand"
	"errors"
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

// makeDirectory makes the user's own directory if path lies in it, and refuses
// one that somebody else could put in the way.
func makeDirectory(path string) error {
	dir := filepath.Dir(path)
	own := dir == ownDirectory()
	if own {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return fmt.Errorf("%w: %s is no directory, or a link to one", vmm.ErrPermission, dir)
	}
	uid, known := ownerOf(info)
	switch {
	case known && uid != uint32(os.Getuid()) && (own || uid != 0):
		return fmt.Errorf("%w: %s belongs to user %d", vmm.ErrPermission, dir, uid)
	case own && info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%w: %s is open to others (mode %#o)", vmm.ErrPermission, dir, info.Mode().Perm())
	}
	return nil
}

// socket is a listening socket and the name it has in the file system.
type socket struct {
	*net.UnixListener
	path string
	lock int // held while the name is ours; -1 for an abstract one
}

// listen binds to a name that nobody looks for and moves it into place, under a
// lock that a second server of that name does not get: there is no moment in
// which the socket is open to others, and one of a dead server is replaced.
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

func (s *socket) bind() error {
	if err := unix.Flock(s.lock, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%w: another server holds %s: %w", vmm.ErrBusy, s.path, err)
	}
	hidden := s.path + "." + rand.Text()[:8]
	if len(hidden) > maxPath {
		return fmt.Errorf("%w: the socket path %q is too long by %d bytes", vmm.ErrInvalid, s.path, len(hidden)-maxPath)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: hidden, Net: "unixpacket"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	if err = os.Chmod(hidden, 0o600); err == nil {
		err = os.Rename(hidden, s.path)
	}
	if err != nil {
		_ = l.Close()
		_ = os.Remove(hidden)
		return err
	}
	s.UnixListener = l
	return nil
}

// Close takes the name away before anybody else can have it.
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

// fileLimit is how many descriptors this process may have open.
func fileLimit() int {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil || l.Cur > 1<<20 {
		return 1 << 20
	}
	return int(l.Cur)
}

func closeFD(fd int) error { return unix.Close(fd) }

// tooManyRefs says that the user has too many descriptors on their way, those
// to other processes too.
func tooManyRefs(err error) bool { return errors.Is(err, unix.ETOOMANYREFS) }
