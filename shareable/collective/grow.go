package collective

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"

	"github.com/cuvmm/cuvmm/vmm"
)

// move is a call that appends to memory of the members what others have: first they tell each
// other how much, then each grows what it appends to, in place, and then all of it is queued
// as one.
type move struct {
	name string // the same for all members, and for no other call
	root int    // where the call has one; the same for all members

	dst     *vmm.Range // where this member appends
	appends bool       // this member may get something
	src     vmm.Span
	source  *vmm.Range // that has src, if a range does
	layout  uint64     // of the elements; 0 if it is not known
	unit    uint64     // bytes from one element to the next
	offsets []uint64
	counts  []uint64 // bytes of src that go to each member, from its offset on
	toAll   bool     // the root sends all of src to everyone

	free     uint64   // bytes that dst has beyond its length
	releases []func() // of what is held mapped until all is queued

	err error // why this member cannot make the call
}

// Words of what a member tells, before the counts.
const (
	saysCall   = iota // the call and its root
	saysLayout        // of the elements; 0: any
	saysFree          // bytes that it can append without growing
	saysFailed        // it cannot make the call
	saysCounts
)

// saysWords is how many words a member tells: at least two counts.
func saysWords(size int) int { return saysCounts + max(size, 2) }

// AllGather appends src of all members to dst of each, in the order of their ranks, whatever
// lengths they have. It returns those, in bytes. dst grows by them in place, a Range or what
// has one, like a Vector; src may be dst's bytes themselves.
//
// It waits until all members have told their lengths. The bytes are there when the stream has
// run, the length at once. If one member cannot make the call, because it has no memory or was
// passed what cannot be, a part of an element say, then none does: that one returns why, the
// others ErrPeerFailed. Lengths and bytes of dst are as before then, and the group goes on. Members that make another
// call, or have elements of another kind, get ErrMismatch, all of them. What ends the group is
// said at Do and Sync. While the stream is being captured it returns vmm.ErrCapturing. Until the
// call returns, Clip, Sleep and Close of a Range that it uses, or of what has one, return
// vmm.ErrBusy.
func (g *Group) AllGather(ctx context.Context, st *vmm.Stream, dst, src Memory) (lengths []uint64, err error) {
	return g.move(ctx, st, "gather all", func(m *move) {
		m.to(dst)
		m.from(src)
		for i := range m.counts {
			m.counts[i] = m.src.Size
		}
	})
}

// Exchange sends counts[i] bytes of src to the member of rank i, one part after the other, and
// appends what the others send to dst, in the order of their ranks. The counts add up to src.
// It returns how much came from each, in bytes. What is said at AllGather holds.
func (g *Group) Exchange(ctx context.Context, st *vmm.Stream, dst, src Memory, counts []uint64) (received []uint64, err error) {
	return g.move(ctx, st, "exchange", func(m *move) {
		m.to(dst)
		m.from(src)
		m.split(counts)
	})
}

// Gather appends src of all members to dst of the member root, in the order of their ranks.
// dst of the others may be nil. It returns the lengths at the root, and nothing elsewhere.
// What is said at AllGather holds.
func (g *Group) Gather(ctx context.Context, st *vmm.Stream, root int, dst, src Memory) (lengths []uint64, err error) {
	return g.move(ctx, st, "gather", func(m *move) {
		if m.rooted(root); root == g.rank {
			m.to(dst)
		}
		if m.from(src); m.err == nil {
			m.counts[root] = m.src.Size
		}
	})
}

// Scatter sends counts[i] bytes of src of the member root to the member of rank i, which
// appends them to dst. src and counts of the others may be nil. It returns how many bytes this
// member got. What is said at AllGather holds.
func (g *Group) Scatter(ctx context.Context, st *vmm.Stream, root int, dst, src Memory, counts []uint64) (received uint64, err error) {
	got, err := g.move(ctx, st, "scatter", func(m *move) {
		m.rooted(root)
		if m.to(dst); root == g.rank {
			m.from(src)
			m.split(counts)
		}
	})
	if err != nil {
		return 0, err
	}
	return got[root], nil
}

// AppendFrom appends src of the member root to dst of all members, the root's included. src of
// the others may be nil. It returns how many bytes these are. What is said at AllGather holds.
func (g *Group) AppendFrom(ctx context.Context, st *vmm.Stream, root int, dst, src Memory) (received uint64, err error) {
	got, err := g.move(ctx, st, "append from", func(m *move) {
		m.toAll = true
		m.rooted(root)
		if m.to(dst); root == g.rank {
			m.from(src)
			for i := range m.counts {
				m.counts[i] = m.src.Size
			}
		}
	})
	if err != nil {
		return 0, err
	}
	return got[root], nil
}

// rooted sets the root.
func (m *move) rooted(root int) {
	if m.root = root; root < 0 || root >= len(m.counts) {
		m.fail(fmt.Errorf("%w: member %d of %d", vmm.ErrInvalid, root, len(m.counts)))
	}
}

// fail records why this member cannot make the call.
func (m *move) fail(err error) {
	if m.err == nil {
		m.err = err
	}
}

// to sets what is appended to.
func (m *move) to(dst Memory) {
	r, err := rangeOf(dst)
	if err != nil {
		m.fail(fmt.Errorf("what is appended to: %w", err))
		return
	}
	m.dst, m.appends = r, true
	m.elements(dst)
	for {
		n := r.Cap()
		err := m.hold(r, 0, n)
		if err == nil {
			m.free = n - min(r.Len(), n)
			return
		}
		if n == r.Cap() { // else it was clipped meanwhile
			m.fail(fmt.Errorf("what is appended to: %w", err))
			return
		}
	}
}

// hold keeps memory mapped until release. What would unmap it returns vmm.ErrBusy.
func (m *move) hold(r *vmm.Range, off, n uint64) error {
	release, err := r.Hold(off, n)
	if err == nil {
		m.releases = append(m.releases, release)
	}
	return err
}

func (m *move) release() {
	for _, f := range m.releases {
		f()
	}
	m.releases = nil
}

// from sets what is sent: all of it to no one yet.
func (m *move) from(src Memory) {
	s, err := spanOf(src, vmm.AccessRead)
	if err != nil {
		m.fail(fmt.Errorf("what is sent: %w", err))
		return
	}
	m.src = s
	m.elements(src)
	for p, ok := src.(part); ok; p, ok = src.(part) {
		src = p.of
	}
	if r, err := rangeOf(src); err == nil {
		m.source = r
		if err := m.hold(r, uint64(s.Addr-r.Ptr()), s.Size); err != nil {
			m.fail(fmt.Errorf("what is sent: %w", err))
		}
	}
}

// split sets what goes to each member.
func (m *move) split(counts []uint64) {
	sum := uint64(0)
	for i, n := range counts {
		if i < len(m.counts) {
			m.counts[i], m.offsets[i] = n, sum
		}
		if sum += n; sum < n || n > m.src.Size {
			sum = m.src.Size + 1
			break
		}
	}
	if m.err == nil && (len(counts) != len(m.counts) || sum != m.src.Size) {
		m.fail(fmt.Errorf("%w: counts %v for %d members do not add up to %d bytes", vmm.ErrInvalid, counts, len(m.counts), m.src.Size))
	}
}

// elements notes what the elements of x are. Memory that says nothing fits all.
func (m *move) elements(x Memory) {
	l, ok := layoutOf(x)
	if !ok {
		return
	}
	sum := layoutSum(l)
	if m.layout != 0 && m.layout != sum {
		m.fail(fmt.Errorf("%w: what is sent has other elements than what it is appended to: %v", vmm.ErrInvalid, l))
	}
	m.layout = sum
	for p, ok := x.(part); ok; p, ok = x.(part) {
		x = p.of
	}
	m.unit = unitOf(x)
}

// checkWhole fails the call if it would tear elements.
func (m *move) checkWhole() {
	if m.err != nil || m.unit < 2 {
		return
	}
	for i, n := range m.counts {
		if n%m.unit != 0 {
			m.fail(fmt.Errorf("%w: %d bytes for member %d, of elements of %d bytes", vmm.ErrInvalid, n, i, m.unit))
		}
	}
	if m.appends && m.dst.Len()%m.unit != 0 {
		m.fail(fmt.Errorf("%w: what is appended to has %d bytes, of elements of %d", vmm.ErrInvalid, m.dst.Len(), m.unit))
	}
}

// rangeOf is the range that grows when something is appended to x.
func rangeOf(x Memory) (*vmm.Range, error) {
	r, ok := x.(*vmm.Range)
	if !ok {
		has, ok := x.(interface{ Range() *vmm.Range })
		if !ok {
			return nil, fmt.Errorf("%w: %T does not grow", vmm.ErrInvalid, x)
		}
		r = has.Range()
	}
	_, err := spanOf(r, vmm.AccessReadWrite)
	return r, err
}

// move makes the call that prepare describes, and returns the bytes that came from each
// member.
func (g *Group) move(ctx context.Context, st *vmm.Stream, name string, prepare func(*move)) (received []uint64, err error) {
	if g == nil || g.dev == nil {
		return nil, g.op(name, errNoGroup)
	}
	if err := g.begin(ctx); err != nil {
		return nil, g.op(name, err)
	}
	defer g.end()
	m := &move{name: name, offsets: make([]uint64, g.size), counts: make([]uint64, g.size)}
	defer m.release()
	prepare(m)
	if m.checkWhole(); m.err == nil {
		m.err = m.usable(st, g.dev)
	}
	received, err = g.moveAll(ctx, st, m)
	return received, g.op(name, err)
}

// usable is nil if work on the stream would run now, and could use the memory that is there.
func (m *move) usable(st *vmm.Stream, dev *vmm.Device) error {
	if err := checkStream(st, dev); err != nil {
		return err
	}
	if err := st.Usable(); err != nil {
		return err
	}
	if m.source != nil && m.source.Access(dev) == vmm.AccessNone {
		return fmt.Errorf("%w: %v cannot read memory of %v", vmm.ErrPermission, dev, m.source.Device())
	}
	spans := []vmm.Span{m.src}
	if m.appends {
		if m.dst.Access(dev) != vmm.AccessReadWrite {
			return fmt.Errorf("%w: %v cannot write to memory of %v", vmm.ErrPermission, dev, m.dst.Device())
		}
		spans = append(spans, vmm.Span{Addr: m.dst.Ptr(), Size: m.dst.Cap(), Access: vmm.AccessReadWrite})
	}
	unlock, err := st.LockSpans(spans...)
	if err == nil {
		unlock()
	}
	return err
}

// grow makes n bytes more of memory to append to, which work on the stream can use.
func (m *move) grow(st *vmm.Stream, dev *vmm.Device, n uint64) error {
	for {
		if err := m.dst.Grow(n); err != nil {
			return err
		}
		err := m.hold(m.dst, m.dst.Len(), n)
		if err == nil {
			return m.usable(st, dev)
		}
		if !errors.Is(err, vmm.ErrBounds) { // else it was clipped meanwhile
			return err
		}
	}
}

func (g *Group) moveAll(ctx context.Context, st *vmm.Stream, m *move) (received []uint64, err error) {
	told, err := g.tellCounts(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := g.agree(m, told); err != nil {
		return nil, err
	}
	// Each knows whether one of them has to grow. Then they tell each other how it went.
	grow, mine := false, uint64(0)
	received = make([]uint64, g.size)
	for i := range told {
		total := uint64(0)
		for j := range told {
			n := told[j][saysCounts+i]
			if total += n; i == g.rank {
				received[j] = n
			}
		}
		grow = grow || total > told[i][saysFree]
		if i == g.rank {
			mine = total
		}
	}
	if grow {
		if err := g.growAll(ctx, st, m, mine); err != nil {
			return nil, err
		}
	}
	if err := g.queueMove(ctx, st, m, m.end(), received); err != nil {
		return nil, err
	}
	if mine == 0 {
		return received, nil
	}
	return received, m.dst.SetLen(m.dst.Len() + mine)
}

// end is where this member appends.
func (m *move) end() vmm.Ptr {
	if !m.appends {
		return 0
	}
	return m.dst.Ptr() + vmm.Ptr(m.dst.Len())
}

// tellCounts tells the others what this member sends.
func (g *Group) tellCounts(ctx context.Context, m *move) ([][]uint64, error) {
	words := make([]uint64, saysWords(g.size))
	words[saysCall], words[saysLayout] = callSum(m.name, m.root), m.layout
	if m.err != nil {
		words[saysFailed] = 1
	} else {
		copy(words[saysCounts:], m.counts)
	}
	words[saysFree] = m.free
	return g.tell(ctx, words...)
}

// agree is nil if all members can make the same call. It is the same for all of them.
func (g *Group) agree(m *move, told [][]uint64) error {
	for i, w := range told {
		if w[saysCall] != told[g.rank][saysCall] {
			return fmt.Errorf("%w: rank %d makes another call, or has another root", ErrMismatch, i)
		}
	}
	if err := allGood(m.err, told, saysFailed); err != nil {
		return err
	}
	first := -1 // that has elements of a known kind
	for i, w := range told {
		switch {
		case w[saysLayout] == 0:
		case first < 0:
			first = i
		case w[saysLayout] != told[first][saysLayout]:
			return fmt.Errorf("%w: ranks %d and %d have elements of different kinds", ErrMismatch, first, i)
		}
	}
	return nil
}

// allGood is nil if no member has failed; own is this one's failure.
func allGood(own error, told [][]uint64, word int) error {
	if own != nil {
		return own
	}
	for i, w := range told {
		if w[word] != 0 {
			return fmt.Errorf("%w: rank %d", ErrPeerFailed, i)
		}
	}
	return nil
}

// growAll has each member make room for what it gets, and tells the others whether that
// worked.
func (g *Group) growAll(ctx context.Context, st *vmm.Stream, m *move, bytes uint64) error {
	var err error
	if bytes > 0 {
		err = m.grow(st, g.dev, bytes)
	}
	return g.tellResult(ctx, err)
}

// tellResult tells the others whether this member has what the call needs. It is nil if all
// have.
func (g *Group) tellResult(ctx context.Context, err error) error {
	failed := uint64(0)
	if err != nil {
		failed = 1
	}
	told, lost := g.tell(ctx, failed)
	if lost != nil {
		return errors.Join(lost, err)
	}
	return allGood(err, told, 0)
}

// queueMove queues what this member sends, and what it gets to memory from at on. Others wait
// for that, so after an error there is no group any more.
func (g *Group) queueMove(ctx context.Context, st *vmm.Stream, m *move, at vmm.Ptr, received []uint64) error {
	write := func(n uint64) Memory { return Span{Addr: at, Size: n, Access: vmm.AccessReadWrite} }
	var ops []Op
	if m.toAll {
		ops = append(ops, Broadcast(m.root, write(received[m.root]), Span(m.src)))
	} else {
		for i, n := range m.counts {
			if n > 0 {
				ops = append(ops, Send(Span{Addr: m.src.Addr + vmm.Ptr(m.offsets[i]), Size: n, Access: vmm.AccessRead}, i))
			}
		}
		for i, n := range received {
			if n > 0 {
				ops = append(ops, Recv(write(n), i))
				at += vmm.Ptr(n)
			}
		}
	}
	if err := g.do(ctx, st, ops...); err != nil {
		return g.fail(err)
	}
	return nil
}

// callSum is a number for a call.
func callSum(name string, root int) uint64 {
	return sumOf(binary.LittleEndian.AppendUint64([]byte(name), uint64(root)))
}

// layoutSum is a number for a layout, not 0.
func layoutSum(l vmm.Layout) uint64 { return sumOf([]byte(fmt.Sprintf("%v %x", l, l.Hash))) | 1 }

// sumOf is the FNV-1a sum of b, 64 bits.
func sumOf(b []byte) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(b)
	return h.Sum64()
}
