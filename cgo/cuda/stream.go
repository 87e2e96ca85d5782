//go:build cgo && linux

package cuda

// #include "shims.h"
import "C"

import (
	"cmp"
	"math"
	"unsafe"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

var _ driver.StreamPriorities = (*device)(nil)

// CopyStream is the library's copy stream.
//
// Safety: only the number of a pointer of the driver's is used.
func (v *device) CopyStream() driver.Stream {
	return driver.Stream(uintptr(unsafe.Pointer(v.copyStream)))
}

// NewStream makes a non-blocking stream.
func (v *device) NewStream() (driver.Stream, error) {
	s, err := v.newHandle("cuStreamCreate", &v.d.streams, func() (C.cuvmm_value, error) {
		return C.cuvmm_stream_create(v.d.api, v.ctx), nil
	})
	return driver.Stream(s), err
}

// Priorities is the range of the streams' priorities.
func (v *device) Priorities() (least, greatest int, err error) {
	err = v.inContext("cuCtxGetStreamPriorityRange", func() C.CUresult {
		c := C.cuvmm_stream_priorities(v.d.api, v.ctx)
		least, greatest = int(c.least), int(c.greatest)
		return c.r
	})
	return least, greatest, err
}

// NewStreamPriority makes a non-blocking stream with a priority.
func (v *device) NewStreamPriority(priority int) (driver.Stream, error) {
	s, err := v.newHandle("cuStreamCreateWithPriority", &v.d.streams, func() (C.cuvmm_value, error) {
		nearest := max(math.MinInt32, min(priority, math.MaxInt32))
		return C.cuvmm_stream_create_priority(v.d.api, v.ctx, C.int(nearest)), nil
	})
	return driver.Stream(s), err
}

// FreeStream destroys a stream; its queued work still runs.
func (v *device) FreeStream(s driver.Stream) error {
	return v.freeHandle("cuStreamDestroy", &v.d.streams, uint64(s), func(maker *device) C.CUresult {
		return C.cuvmm_stream_destroy(maker.d.api, maker.ctx, stream(s))
	})
}

// SyncStream waits for a stream.
func (v *device) SyncStream(s driver.Stream) error {
	return v.onStream("cuStreamSynchronize", s, func() C.CUresult {
		return C.cuvmm_stream_sync(v.d.api, v.ctx, stream(s))
	})
}

// StreamDone reports whether the work that the stream has now has run.
func (v *device) StreamDone(s driver.Stream) (bool, error) {
	done := false
	err := v.onStream("cuStreamQuery", s, func() C.CUresult {
		r := C.cuvmm_stream_query(v.d.api, v.ctx, stream(s))
		done = r == 0
		if Result(r) == notReady {
			r = 0
		}
		return r
	})
	return done, err
}

// newHandle makes something that can be freed, and lists it.
func (v *device) newHandle(call string, table *handleTable, create func() (C.cuvmm_value, error)) (uint64, error) {
	return v.newEntry(call, table, &tableEntry{}, create)
}

// newEntry is newHandle for an entry that says more of the handle.
func (v *device) newEntry(call string, table *handleTable, e *tableEntry, create func() (C.cuvmm_value, error)) (uint64, error) {
	if err := v.begin(call); err != nil {
		return 0, err
	}
	defer v.end()
	c, err := create()
	if err == nil {
		err = v.check(call, c.r)
	}
	if err != nil {
		return 0, err
	}
	e.handle, e.maker = uint64(c.v), v
	table.add(e)
	return e.handle, nil
}

// onStream makes a call with a stream, which may be another library's.
func (v *device) onStream(call string, s driver.Stream, f func() C.CUresult) error {
	return v.onHandle(call, &v.d.streams, uint64(s), f)
}

// use is a handle that a call uses, of one of the tables.
type use struct {
	table  *handleTable
	handle uint64
}

// onBoth makes a call with two handles. The lock of the second one, if it has any, is inside that
// of the first.
func (v *device) onBoth(call string, first, second use, f func() C.CUresult) error {
	var inner error
	err := v.onHandle(call, first.table, first.handle, func() (r C.CUresult) {
		inner = v.onHandle(call, second.table, second.handle, func() C.CUresult {
			r = f()
			return 0
		})
		return r
	})
	return cmp.Or(inner, err)
}

// onHandle makes a call with a handle that cannot be freed meanwhile.
func (v *device) onHandle(call string, table *handleTable, handle uint64, f func() C.CUresult) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	entry, err := table.acquire(call, handle, v)
	// Only streams can be another library's.
	if err == nil && entry == nil && table != &v.d.streams {
		err = refuse(call, driver.ErrInvalid, "no handle %#x", handle)
	}
	if err != nil {
		return err
	}
	defer entry.release(v)
	if table.oneAtATime {
		entry.call.Lock()
		defer entry.call.Unlock()
	}
	return v.checkWith(entry, call, f())
}

// checkWith is check for a call with a handle. Where that is another device's, a reset
// may be that device's.
func (v *device) checkWith(entry *tableEntry, call string, r C.CUresult) error {
	if entry != nil && entry.maker.n != v.n {
		return v.checkBoth(call, r)
	}
	return v.check(call, r)
}

// queueOf is a stream and the context in which work is queued on it: its maker's, or for
// another library's stream what the driver says. The default streams, which have no
// entry either, are v's.
func (v *device) queueOf(entry *tableEntry, s driver.Stream) C.cuvmm_queue {
	q := C.cuvmm_queue{ctx: v.ctx, stream: stream(s)}
	switch {
	case entry != nil:
		q.ctx = entry.maker.ctx
	case s > lastDefault:
		q.foreign = 1
	}
	return q
}

// lastDefault is CU_STREAM_PER_THREAD, the last of CUDA's special handles.
const lastDefault driver.Stream = 2

// onQueue is onStream for a call that may be made with a stream of any device.
func (v *device) onQueue(call string, s driver.Stream, f func(C.cuvmm_queue) C.CUresult) error {
	if err := v.begin(call); err != nil {
		return err
	}
	defer v.end()
	entry, err := v.d.streams.acquire(call, uint64(s), v)
	if err != nil {
		return err
	}
	defer entry.release(v)
	return v.checkQueued(entry, s, call, f(v.queueOf(entry, s)))
}

// checkQueued is checkWith for work on a stream. Where that is another library's, a reset
// may be of the stream's own context.
func (v *device) checkQueued(entry *tableEntry, s driver.Stream, call string, r C.CUresult) error {
	if entry == nil && s > lastDefault {
		return v.checkBoth(call, r)
	}
	return v.checkWith(entry, call, r)
}

// freeHandle frees a handle of this package.
func (v *device) freeHandle(call string, table *handleTable, handle uint64, destroy func(maker *device) C.CUresult) error {
	if err := v.beginEvenLost(call); err != nil {
		return err
	}
	defer v.end()
	return table.remove(call, handle, v, func(e *tableEntry) error {
		return e.destroy(call, func() C.CUresult { return destroy(e.maker) })
	})
}

// destroy makes the call that frees a handle. One that a reset has ended is only taken
// off the table.
func (e *tableEntry) destroy(call string, f func() C.CUresult) error {
	if e.maker.reset.Load() {
		return nil
	}
	return e.maker.checkFree(call, f())
}

// stream is a handle as C wants it. It points into the driver's memory, never
// into Go's.
func stream(s driver.Stream) C.CUstream { return C.CUstream(pointer(uint64(s))) }
