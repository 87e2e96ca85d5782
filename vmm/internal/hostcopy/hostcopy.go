// Package hostcopy is host memory for the contents of ranges that sleep.
package hostcopy

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Buffer is host memory. It is empty at first. It is a mapping of the host driver
// without a context, so no stream and no capture has to do with it.
type Buffer struct {
	Mem []byte // all of it

	// Take counts addresses that are about to be reserved; Return undoes it.
	Take   func(size uint64) error
	Return func(size uint64)

	ptr    driver.Ptr
	size   uint64
	handle driver.Handle
	mapped bool
}

// Ensure makes it n bytes at least. What it held is lost if it has to grow.
func (h *Buffer) Ensure(n uint64) error {
	if uint64(len(h.Mem)) >= n {
		return nil
	}
	if err := h.Free(); err != nil {
		return err
	}
	drv := host.Default()
	prop := driver.Prop{Location: driver.Location{Kind: driver.LocationDevice}}
	gran, err := drv.Granularity(prop)
	if err != nil {
		return err
	}
	size := (n + gran - 1) / gran * gran
	if size < n {
		return fmt.Errorf("%w: %d bytes", driver.ErrOutOfMemory, n)
	}
	if err := h.Take(size); err != nil {
		return err
	}
	// Each step is noted in h, so that Free undoes those that were done.
	err = func() (err error) {
		if h.ptr, err = drv.Reserve(size, 0); err != nil {
			h.Return(size)
			return err
		}
		h.size = size
		if h.handle, err = drv.Create(size, prop); err != nil {
			return err
		}
		if err = drv.Map(h.ptr, size, h.handle); err != nil {
			return err
		}
		h.mapped = true
		if err = drv.SetAccess(h.ptr, size, []driver.Grant{{To: prop.Location, Access: driver.AccessReadWrite}}); err != nil {
			return err
		}
		h.Mem, err = drv.HostBytes(h.ptr, size)
		return err
	}()
	if err != nil {
		if undo := h.Free(); undo != nil {
			err = fmt.Errorf("%w; and giving it back: %w", err, undo)
		}
	}
	return err
}

// Free frees the memory. After an error it can be called again.
func (h *Buffer) Free() error {
	drv := host.Default()
	// In the reverse order of Ensure; what has been given back is not given back again.
	h.Mem = nil
	if h.mapped {
		if err := drv.Unmap(h.ptr, h.size); err != nil {
			return err
		}
		h.mapped = false
	}
	if h.handle != 0 {
		if err := drv.Release(h.handle); err != nil {
			return err
		}
		h.handle = 0
	}
	if h.size != 0 {
		if err := drv.Free(h.ptr, h.size); err != nil {
			return err
		}
		h.Return(h.size)
		h.ptr, h.size = 0, 0
	}
	return nil
}
