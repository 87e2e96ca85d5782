package collective

import (
	"fmt"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// Memory is memory of this process's device: a Range, a Vector, a View, a block of a pool, a
// Part, a Span. A call uses the bytes up to the length that it has when the call is made.
type Memory interface {
	MemoryArg(m *vmm.MemoryArg)
}

// Span is memory by its address.
type Span vmm.Span

// MemoryArg sets m to the span.
func (s Span) MemoryArg(m *vmm.MemoryArg) {
	*m = vmm.MemoryArg{Span: vmm.Span(s), Count: s.Size, Stride: 1}
}

// Part is n bytes of memory from offset off on. If the memory has fewer, calls with it return
// vmm.ErrBounds.
func Part(m Memory, off, n uint64) Memory { return part{m, off, n} }

type part struct {
	of     Memory
	off, n uint64
}

// MemoryArg sets m to the part.
func (p part) MemoryArg(m *vmm.MemoryArg) {
	if *m = (vmm.MemoryArg{}); p.of == nil {
		return
	}
	p.of.MemoryArg(m)
	if m.Err() != nil || m.Addr == 0 {
		return // spanOf returns the error
	}
	if p.off > m.Size || p.n > m.Size-p.off {
		*m = vmm.MemoryArg{Span: vmm.Span{Addr: outside}}
		return
	}
	m.Addr, m.Size, m.Count, m.Stride = m.Addr+vmm.Ptr(p.off), p.n, p.n, 1
}

// outside is the address of a part beyond the end of its memory.
const outside = ^vmm.Ptr(0)

// Op is one operation of Group.Do, which checks it and returns its errors.
type Op struct {
	op       nccl.Operation
	dst, src Memory
	kind     Kind
	red      Reduction
	peer     int
}

// AllReduce sets dst of each member to the reduction of all members' src, element by element.
// All have the same length. dst and src may be the same memory.
func AllReduce(dst, src Memory, k Kind, r Reduction) Op {
	return Op{op: nccl.AllReduce, dst: dst, src: src, kind: k, red: r}
}

// Reduce sets dst of the member root to the reduction of all members' src. dst of the others may
// be nil.
func Reduce(root int, dst, src Memory, k Kind, r Reduction) Op {
	return Op{op: nccl.Reduce, dst: dst, src: src, kind: k, red: r, peer: root}
}

// Broadcast copies src of the member root to dst of all. src of the others may be nil, and so
// may dst of root.
func Broadcast(root int, dst, src Memory) Op {
	return Op{op: nccl.Broadcast, dst: dst, src: src, kind: Uint8, peer: root}
}

// AllGatherInto copies src of all members, which have the same length, to dst of each, in the
// order of their ranks. dst has the length of all of them together. src may be this member's
// part of dst. Group.AllGather is for lengths that differ.
func AllGatherInto(dst, src Memory) Op {
	return Op{op: nccl.AllGather, dst: dst, src: src, kind: Uint8}
}

// ReduceScatter sets dst of the member of rank i to the i-th part of the reduction of all
// members' src. src has the length of all dst together. dst may be the i-th part of src.
func ReduceScatter(dst, src Memory, k Kind, r Reduction) Op {
	return Op{op: nccl.ReduceScatter, dst: dst, src: src, kind: k, red: r}
}

// Send sends src to the member of rank to, which has to call Recv with as many bytes. Two
// members that send to each other need Send and Recv in one Group.Do, or both wait.
func Send(src Memory, to int) Op { return Op{op: nccl.Send, src: src, kind: Uint8, peer: to} }

// Recv fills dst with what the member of rank from sends.
func Recv(dst Memory, from int) Op { return Op{op: nccl.Recv, dst: dst, kind: Uint8, peer: from} }

// spanOf returns the bytes that m has now, to be read or written. What arg had is lost.
func spanOf(m Memory, a vmm.Access, arg *vmm.MemoryArg) (s vmm.Span, err error) {
	if m == nil {
		return s, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	}
	*arg = vmm.MemoryArg{}
	m.MemoryArg(arg)
	switch err := arg.Err(); {
	case err != nil:
		return s, err
	case arg.Addr == outside:
		return s, fmt.Errorf("%w: a part beyond the end of its memory", vmm.ErrBounds)
	case arg.Addr == 0:
		return s, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	case a == vmm.AccessReadWrite && arg.Access == vmm.AccessRead:
		return s, fmt.Errorf("%w: the memory at %v is mapped for reading", vmm.ErrPermission, arg.Addr)
	}
	return vmm.Span{Addr: arg.Addr, Size: arg.Size, Access: a}, nil
}

// layoutOf is the layout of a memory that has one. A part has that of the whole.
func layoutOf(m Memory) (vmm.Layout, bool) {
	if p, ok := m.(part); ok {
		return layoutOf(p.of)
	}
	if l, ok := m.(interface{ Layout() vmm.Layout }); ok {
		return l.Layout(), true
	}
	return vmm.Layout{}, false
}

// checkKind returns an error if the elements of m cannot be of kind k. Unsigned integers can be
// the floating-point numbers of their size for which Go has no type.
func checkKind(m Memory, k Kind) error {
	l, ok := layoutOf(m)
	if !ok || l.Kind == vmm.ElemOpaque {
		return nil
	}
	want := vmm.ElemFloat
	switch k {
	case Int8, Int32, Int64:
		want = vmm.ElemInt
	case Uint8, Uint32, Uint64:
		want = vmm.ElemUint
	}
	goHasNone := k == Float16 || k == BFloat16 || k == Float8E4M3 || k == Float8E5M2
	if uint64(l.Bits/8) == k.Size() && (l.Kind == want || goHasNone && l.Kind == vmm.ElemUint) {
		return nil
	}
	return fmt.Errorf("%w: elements of %v as %v", vmm.ErrInvalid, l, k)
}

// overlap reports whether two spans have bytes in common.
func overlap(a, b vmm.Span) bool {
	return a.Addr < b.Addr+vmm.Ptr(b.Size) && b.Addr < a.Addr+vmm.Ptr(a.Size)
}

// prepare checks an operation and returns NCCL's call, and spans with what it uses appended. If
// the call's Count is 0, there is nothing to do. What arg had is lost.
func (x *Op) prepare(rank, size int, spans []vmm.Span, arg *vmm.MemoryArg) (c nccl.Call, _ []vmm.Span, err error) {
	if x.dst == nil && x.src == nil {
		return c, spans, fmt.Errorf("%w: no memory", vmm.ErrInvalid)
	}
	if x.peer < 0 || x.peer >= size {
		return c, spans, fmt.Errorf("%w: member %d of %d", vmm.ErrInvalid, x.peer, size)
	}
	isRoot := x.peer == rank
	needsSrc := x.op != nccl.Recv && (x.op != nccl.Broadcast || isRoot)
	needsDst := x.op != nccl.Send && (x.op != nccl.Reduce || isRoot) && (x.op != nccl.Broadcast || !isRoot || x.dst != nil)
	var dst, src vmm.Span
	if needsSrc {
		if src, err = spanOf(x.src, vmm.AccessRead, arg); err != nil {
			return c, spans, fmt.Errorf("what is sent: %w", err)
		}
	}
	if needsDst {
		if dst, err = spanOf(x.dst, vmm.AccessReadWrite, arg); err != nil {
			return c, spans, fmt.Errorf("what is received: %w", err)
		}
	}
	c = nccl.Call{Operation: x.op, Kind: x.kind, Reduction: x.red, Peer: x.peer, Src: uint64(src.Addr), Dst: uint64(dst.Addr)}
	if c.Count, err = x.count(rank, size, dst, src, needsDst, needsSrc); err != nil || c.Count == 0 {
		return c, spans, err
	}
	switch {
	case x.op == nccl.Broadcast && !needsSrc:
		c.Src = c.Dst
	case x.op == nccl.Broadcast && !needsDst:
		c.Dst = c.Src
	case x.op == nccl.Reduce && !needsDst:
		c.Dst = c.Src // not written
	}
	if needsSrc {
		spans = append(spans, src)
	}
	if needsDst {
		spans = append(spans, dst)
	}
	return c, spans, nil
}

// count is how many elements the operation has, as NCCL counts them.
func (x *Op) count(rank, size int, dst, src vmm.Span, needsDst, needsSrc bool) (uint64, error) {
	n, inPlace := src.Size, dst // src may overlap dst only if it begins where inPlace does
	wantDst := src.Size
	switch x.op {
	case nccl.AllGather:
		wantDst = src.Size * uint64(size)
		inPlace.Addr += vmm.Ptr(uint64(rank) * src.Size)
	case nccl.ReduceScatter:
		if src.Size%uint64(size) != 0 {
			return 0, fmt.Errorf("%w: %d bytes for %d members", vmm.ErrInvalid, src.Size, size)
		}
		n, wantDst = src.Size/uint64(size), src.Size/uint64(size)
		inPlace.Addr -= vmm.Ptr(uint64(rank) * n)
	}
	switch {
	case needsDst && needsSrc && dst.Size != wantDst:
		return 0, fmt.Errorf("%w: %d bytes where %v of %d bytes is received", vmm.ErrInvalid, dst.Size, x.op, wantDst)
	case needsDst && needsSrc && overlap(dst, src) && inPlace.Addr != src.Addr:
		return 0, fmt.Errorf("%w: what is received at %v overlaps what is sent from %v", vmm.ErrInvalid, dst.Addr, src.Addr)
	case !needsSrc:
		n = dst.Size
	}
	e := x.kind.Size()
	if e == 0 || x.red > Mean {
		return 0, fmt.Errorf("%w: %v of elements of %v", vmm.ErrInvalid, x.red, x.kind)
	}
	if n%e != 0 {
		return 0, fmt.Errorf("%w: %d bytes of elements of %v", vmm.ErrInvalid, n, x.kind)
	}
	switch x.op {
	case nccl.AllReduce, nccl.Reduce, nccl.ReduceScatter:
		for _, m := range []Memory{x.dst, x.src} {
			if err := checkKind(m, x.kind); err != nil {
				return 0, err
			}
		}
	}
	return n / e, nil
}
