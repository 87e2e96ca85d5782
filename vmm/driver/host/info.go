//go:build linux

package host

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Devices lists every device that can be opened.
func (d *Driver) Devices() ([]driver.Info, error) {
	all := make([]driver.Info, len(d.states))
	for i, u := range d.states {
		all[i] = driver.Info{
			Ordinal: i,
			Open:    fmt.Sprintf("host:%d%s", i, d.options),
			Name:    "host memory",
			Arch:    runtime.GOARCH,
			Driver:  release(),
			UUID:    uuid(i),
			Memory:  u.memory,
			Cache:   lastLevelCache(),
			Unified: true, // the addresses are the CPU's own
		}
	}
	return all, nil
}

// release is the kernel's version.
var release = sync.OnceValue(func() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
})

// lastLevelCache is the size of the largest cache of the first CPU, 0 if the system does
// not tell.
var lastLevelCache = sync.OnceValue(func() uint64 {
	files, err := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size")
	if err != nil {
		return 0
	}
	most := uint64(0)
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"), 10, 54)
		if err == nil {
			most = max(most, kib<<10)
		}
	}
	return most
})

// machine is what tells this machine from others: its id, or where it has
// none, that of this boot.
func machine() []byte {
	id, _ := knownMachine.Get(func() ([]byte, error) {
		b, err := os.ReadFile("/etc/machine-id")
		if id := bytes.TrimSpace(b); err == nil && len(id) > 0 {
			return id, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return nil, err // it may have an id
		}
		boot, err := processes.Boot()
		return []byte(boot), err
	})
	return id
}

// uuid is the same for one device of one machine in every process. The
// machine's id is confidential, so only a digest of it shows.
func uuid(ordinal int) [16]byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "cuvmm host memory %s %d", machine(), ordinal))
	return [16]byte(sum[:16])
}
