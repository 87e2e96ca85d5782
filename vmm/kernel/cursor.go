package kernel

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"sync"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/nonnil"
	"github.com/cuvmm/cuvmm/vmm"
)

// Cursor appends to a range from kernels. It is a few words of device memory, which a kernel
// gets as a cuvmm::cursor * (see cuvmm_append.cuh) and a Go function of a Host as a
// *DeviceCursor. The kernel reserves memory by adding to a count. What does not fit in the
// range's memory is counted and not written, and the kernel notes which of its work items
// that was. Append then grows the range, at its address, and has the kernel run again for
// those items alone.
//
// Safe for concurrent use; one Append runs at a time. While one does, nothing else may
// change the range's length. The caller must Close the Cursor, before the range.
type Cursor struct {
	dst   *vmm.Range
	elem  uint64 // bytes of an element
	words *vmm.Range

	mu         sync.Mutex // held by Append to its end
	unfinished uint64     // items of the last Append that are not done
	items      uint64     // of the last Append: how long the two lists are
	listed     bool       // a list has the unfinished items; else they are all
	noted      uint64     // 0 or 1: which list
	last       uint64     // elements that the last Append appended
}

// The words of a cursor, as cuvmm_append.cuh has them.
const (
	wordReserved   = 0
	wordWritten    = 1
	wordUnfinished = 2
	wordWrongSize  = 3

	// In another cache line.
	wordCapacity  = 16
	wordData      = 17
	wordItems     = 18
	wordLimit     = 19
	wordTodo      = 20
	wordTodoCount = 21
	wordElemSize  = 22

	cursorWords = 23
)

// listsAt is where the lists of items begin, behind the words.
const listsAt = 256

// Growable is memory that grows: a growable.Vector or Rows.
type Growable interface {
	Memory
	Range() *vmm.Range
}

// NewCursor makes a cursor that appends elements, or rows, to dst. It takes memory for its
// words, and for the lists of items that Append needs: 16 bytes for each. The caller must
// Close it.
func NewCursor(dst Growable) (*Cursor, error) {
	elem := argOf(dst).Stride
	if elem == 0 {
		return nil, fmt.Errorf("make cursor: %w: nothing to append to", vmm.ErrInvalid)
	}
	// The first Append has it grow.
	words, err := dst.Range().Device().NewRange(vmm.RangeOptions{Max: 1 << 34})
	if err != nil {
		return nil, fmt.Errorf("make cursor: %w", err)
	}
	return &Cursor{dst: dst.Range(), elem: elem, words: words}, nil
}

// Close gives the cursor's memory back, after waiting for work that may use it. Twice is
// fine, and so is a nil Cursor.
func (c *Cursor) Close() error {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.words.Close()
}

// MemoryArg sets m to the cursor's words.
func (c *Cursor) MemoryArg(m *vmm.MemoryArg) {
	if m == nil {
		return
	}
	if c == nil {
		*m = vmm.MemoryArg{}
		return
	}
	c.words.MemoryArg(m)
}

// capacity is the memory that a kernel may append to: the range's up to Cap.
type capacity struct{ r *vmm.Range }

func (x capacity) MemoryArg(m *vmm.MemoryArg) {
	x.r.MemoryArg(m)
	m.Size = x.r.Cap()
}

// Append has kernels append to the range. launch queues on the stream the kernels that do
// the given number of work items, with the cursor among their arguments: all of the items
// the first time; if some did not fit, again with as many as did not, and
// cuvmm::item tells the kernel which. What an item is, is up to the kernel: a tile of the
// input, an element. It must append all that is of an item or nothing.
//
// Append returns how many elements were appended, and the range's length includes them. It
// waits for the stream, and for no other. While the kernel runs, the range already grows for
// the next Append, as if that would append as much as the last one: out of free memory alone, see
// vmm.Range.GrowAhead. At its end Append gives back what it took so, but for room for as many
// elements as it has appended.
//
// If the range cannot grow any more, Append returns that error (vmm.ErrFull, vmm.ErrOutOfMemory),
// and what fitted has been appended. After any error Resume continues with the items that are
// unfinished. An Append of other items forgets them; one of 0 items, which does nothing
// otherwise, returns vmm.ErrInvalid instead.
//
// During an Append, Clip, Sleep and Close of the range return vmm.ErrBusy, and nothing else may use
// its memory beyond Len. launch must not call a method of the cursor.
func (c *Cursor) Append(s *vmm.Stream, items uint64, launch func(items uint64) error) (n uint64, err error) {
	return c.run(s, launch, func() error { return c.begin(items) })
}

// Resume continues with the items that the last Append, or Resume, could not finish, and
// returns how many elements it has appended itself.
func (c *Cursor) Resume(s *vmm.Stream, launch func(items uint64) error) (n uint64, err error) {
	return c.run(s, launch, func() error { return nil })
}

// Unfinished is how many items the last Append could not finish.
func (c *Cursor) Unfinished() uint64 {
	c = nonnil.Of(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unfinished
}

// begin makes all of the items unfinished, and room for two lists with a number for each.
func (c *Cursor) begin(items uint64) error {
	if items == 0 {
		if c.unfinished > 0 {
			return fmt.Errorf("%w: no items, and %d of the last Append are unfinished: Resume goes on with those", vmm.ErrInvalid, c.unfinished)
		}
		return nil
	}
	if most := (c.words.Max() - listsAt) / 16; items > most {
		return fmt.Errorf("%w: %d items, more than %d", vmm.ErrInvalid, items, most)
	}
	if need := listsAt + 16*items; need > c.words.Cap() {
		if err := c.words.Grow(need - c.words.Len()); err != nil {
			return err
		}
	}
	if err := c.words.SetLen(max(c.words.Len(), listsAt+16*items)); err != nil {
		return err
	}
	c.items, c.unfinished, c.listed = items, items, false
	return nil
}

// run does the items that are unfinished after begin.
func (c *Cursor) run(s *vmm.Stream, launch func(uint64) error, begin func() error) (n uint64, err error) {
	if c == nil || c.words == nil {
		return 0, c.fail(fmt.Errorf("%w: no cursor", vmm.ErrInvalid))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if launch == nil {
		return 0, c.fail(fmt.Errorf("%w: nothing to launch", vmm.ErrInvalid))
	}
	if err := begin(); err != nil {
		return 0, c.fail(err)
	}
	if c.unfinished == 0 {
		return 0, nil
	}
	// A range may have a length of any number of bytes.
	first := c.dst.Len() / c.elem
	if first*c.elem != c.dst.Len() {
		return 0, c.fail(fmt.Errorf("%w: %d bytes are no whole number of elements of %d", vmm.ErrInvalid, c.dst.Len(), c.elem))
	}
	var giveBack func(keep uint64, s *vmm.Stream) // of the growth ahead in the first pass
	defer func() {
		if giveBack != nil {
			giveBack(n*c.elem, s)
		}
	}()
	for {
		res, err := c.pass(s, launch, func() {
			if giveBack == nil { // for this Append and the next, as if each appended as much as the last one
				giveBack = inside.VMM.GrowAhead(c.dst, 2*c.last*c.elem)
			}
		})
		n = res.written - first
		if err != nil {
			return n, c.fail(err)
		}
		if c.unfinished == 0 {
			c.last = n
			return n, nil
		}
		if res.reserved <= res.written {
			return n, c.fail(fmt.Errorf("%w: the kernel has noted %d items as unfinished, and everything did fit", vmm.ErrInvalid, c.unfinished))
		}
		// All items have said what they need, so one growth is enough.
		over, need := bits.Mul64(res.reserved-res.written, c.elem)
		if over != 0 {
			return n, c.fail(fmt.Errorf("%w: the kernel has reserved %d elements", vmm.ErrFull, res.reserved))
		}
		if err := c.grow(need); err != nil {
			return n, c.fail(err)
		}
	}
}

// grow makes the range grow by n bytes, or to its maximum if that is less and not yet
// reached.
func (c *Cursor) grow(n uint64) error {
	err := c.dst.Grow(n)
	if errors.Is(err, vmm.ErrFull) && c.dst.Cap() < c.dst.Max() {
		return c.dst.Grow(c.dst.Max() - c.dst.Len())
	}
	return err
}

func (c *Cursor) fail(err error) error { return fmt.Errorf("append from the device: %w", err) }

// holdAll holds all the memory that the range has, and returns its size.
func (c *Cursor) holdAll() (size uint64, release func(), err error) {
	for {
		size = c.dst.Cap()
		release, err = inside.VMM.HoldRange(c.dst, "kernels that append", 0, size)
		if !errors.Is(err, vmm.ErrBounds) { // else it was clipped in between
			return size, release, err
		}
	}
}

// passed is the state of a cursor after a pass.
type passed struct{ reserved, written uint64 }

// pass launches the unfinished items once, and calls whileRunning when they are queued.
func (c *Cursor) pass(s *vmm.Stream, launch func(uint64) error, whileRunning func()) (res passed, err error) {
	res.written = c.dst.Len() / c.elem
	// Nothing that the kernel may write is clipped before Len includes it.
	size, release, err := c.holdAll()
	if err != nil {
		return res, err
	}
	defer release()
	// After an error a kernel may still run, and write.
	defer func() {
		if err != nil {
			_ = s.Sync() // the first error counts
		}
	}()
	// The words go to the device, the kernel runs, and the words come back.
	var w [8 * cursorWords]byte
	put := func(i int, v uint64) { binary.NativeEndian.PutUint64(w[8*i:], v) }
	word := func(i int) uint64 { return binary.NativeEndian.Uint64(w[8*i:]) }
	list := func(i uint64) uint64 { return uint64(c.words.Ptr()) + listsAt + 8*c.items*i }
	var to uint64 // the list in which this pass notes items
	if c.listed { // the other one is read
		to = 1 - c.noted
	}
	put(wordReserved, res.written)
	put(wordCapacity, size/c.elem)
	put(wordWritten, math.MaxUint64) // until a reservation does not fit
	put(wordData, uint64(c.dst.Ptr()))
	put(wordItems, list(to))
	put(wordLimit, c.items)
	put(wordElemSize, c.elem)
	if c.listed {
		put(wordTodo, list(c.noted))
		put(wordTodoCount, c.unfinished)
	}
	if err := s.CopyIn(c.words.Ptr(), w[:]); err != nil {
		return res, err
	}
	if err := launch(c.unfinished); err != nil {
		return res, err
	}
	// A launch of somebody else's, later, finds no capacity: nothing would hold the memory.
	if err := s.Fill(c.words.Ptr()+8*wordCapacity, 0, 4, 2); err != nil {
		return res, err
	}
	whileRunning()
	if err := s.CopyOut(w[:], c.words.Ptr()); err != nil {
		return res, err
	}
	if size := word(wordWrongSize); size != 0 {
		return res, fmt.Errorf("%w: the kernel appends values of %d bytes to elements of %d", vmm.ErrInvalid, size, c.elem)
	}
	// A kernel that does not use the cursor as it should must not set a wrong length.
	full := min(word(wordWritten), word(wordReserved))
	if full < res.written || full > size/c.elem || word(wordUnfinished) > c.items {
		return res, fmt.Errorf("%w: the kernel has left the cursor with %d elements of %d, and %d of %d items unfinished",
			vmm.ErrInvalid, full, size/c.elem, word(wordUnfinished), c.items)
	}
	if word(wordReserved) > full && word(wordUnfinished) == 0 {
		return res, fmt.Errorf("%w: %d elements did not fit, and the kernel has noted no item as unfinished",
			vmm.ErrInvalid, word(wordReserved)-full)
	}
	if c.dst.Len()/c.elem != res.written {
		return res, fmt.Errorf("%w: the range's length was changed meanwhile", vmm.ErrBusy)
	}
	if err := c.dst.SetLen(full * c.elem); err != nil {
		return res, err
	}
	c.noted, c.listed = to, true
	c.unfinished = word(wordUnfinished)
	return passed{word(wordReserved), full}, nil
}
