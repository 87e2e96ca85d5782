//go:build cgo && linux

package dl

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
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
		if err == nil {
			return l, nil
		}
		switch there, foreign := look(candidate); {
		case there, foreign != "":
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
	there, _ := look(path)
	return there
}

// look is There, and returns also the first file for other processors: the loader skips such files as if
// they did not exist.
func look(path string) (there bool, foreign string) {
	all := []string{path}
	if !strings.Contains(path, "/") {
		all = all[:0]
		folders := filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))
		for _, dir := range append(folders, "/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib") {
			all = append(all, filepath.Join(dir, path)) // an empty folder is the current one
		}
		all = append(all, cached("/etc/ld.so.cache", path)...)
	}
	for _, file := range all {
		suits, other := suits(file)
		if suits {
			return true, ""
		}
		foreign = cmp.Or(foreign, other)
	}
	return false, foreign
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

// suits reports whether there is a file, except one for other processors; of that foreign says so.
func suits(path string) (suits bool, foreign string) {
	head, err := header(path)
	if err != nil {
		_, err = os.Stat(path)
		return err == nil, "" // there, though unreadable
	}
	own, err := header("/proc/self/exe")
	if err != nil || len(head) < len(elf.ELFMAG)+1 || string(head[:len(elf.ELFMAG)]) != elf.ELFMAG {
		return true, ""
	}
	const machine = 18 // two bytes
	if head[elf.EI_CLASS] == own[elf.EI_CLASS] && (len(head) < machine+2 || string(head[machine:]) == string(own[machine:])) {
		return true, ""
	}
	foreign = fmt.Sprintf("%s is for other processors, %v", path, elf.Class(head[elf.EI_CLASS]))
	if len(head) == machine+2 {
		foreign += fmt.Sprintf(" %v", elf.Machine(binary.NativeEndian.Uint16(head[machine:])))
	}
	return false, foreign
}

// header is the first 20 bytes of a file, or all it has.
func header(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	return io.ReadAll(io.LimitReader(f, 20))
}
