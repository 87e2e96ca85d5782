// Package hostcopy is host memory for contents of device memory: the memory in which those of
// ranges wait that sleep, and copies into memory that was never touched. Files:
//
//	hostcopy.go       Buffer: as much memory as is asked for, if there is enough
//	memory_unsafe.go  the system's calls, on Linux
//	memory_other.go   elsewhere
package hostcopy

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/cuvmm/cuvmm/internal/freememory"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Buffer is host memory, empty at first: private pages of the process, huge ones where the
// system allows that (transparent_hugepage is always or madvise). It belongs to no device, so no
// stream and no capture has to do with it.
type Buffer struct {
	Mem []byte // all of it

	// Take counts addresses that are about to be reserved; Return undoes it.
	Take   func(size uint64) error
	Return func(size uint64)

	mapping  []byte // Mem is part of it
	promised uint64 // of its bytes, those that are not written to yet
}

// promised is how many bytes of all Buffers may have no pages yet.
var promised struct {
	sync.Mutex
	bytes uint64
}

// spare is how much more than the bytes must be left: for tables of pages, and for the program.
const spare = 4 << 20

// promise notes that n bytes will be written to, if the process can have them beside what is promised already:
// several that ask at the same moment would each see the same memory as free.
func promise(n uint64) error {
	promised.Lock()
	defer promised.Unlock()
	if free, known := freememory.Bytes(Root); known && promised.bytes+n+n/256+spare > free {
		return fmt.Errorf("%w: %d bytes of the host, and the process can have %d, less %d that it will write to", driver.ErrOutOfMemory, n, free, promised.bytes)
	}
	promised.bytes += n
	return nil
}

// keepPromise notes that n of the promised bytes have pages now, or will not be written to.
func keepPromise(n uint64) {
	promised.Lock()
	defer promised.Unlock()
	promised.bytes -= n
}

// Wrote says that n more bytes have been written to.
func (h *Buffer) Wrote(n uint64) {
	n = min(n, h.promised)
	keepPromise(n)
	h.promised -= n
}

// IsWritten reports whether there is memory, and Wrote has said that all of it was written to.
func (h *Buffer) IsWritten() bool { return h.Mem != nil && h.promised == 0 }

// Memory of a huge page or more begins with one, and has whole ones. Less has small pages.
const unit, smallUnit = 2 << 20, 4 << 10

// Root is where the system's files are. It is a variable for tests.
var Root = "/"

// Need is how many bytes a Buffer is to have.
type Need struct {
	Of    *Buffer
	Bytes uint64
}

// Ensure makes Buffers as large as they need to be, at least. What one held is lost if it has to
// grow. It is driver.ErrOutOfMemory if the system, or a control group of the process, has not so
// much left for all of them: pages come when they are touched, and a process that passes its group's
// limit is killed. What Buffers have not written to yet counts as used. After an error some of them
// may have memory.
func Ensure(all ...Need) error {
	var sum uint64
	var small []Need
	for _, n := range all {
		if uint64(len(n.Of.Mem)) >= n.Bytes {
			continue
		}
		if err := n.Of.Free(); err != nil {
			return err
		}
		if n.Bytes > math.MaxInt-unit-sum {
			return fmt.Errorf("%w: %d bytes of the host", driver.ErrOutOfMemory, n.Bytes)
		}
		sum += n.Bytes
		small = append(small, n)
	}
	if sum == 0 {
		return nil
	}
	if err := promise(sum); err != nil {
		return err
	}
	for _, n := range small {
		if err := n.Of.take(n.Bytes); err != nil {
			keepPromise(sum)
			return err
		}
		n.Of.promised = n.Bytes
		sum -= n.Bytes
	}
	return nil
}

// Ensure is Ensure of one.
func (h *Buffer) Ensure(n uint64) error { return Ensure(Need{h, n}) }

// take gives an empty Buffer n bytes.
func (h *Buffer) take(n uint64) error {
	of := uint64(unit)
	if n < unit {
		of = smallUnit
	}
	size := (n + of - 1) / of * of
	err := h.Take(size)
	if err != nil {
		return err
	}
	if h.mapping, h.Mem, err = allocate(size); err != nil {
		h.Return(size)
		return fmt.Errorf("%w: %d bytes of the host: %w", driver.ErrOutOfMemory, size, err)
	}
	return nil
}

// Free frees the memory. After an error it can be called again.
func (h *Buffer) Free() error {
	if h.Mem == nil {
		return nil
	}
	if len(h.Mem) > unit { // else one call does it
		h.drop()
	}
	if err := free(h.mapping); err != nil {
		return err
	}
	h.Return(uint64(len(h.Mem)))
	h.mapping, h.Mem = nil, nil
	h.Wrote(h.promised)
	return nil
}

// drop gives the pages back, by several threads at once: 16 GiB take one of them longer than a
// tenth of what it takes a GPU to read them.
func (h *Buffer) drop() {
	const share = 256 << 20 // for a thread
	var droppers sync.WaitGroup
	for part := range slices.Chunk(h.Mem, max(share, len(h.Mem)/runtime.GOMAXPROCS(0)/unit*unit)) {
		droppers.Go(func() { drop(part) })
	}
	droppers.Wait()
}

// populated is how many bytes Copy has the system give pages for before it writes them: while
// those are in the cache. On an H200's host, 16 copiers reach 28 GB/s into new pages of 4 KiB by
// steps of 256 KiB, 22 by 2 MiB, and 18 if each page is given when it is first written.
const populated = 256 << 10

// Copy copies into memory for which IsFresh was true.
func Copy(dst, src []byte) {
	for len(dst) > 0 {
		n := min(populated, len(dst))
		populate(dst[:n])
		copy(dst[:n], src)
		dst, src = dst[n:], src[n:]
	}
}

// IsFresh reports whether much of the memory seems to have no pages yet: whether Copy may be
// faster than copy. It looks at a few pages, and at none of less than 2 MiB.
func IsFresh(b []byte) bool {
	if len(b) < unit {
		return false
	}
	const looks = 8
	for i := range looks {
		if at := len(b) / looks * i; !resident(b[at : at+1]) {
			return true
		}
	}
	return false
}
