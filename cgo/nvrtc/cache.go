//go:build cgo && linux

package nvrtc

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
	"time"
)

const (
	defaultMaxBytes = 256 << 20
	// abandoned is the age from which on a temporary file has no writer any more.
	abandoned = time.Hour
)

// ourFile is the form of the names in the folder. Other files there are not ours.
var ourFile = regexp.MustCompile(`^[0-9a-f]{64}(\.[A-Z2-7]+\.tmp)?$`)

// folder is an open folder of a Cache. It stays the folder that was checked, also if its
// path is changed.
type folder struct {
	root     *os.Root
	maxBytes uint64
}

// Close gives the descriptor back.
func (d *folder) Close() error { return d.root.Close() }

// openFolder opens the folder of c, and makes it if it is missing. What another user can
// write to is refused.
func openFolder(c *Cache) (*folder, error) {
	if c == nil {
		c = &Cache{}
	}
	dir, maxBytes := c.Dir, cmp.Or(c.MaxBytes, defaultMaxBytes)
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(user, "cuvmm", "nvrtc")
	}
	if err := makeFolder(dir); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	if err := checkFolder(root, dir); err != nil {
		_ = root.Close()
		return nil, err
	}
	return &folder{root, maxBytes}, nil
}

// makeFolder makes a missing folder and the folders above it. They must come to lie in
// one of this user's or of root's: a program that root runs with a user's environment
// would leave folders there that the user cannot use.
func makeFolder(dir string) error {
	above, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for {
		info, err := os.Stat(above)
		if err == nil {
			if owner := ownerOf(info); owner != os.Geteuid() && owner != 0 {
				return fmt.Errorf("%s belongs to user %d", above, owner)
			}
			return os.MkdirAll(dir, 0o700)
		}
		if !errors.Is(err, fs.ErrNotExist) || above == filepath.Dir(above) {
			return err
		}
		above = filepath.Dir(above)
	}
}

// checkFolder refuses a folder that is not ours alone. The path may have been changed
// since it was opened, so root counts; a link in place of the folder is refused.
func checkFolder(root *os.Root, dir string) error {
	info, err := root.Stat(".")
	if err != nil {
		return err
	}
	there, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	if !os.SameFile(info, there) {
		return fmt.Errorf("%s is a link", dir)
	}
	return ours(info)
}

// ours refuses what belongs to another user, or what others may write to.
func ours(info fs.FileInfo) error {
	if owner := ownerOf(info); owner != os.Geteuid() {
		return fmt.Errorf("%s belongs to user %d", info.Name(), owner)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("others may write to %s: %v", info.Name(), info.Mode())
	}
	return nil
}

// ownerOf is the user's number, -1 if it is not known.
func ownerOf(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}

// load is the kept result, nil if there is none that can be trusted.
func (d *folder) load(k key) *Result {
	name := hex.EncodeToString(k[:])
	there, err := d.root.Lstat(name)
	if err != nil {
		return nil
	}
	// Opening a pipe must not wait for its writer. What a link leads to is not what is
	// there, and is not used.
	f, err := d.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // only read
	info, err := f.Stat()
	if err != nil || !os.SameFile(info, there) || ours(info) != nil || uint64(info.Size()) > d.maxBytes {
		return nil
	}
	file := make([]byte, info.Size())
	if _, err := io.ReadFull(f, file); err != nil {
		return nil
	}
	r := decode(k, file)
	if r != nil {
		// Deleting goes by this time. On a disk that is read only it cannot be set.
		now := time.Now()
		_ = d.root.Chtimes(name, now, now)
	}
	return r
}

// store keeps a result. Others see the whole file or none.
func (d *folder) store(k key, r *Result) error {
	name, file := hex.EncodeToString(k[:]), encode(k, r)
	if uint64(len(file)) > d.maxBytes {
		return fmt.Errorf("not kept: %d bytes, of %d in all", len(file), d.maxBytes)
	}
	temporary := name + "." + rand.Text() + ".tmp"
	if err := d.write(temporary, file); err != nil {
		return err
	}
	err := d.root.Rename(temporary, name)
	if errors.Is(err, fs.ErrExist) {
		_ = d.root.Remove(name) // an empty folder; what is in one is not ours to delete
		err = d.root.Rename(temporary, name)
	}
	if err != nil {
		_ = d.root.Remove(temporary)
		return err
	}
	return d.limit()
}

// write makes a new file.
func (d *folder) write(name string, b []byte) error {
	f, err := d.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = cmp.Or(err, f.Close()); err != nil {
		_ = d.root.Remove(name)
	}
	return err
}

// limit deletes the files that were used the longest time ago, until the others fit, and
// what writers that died have left.
func (d *folder) limit() error {
	entries, err := fs.ReadDir(d.root.FS(), ".")
	if err != nil {
		return err
	}
	var files []fs.FileInfo
	var total uint64
	for _, e := range entries {
		info, err := d.root.Lstat(e.Name())
		if err != nil || !info.Mode().IsRegular() || !ourFile.MatchString(e.Name()) {
			continue // not ours, or another process has deleted it
		}
		if filepath.Ext(e.Name()) == ".tmp" {
			if time.Since(info.ModTime()) > abandoned {
				_ = d.root.Remove(e.Name())
			}
			continue
		}
		files = append(files, info)
		total += uint64(info.Size())
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int {
		return cmp.Or(a.ModTime().Compare(b.ModTime()), cmp.Compare(a.Name(), b.Name()))
	})
	for _, f := range files {
		if total <= d.maxBytes {
			return nil
		}
		if err := d.root.Remove(f.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		total -= uint64(f.Size())
	}
	return nil
}
