//go:build linux

package host

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"runtime"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"golang.org/x/sys/unix"
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

// machine is what tells this machine from others: its id, or where it has
// none, that of this boot.
var machine = sync.OnceValue(func() []byte {
	for _, name := range []string{"/etc/machine-id", "/proc/sys/kernel/random/boot_id"} {
		if b, err := os.ReadFile(name); err == nil && len(bytes.TrimSpace(b)) > 0 {
			return bytes.TrimSpace(b)
		}
	}
	return nil
})

// uuid is the same for one device of one machine in every process. The
// machine's id is confidential, so only a digest of it shows.
func uuid(ordinal int) [16]byte {
	sum := sha256.Sum256(fmt.Appendf(nil, "cuvmm host memory %s %d", machine(), ordinal))
	return [16]byte(sum[:16])
}
