//go:build cgo && linux

package dl

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// OpenFirst returns the first of the candidates that open can open. If there is none, the
// error Is driver.ErrNotSupported and says what was looked for.
func OpenFirst[L any](library string, candidates []string, open func(path string) (L, error)) (first L, err error) {
	var sought, texts []string
	for _, candidate := range candidates {
		l, err := open(candidate)
		switch {
		case err == nil:
			return l, nil
		case There(candidate):
			texts = append(texts, err.Error())
		default:
			sought = append(sought, candidate)
		}
	}
	if len(sought) > 0 {
		texts = append(texts, "looked for "+strings.Join(sought, ", "))
	}
	return first, &driver.CallError{Call: "open " + library, Kind: driver.ErrNotSupported, Err: errors.New(strings.Join(texts, "; "))}
}

// There reports whether there is a file that the loader would load for path. The loader
// itself reports failures only as text, in any language. A name without a slash is
// looked for where the loader looks: in LD_LIBRARY_PATH, in its cache and in its own
// folders.
func There(path string) bool {
	if strings.Contains(path, "/") {
		return suits(path)
	}
	folders := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
	for _, dir := range append(folders, "/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib") {
		if suits(filepath.Join(dir, path)) { // an empty folder is the current one
			return true
		}
	}
	for _, candidate := range cached("/etc/ld.so.cache", path) {
		if suits(candidate) {
			return true
		}
	}
	return false
}

// cached is the paths that the loader's cache has for a name. They are texts that end
// with a zero, between its tables.
func cached(cache, name string) (paths []string) {
	b, err := os.ReadFile(cache)
	if err != nil {
		return nil
	}
	end := []byte("/" + name + "\x00")
	for {
		i := bytes.Index(b, end)
		if i < 0 {
			return paths
		}
		from := bytes.LastIndexByte(b[:i], 0) + 1
		paths = append(paths, string(b[from:i+len(end)-1]))
		b = b[i+len(end):]
	}
}

// suits reports whether there is a file, except one for processors of another width,
// which the loader skips.
func suits(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		_, err = os.Stat(path)
		return err == nil // there, though unreadable
	}
	defer f.Close() //nolint:errcheck // only read
	var head [5]byte
	if _, err := f.Read(head[:]); err != nil || string(head[:4]) != "\x7fELF" {
		return true
	}
	const class32, class64 = 1, 2
	if ^uintptr(0)>>32 == 0 {
		return head[4] == class32
	}
	return head[4] == class64
}
