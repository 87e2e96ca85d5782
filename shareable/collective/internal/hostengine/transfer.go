package hostengine

import (
	"fmt"

	"github.com/cuvmm/cuvmm/cgo/nccl"
)

// transfer is one operation with all members that take part: all of the group, or the two
// sides of a message. World.mu guards it until it runs.
type transfer struct {
	sides   []*side // by rank; of a message the sender and the receiver
	missing int     // sides that are not there yet
	message bool
	between [2]int // ranks of a message
	running bool
	done    chan struct{} // closed when it has run
	remove  func()        // removes it from the world; requires World.mu
}

// side is one member's part of a transfer.
type side struct {
	rank     int
	call     nccl.Call
	src, dst []byte
	windows  [2]int // in which src and dst are, from 1 on; 0: none
}

func newTransfer(sides int) *transfer {
	return &transfer{sides: make([]*side, sides), missing: sides, done: make(chan struct{})}
}

// text describes the call of the member of that rank, which takes part.
func (t *transfer) text(rank int) string {
	for _, s := range t.sides {
		if s != nil && s.rank == rank {
			return callText(s.call)
		}
	}
	return "another call"
}

// collective reports whether all members take part.
func collective(o nccl.Operation) bool { return o <= nccl.ReduceScatter }

func reduces(o nccl.Operation) bool {
	return o == nccl.AllReduce || o == nccl.Reduce || o == nccl.ReduceScatter
}

func rooted(o nccl.Operation) bool { return o == nccl.Reduce || o == nccl.Broadcast }

// agree reports whether two members' calls are sides of one transfer.
func agree(a, b nccl.Call) bool {
	switch {
	case a.Kind != b.Kind || a.Count != b.Count:
		return false
	case !collective(a.Operation): // one sends and the other receives, by how they were found
		return true
	}
	return a.Operation == b.Operation && (!reduces(a.Operation) || a.Reduction == b.Reduction) &&
		(!rooted(a.Operation) || a.Peer == b.Peer)
}

// callText describes a call in errors.
func callText(c nccl.Call) string {
	text := fmt.Sprintf("%v of %d %v", c.Operation, c.Count, c.Kind)
	if reduces(c.Operation) {
		text += fmt.Sprintf(" (%v)", c.Reduction)
	}
	switch {
	case rooted(c.Operation):
		text += fmt.Sprintf(" with root %d", c.Peer)
	case c.Operation == nccl.Send:
		text += fmt.Sprintf(" to %d", c.Peer)
	case c.Operation == nccl.Recv:
		text += fmt.Sprintf(" from %d", c.Peer)
	}
	return text
}

// run does the work of all sides.
func (t *transfer) run() {
	first := t.sides[0].call
	if t.message {
		copy(t.sides[1].dst, t.sides[0].src)
		return
	}
	n := first.Count * first.Kind.Size()
	dsts, srcs := make([][]byte, len(t.sides)), make([][]byte, len(t.sides))
	for i, s := range t.sides {
		dsts[i], srcs[i] = s.dst, s.src
	}
	switch first.Operation {
	case nccl.AllReduce:
		reduce(dsts, srcs, first.Kind, first.Reduction)
	case nccl.Reduce:
		reduce(dsts[first.Peer:first.Peer+1], srcs, first.Kind, first.Reduction)
	case nccl.Broadcast:
		for _, dst := range dsts {
			copy(dst, srcs[first.Peer])
		}
	case nccl.AllGather:
		for _, dst := range dsts {
			for i, src := range srcs {
				copy(dst[uint64(i)*n:], src)
			}
		}
	case nccl.ReduceScatter:
		for i := range dsts {
			parts := make([][]byte, len(srcs))
			for j, src := range srcs {
				parts[j] = src[uint64(i)*n : uint64(i+1)*n]
			}
			reduce(dsts[i:i+1], parts, first.Kind, first.Reduction)
		}
	}
}
