package vmm

import "fmt"

const defaultAddressLimit = 1 << 46

// SetAddressLimit changes how many bytes of addresses all reservations of this
// process may hold together, and returns the old limit. The default is 2^46, half
// of what the kernel gives a process on x86-64: if addresses run out, Go's own heap
// cannot grow and the process dies. A limit below what is reserved already only
// stops new reservations.
func SetAddressLimit(bytes uint64) (old uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	old, process.limit = process.limit, bytes
	return old
}

// takeAddresses counts size against the process's limit.
func takeAddresses(size uint64) error {
	process.mu.Lock()
	defer process.mu.Unlock()
	if left := process.limit - min(process.limit, process.reserved); size > left {
		return fmt.Errorf("%w: %s are left of this process's limit of %s; ask for a smaller Max or see SetAddressLimit",
			ErrAddressSpace, sizeText(left), sizeText(process.limit))
	}
	process.reserved += size
	return nil
}

// giveAddresses undoes takeAddresses.
func giveAddresses(size uint64) {
	process.mu.Lock()
	defer process.mu.Unlock()
	process.reserved -= size
}
