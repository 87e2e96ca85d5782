package kernel

import "github.com/cuvmm/cuvmm/vmm"

// DeviceCursor is a Cursor as kernels see it: cuvmm::cursor of cuvmm_append.cuh. It is for
// functions of a Host; one of them runs at a time on a stream, so nothing is atomic here.
type DeviceCursor struct {
	reserved   uint64 // elements asked for, those that did not fit included
	written    uint64 // where the first reservation began that did not fit
	unfinished uint64 // items noted
	wrongSize  uint64 // bytes of what was appended and is no element; 0: nothing
	_          [12]uint64
	capacity   uint64  // elements that data has memory for
	data       vmm.Ptr // the first element
	items      vmm.Ptr // numbers of the items noted, 8 bytes each
	limit      uint64  // how many there is memory for
	todo       vmm.Ptr // items of this launch; 0: all
	todoCount  uint64
	elemSize   uint64 // bytes of an element
}

// noCapacityCheck is the negative control of the tests.
var noCapacityCheck bool

// AppendTo appends elements, all or none: false says that they do not fit, or that a T has not
// the size of an element, which is an error of Append. It is append and tile_appender of
// cuvmm_append.cuh.
func AppendTo[T any](c *DeviceCursor, values ...T) bool {
	if c.elemSize != sizeOf[T]() {
		c.wrongSize = sizeOf[T]()
		return false
	}
	n := uint64(len(values))
	if n == 0 {
		return true
	}
	first := c.reserved
	c.reserved += n
	if first+n > c.capacity && !noCapacityCheck {
		if first <= c.capacity {
			c.written = first
		}
		return false
	}
	copy(Slice[T](c.data, first+n)[first:], values)
	return true
}

// ItemCount is how many work items this launch has, of all that there are.
func (c *DeviceCursor) ItemCount(all uint64) uint64 {
	if c.todo != 0 {
		return c.todoCount
	}
	return all
}

// Item is the number of the i-th work item of this launch.
func (c *DeviceCursor) Item(i uint64) uint64 {
	if c.todo != 0 {
		return Slice[uint64](c.todo, c.todoCount)[i]
	}
	return i
}

// NoteUnfinished notes that a work item has to be done again, because its elements did not
// fit.
func (c *DeviceCursor) NoteUnfinished(item uint64) {
	if c.unfinished < c.limit {
		Slice[uint64](c.items, c.limit)[c.unfinished] = item
	}
	c.unfinished++
}
