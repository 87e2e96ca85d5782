package collective

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// growCall is this member's part of a call that appends to memory of the members. It has three
// steps: the members exchange how much each sends, each grows what it appends to, in place, and
// each queues its part of the transfer.
type growCall struct {
	name string // the same for all members, and for no other call
	root int    // if the call has one; the same for all members

	dst     *vmm.Range // where this member appends
	appends bool       // this member may get something
	src     vmm.Span
	source  *vmm.Range // the range that src is in; nil if it is in none
	layout  uint64     // layoutSum of the elements; 0 if it is not known
	unit    uint64     // bytes from one element to the next
	offsets []uint64   // in src, of what each member gets
	counts  []uint64   // bytes of src that each member gets
	toAll   bool       // all members get all of the root's src

	free     uint64   // bytes that dst has beyond its length
	releases []func() // of what is held mapped until all is queued

	err error // why this member cannot make the call
}

// Words of what a member tells, before the counts.
const (
	headerCall   = iota // the call and its root
	headerLayout        // of the elements; 0: any
	headerFree          // bytes that it can append without growing
	headerFailed        // it cannot make the call
	headerCounts
)

// headerWords is how many words a member tells: at least two counts.
func headerWords(size int) int { return headerCounts + max(size, 2) }

// AllGather appends src of all members to dst of each, in the order of their ranks. The lengths
// may differ; it returns them by rank, in bytes. dst is a Range or has one, as a Vector does, and
// grows in place. src may be in the same Range.
//
// It waits until all members make the call. When it returns, dst has its new length; the bytes
// are there once the stream has run.
//
// If one member cannot make the call, for lack of memory, or because its arguments would tear an
// element, say, then none does: that member returns its own error, the others ErrPeerFailed. If
// members make different calls that grow memory, or have elements of different kinds, all return
// ErrMismatch. After these errors lengths and bytes of dst are as before, and the group goes on.
// The errors that end the group are those of Do and Sync. While the stream is being captured it
// returns vmm.ErrCapturing.
//
// Until the call returns, Clip, Sleep and Close of a Range that it uses, or of what has one,
// return vmm.ErrBusy, and no other goroutine may append to dst.
func (g *Group) AllGather(ctx context.Context, st *vmm.Stream, dst, src Memory) (lengths []uint64, err error) {
	return g.makeGrowCall(ctx, st, "gather all", func(c *growCall) {
		c.appendTo(dst)
		c.sendFrom(src)
		for i := range c.counts {
			c.counts[i] = c.src.Size
		}
	})
}

// Exchange sends counts[i] bytes of src to the member of rank i, one part after the other, and
// appends what all members send to this one to dst, in the order of their ranks. The counts add
// up to src. It returns the bytes received by rank. In all else it is as AllGather.
func (g *Group) Exchange(ctx context.Context, st *vmm.Stream, dst, src Memory, counts []uint64) (received []uint64, err error) {
	return g.makeGrowCall(ctx, st, "exchange", func(c *growCall) {
		c.appendTo(dst)
		c.sendFrom(src)
		c.split(counts)
	})
}

// Gather appends src of all members to dst of the member root, in the order of their ranks. It
// returns the lengths by rank, in bytes. In all else it is as AllGather.
//
// At the other members dst is not used and may be nil, and the lengths are zeros. The call returns
// there once all members have made it, the root has the memory, and src is queued to be sent. The
// errors are those of AllGather: if the root cannot grow dst, ErrPeerFailed. A nil error does not
// mean that the root has the bytes, and neither does one of a later Sync: that means that src has
// been sent and may be changed. The root can still fail, and only its own Sync says that the bytes
// are there.
func (g *Group) Gather(ctx context.Context, st *vmm.Stream, root int, dst, src Memory) (lengths []uint64, err error) {
	return g.makeGrowCall(ctx, st, "gather", func(c *growCall) {
		if c.setRoot(root); root == g.rank {
			c.appendTo(dst)
		}
		if c.sendFrom(src); c.err == nil {
			c.counts[root] = c.src.Size
		}
	})
}

// Scatter sends counts[i] bytes of src of the member root to the member of rank i, which
// appends them to dst. src and counts of the others may be nil. It returns the bytes received.
// In all else it is as AllGather.
func (g *Group) Scatter(ctx context.Context, st *vmm.Stream, root int, dst, src Memory, counts []uint64) (received uint64, err error) {
	return g.makeRootedCall(ctx, st, "scatter", root, func(c *growCall) {
		if c.appendTo(dst); root == g.rank {
			c.sendFrom(src)
			c.split(counts)
		}
	})
}

// AppendFrom appends src of the member root to dst of all members, the root's included. src of
// the others may be nil. It returns the bytes received. In all else it is as AllGather.
func (g *Group) AppendFrom(ctx context.Context, st *vmm.Stream, root int, dst, src Memory) (received uint64, err error) {
	return g.makeRootedCall(ctx, st, "append from", root, func(c *growCall) {
		c.toAll = true
		if c.appendTo(dst); root == g.rank {
			c.sendFrom(src)
			for i := range c.counts {
				c.counts[i] = c.src.Size
			}
		}
	})
}

// makeRootedCall is makeGrowCall for a call in which all bytes come from the root.
func (g *Group) makeRootedCall(ctx context.Context, st *vmm.Stream, name string, root int, prepare func(*growCall)) (received uint64, err error) {
	all, err := g.makeGrowCall(ctx, st, name, func(c *growCall) {
		c.setRoot(root)
		prepare(c)
	})
	if err != nil {
		return 0, err
	}
	return all[root], nil
}

// setRoot sets the root.
func (c *growCall) setRoot(root int) {
	if c.root = root; root < 0 || root >= len(c.counts) {
		c.fail(fmt.Errorf("%w: member %d of %d", vmm.ErrInvalid, root, len(c.counts)))
	}
}

// fail records why this member cannot make the call.
func (c *growCall) fail(err error) { c.err = cmp.Or(c.err, err) }

// appendTo sets dst, and holds it mapped.
func (c *growCall) appendTo(dst Memory) {
	r, err := rangeOf(dst)
	if err != nil {
		c.fail(fmt.Errorf("what is appended to: %w", err))
		return
	}
	c.dst, c.appends = r, true
	c.setLayout(dst)
	for {
		n := r.Cap()
		err := c.hold(r, 0, n)
		if err == nil {
			c.free = n - min(r.Len(), n)
			return
		}
		if n == r.Cap() { // else it was clipped meanwhile
			c.fail(fmt.Errorf("what is appended to: %w", err))
			return
		}
	}
}

// hold keeps memory mapped until release: calls that would unmap it return vmm.ErrBusy.
func (c *growCall) hold(r *vmm.Range, off, n uint64) error {
	release, err := inside.VMM.HoldRange(r, "a collective call", off, n)
	if err == nil {
		c.releases = append(c.releases, release)
	}
	return err
}

func (c *growCall) release() {
	for _, f := range c.releases {
		f()
	}
	c.releases = nil
}

// sendFrom sets src, and holds it mapped. The caller sets counts.
func (c *growCall) sendFrom(src Memory) {
	s, err := spanOf(src, vmm.AccessRead, new(vmm.MemoryArg))
	if err != nil {
		c.fail(fmt.Errorf("what is sent: %w", err))
		return
	}
	c.src = s
	c.setLayout(src)
	for p, ok := src.(part); ok; p, ok = src.(part) {
		src = p.of
	}
	if r, err := rangeOf(src); err == nil {
		c.source = r
		if err := c.hold(r, uint64(s.Addr-r.Ptr()), s.Size); err != nil {
			c.fail(fmt.Errorf("what is sent: %w", err))
		}
	}
}

// split sets the parts of src that each member gets.
func (c *growCall) split(counts []uint64) {
	sum := uint64(0)
	for i, n := range counts {
		if i < len(c.counts) {
			c.counts[i], c.offsets[i] = n, sum
		}
		if sum += n; sum < n || n > c.src.Size {
			sum = c.src.Size + 1
			break
		}
	}
	if c.err == nil && (len(counts) != len(c.counts) || sum != c.src.Size) {
		c.fail(fmt.Errorf("%w: counts %v for %d members do not add up to %d bytes", vmm.ErrInvalid, counts, len(c.counts), c.src.Size))
	}
}

// setLayout sets the layout to that of x. Memory without one fits any.
func (c *growCall) setLayout(x Memory) {
	l, ok := layoutOf(x)
	if !ok {
		return
	}
	sum := layoutSum(l)
	if c.layout != 0 && c.layout != sum {
		c.fail(fmt.Errorf("%w: what is sent has other elements than what it is appended to: %v", vmm.ErrInvalid, l))
	}
	c.layout = sum
	for p, ok := x.(part); ok; p, ok = x.(part) {
		x = p.of
	}
	c.unit = unitOf(x)
}

// checkWhole fails the call if it would tear elements.
func (c *growCall) checkWhole() {
	if c.err != nil || c.unit < 2 {
		return
	}
	for i, n := range c.counts {
		if n%c.unit != 0 {
			c.fail(fmt.Errorf("%w: %d bytes for member %d, of elements of %d bytes", vmm.ErrInvalid, n, i, c.unit))
		}
	}
	if c.appends && c.dst.Len()%c.unit != 0 {
		c.fail(fmt.Errorf("%w: what is appended to has %d bytes, of elements of %d", vmm.ErrInvalid, c.dst.Len(), c.unit))
	}
}

// rangeOf returns the range that grows when something is appended to x.
func rangeOf(x Memory) (*vmm.Range, error) {
	r, ok := x.(*vmm.Range)
	if !ok {
		has, ok := x.(interface{ Range() *vmm.Range })
		if !ok {
			return nil, fmt.Errorf("%w: %T does not grow", vmm.ErrInvalid, x)
		}
		r = has.Range()
	}
	_, err := spanOf(r, vmm.AccessReadWrite, new(vmm.MemoryArg))
	return r, err
}

// makeGrowCall makes the call that prepare sets up, and returns the bytes received by rank.
func (g *Group) makeGrowCall(ctx context.Context, st *vmm.Stream, name string, prepare func(*growCall)) (received []uint64, err error) {
	err = g.withGrowCall(ctx, st, name, prepare, func(c *growCall) (err error) {
		received, err = g.runGrowCall(ctx, st, c)
		return err
	})
	return received, err
}

// withGrowCall calls run with the call that prepare sets up. Memory is held until it returns.
func (g *Group) withGrowCall(ctx context.Context, st *vmm.Stream, name string, prepare func(*growCall), run func(*growCall) error) error {
	if err := g.begin(ctx); err != nil {
		return g.op(name, err)
	}
	defer g.end()
	c := &growCall{name: name, offsets: make([]uint64, g.size), counts: make([]uint64, g.size)}
	defer c.release()
	prepare(c)
	if c.checkWhole(); c.err == nil {
		c.err = c.usable(st, g.dev)
	}
	return g.op(name, run(c))
}

// usable returns an error if work on the stream could not run now, or not use the memory that is
// mapped.
func (c *growCall) usable(st *vmm.Stream, dev *vmm.Device) error {
	if err := checkStream(st, dev); err != nil {
		return err
	}
	if err := st.Usable(); err != nil {
		return err
	}
	if c.source != nil && c.source.Access(dev) == vmm.AccessNone {
		return fmt.Errorf("%w: %v cannot read memory of %v", vmm.ErrPermission, dev, c.source.Device())
	}
	spans := []vmm.Span{c.src}
	if c.appends {
		if c.dst.Access(dev) != vmm.AccessReadWrite {
			return fmt.Errorf("%w: %v cannot write to memory of %v", vmm.ErrPermission, dev, c.dst.Device())
		}
		spans = append(spans, vmm.Span{Addr: c.dst.Ptr(), Size: c.dst.Cap(), Access: vmm.AccessReadWrite})
	}
	unlock, err := st.LockSpans(spans...)
	if err == nil {
		unlock()
	}
	return err
}

// grow makes n bytes more of memory to append to, which work on the stream can use.
func (c *growCall) grow(st *vmm.Stream, dev *vmm.Device, n uint64) error {
	for {
		if err := c.dst.Grow(n); err != nil {
			return err
		}
		err := c.hold(c.dst, c.dst.Len(), n)
		if err == nil {
			return c.usable(st, dev)
		}
		if !errors.Is(err, vmm.ErrBounds) { // else it was clipped meanwhile
			return err
		}
	}
}

func (g *Group) runGrowCall(ctx context.Context, st *vmm.Stream, c *growCall) (received []uint64, err error) {
	headers, err := g.exchangeHeaders(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := g.checkSameCall(c, headers); err != nil {
		return nil, err
	}
	// From the headers each member knows whether one of them has to grow. If so, all of them
	// exchange results.
	grow, mine := false, uint64(0)
	received = make([]uint64, g.size)
	for i := range headers {
		total := uint64(0)
		for j := range headers {
			n := headers[j][headerCounts+i]
			if total += n; i == g.rank {
				received[j] = n
			}
		}
		grow = grow || total > headers[i][headerFree]
		if i == g.rank {
			mine = total
		}
	}
	if grow {
		if mine > 0 {
			err = c.grow(st, g.dev, mine)
		}
		if err := g.exchangeResults(ctx, err); err != nil {
			return nil, err
		}
	}
	added := vmm.Span{Size: mine}
	if c.appends {
		added.Addr = c.dst.Ptr() + vmm.Ptr(c.dst.Len())
	}
	if err = g.queueTransfers(ctx, st, c, added.Addr, received); err == nil && mine > 0 {
		err = c.dst.SetLen(c.dst.Len() + mine)
	}
	if err != nil {
		return nil, err
	}
	return received, nil
}

// exchangeHeaders tells the others what this member sends.
func (g *Group) exchangeHeaders(ctx context.Context, c *growCall) ([][]uint64, error) {
	words := make([]uint64, headerWords(g.size))
	words[headerCall] = sumOf(binary.LittleEndian.AppendUint64([]byte(c.name), uint64(c.root)))
	words[headerLayout] = c.layout
	if c.err != nil {
		words[headerFailed] = 1
	} else {
		copy(words[headerCounts:], c.counts)
	}
	words[headerFree] = c.free
	return g.allGatherWords(ctx, words...)
}

// checkSameCall returns an error if the members do not all make the same call, or one cannot make
// it. It decides the same on all of them.
func (g *Group) checkSameCall(c *growCall, headers [][]uint64) error {
	for i, w := range headers {
		if w[headerCall] != headers[g.rank][headerCall] {
			return fmt.Errorf("%w: rank %d makes another call, or has another root", ErrMismatch, i)
		}
	}
	if err := checkNoneFailed(c.err, headers, headerFailed); err != nil {
		return err
	}
	first := -1 // that has elements of a known kind
	for i, w := range headers {
		switch {
		case w[headerLayout] == 0:
		case first < 0:
			first = i
		case w[headerLayout] != headers[first][headerLayout]:
			return fmt.Errorf("%w: ranks %d and %d have elements of different kinds", ErrMismatch, first, i)
		}
	}
	return nil
}

// checkNoneFailed returns an error if a member has failed: its own, or ErrPeerFailed.
func checkNoneFailed(own error, headers [][]uint64, word int) error {
	if own != nil {
		return own
	}
	for i, w := range headers {
		if w[word] != 0 {
			return fmt.Errorf("%w: rank %d", ErrPeerFailed, i)
		}
	}
	return nil
}

// exchangeResults tells the others whether this member has the memory that the call needs. It is
// nil if all have.
func (g *Group) exchangeResults(ctx context.Context, err error) error {
	failed := uint64(0)
	if err != nil {
		failed = 1
	}
	headers, lost := g.allGatherWords(ctx, failed)
	if lost != nil {
		return errors.Join(lost, err)
	}
	return checkNoneFailed(err, headers, 0)
}

// queueTransfers queues what this member sends, and what it receives, to memory from at on. The
// others wait for that, so an error ends the group.
func (g *Group) queueTransfers(ctx context.Context, st *vmm.Stream, c *growCall, at vmm.Ptr, received []uint64) error {
	write := func(n uint64) Memory { return Span{Addr: at, Size: n, Access: vmm.AccessReadWrite} }
	var ops []Op
	if c.toAll {
		ops = append(ops, Broadcast(c.root, write(received[c.root]), Span(c.src)))
	} else {
		for i, n := range c.counts {
			if n > 0 {
				ops = append(ops, Send(Span{Addr: c.src.Addr + vmm.Ptr(c.offsets[i]), Size: n, Access: vmm.AccessRead}, i))
			}
		}
		for i, n := range received {
			if n > 0 {
				ops = append(ops, Recv(write(n), i))
				at += vmm.Ptr(n)
			}
		}
	}
	return g.failIf(g.do(ctx, st, ops...))
}

// layoutSum is a number that tells layouts apart. It is not 0.
func layoutSum(l vmm.Layout) uint64 { return sumOf([]byte(fmt.Sprintf("%v %x", l, l.Hash))) | 1 }

// sumOf is the FNV-1a sum of b, 64 bits.
func sumOf(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}
