// Package prefix is what reading the first bytes of growing memory has in common,
// whether it is this process's (vmm.Range) or another's (shareable.View).
package prefix

import (
	"fmt"
	"io"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Part is how many of n bytes from off on lie below have, and io.EOF if not all do, as
// an io.ReaderAt returns them. off is not negative.
func Part(n int, off int64, have uint64) (int, error) {
	switch left := have - min(have, uint64(off)); {
	case n == 0:
		return 0, nil
	case left < uint64(n):
		return int(left), io.EOF
	}
	return n, nil
}

// HostBytes is the n bytes from p on as a slice of that capacity, if the CPU can
// address the driver's memory, else ErrNotSupported.
func HostBytes(drv driver.Driver, p driver.Ptr, n uint64) ([]byte, error) {
	v, ok := drv.(driver.HostViewer)
	if !ok {
		return nil, fmt.Errorf("%w: the CPU cannot address this memory", driver.ErrNotSupported)
	}
	b, err := v.HostBytes(p, n)
	if err != nil {
		return nil, err
	}
	return b[:n:n], nil
}
