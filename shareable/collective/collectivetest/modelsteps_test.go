package collectivetest_test

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/vmm"
)

// parts are where fixed operations read and write: n bytes from src and to dst, or in place.
func (m *model) parts() (dst, src, n uint64) {
	n = 8 * (1 + m.random.Uint64N(12))
	src = 8 * m.random.Uint64N(64)
	dst = 2048 + 8*m.random.Uint64N(64)
	if m.random.IntN(3) == 0 {
		dst = src
	}
	return dst, src, n
}

func (m *model) kind() (collective.Kind, collective.Reduction) {
	k := []collective.Kind{collective.Uint8, collective.Int32, collective.Uint64}[m.random.IntN(3)]
	return k, collective.Reduction(m.random.IntN(int(collective.Mean) + 1))
}

// cut is the members' n bytes of f from at on, copied.
func (m *model) cut(at, n uint64) [][]byte {
	out := make([][]byte, m.size)
	for i := range out {
		out[i] = slices.Clone(m.f[i][at : at+n])
	}
	return out
}

// fixed is a step that is one operation.
func fixed(name string, op func(p *peer) collective.Op) step {
	return step{name: name, do: func(p *peer) error { return p.g.Do(p.t.Context(), p.st, op(p)) }}
}

func (m *model) fixedSteps() []func() step {
	return []func() step{m.allReduce, m.reduce, m.broadcast, m.allGatherInto, m.reduceScatter, m.messages}
}

func (m *model) allReduce() step {
	dst, src, n := m.parts()
	k, red := m.kind()
	out := reduced(m.cut(src, n), k, red)
	for i := range m.f {
		copy(m.f[i][dst:], out)
	}
	return fixed(fmt.Sprintf("AllReduce %v %v", k, red), func(p *peer) collective.Op {
		return collective.AllReduce(collective.Part(p.f, dst, n), collective.Part(p.f, src, n), k, red)
	})
}

func (m *model) reduce() step {
	dst, src, n := m.parts()
	k, red := m.kind()
	root := m.random.IntN(m.size)
	copy(m.f[root][dst:], reduced(m.cut(src, n), k, red))
	return fixed("Reduce", func(p *peer) collective.Op {
		if p.g.Rank() != root {
			return collective.Reduce(root, nil, collective.Part(p.f, src, n), k, red)
		}
		return collective.Reduce(root, collective.Part(p.f, dst, n), collective.Part(p.f, src, n), k, red)
	})
}

func (m *model) broadcast() step {
	dst, src, n := m.parts()
	root, rootGets := m.random.IntN(m.size), m.random.IntN(2) == 0
	out := m.cut(src, n)[root]
	for i := range m.f {
		if i != root || rootGets {
			copy(m.f[i][dst:], out)
		}
	}
	return fixed("Broadcast", func(p *peer) collective.Op {
		to, from := collective.Part(p.f, dst, n), collective.Part(p.f, src, n)
		switch {
		case p.g.Rank() != root:
			return collective.Broadcast(root, to, nil)
		case !rootGets:
			return collective.Broadcast(root, nil, from)
		}
		return collective.Broadcast(root, to, from)
	})
}

func (m *model) allGatherInto() step {
	_, src, n := m.parts()
	const dst = 2048
	inPlace := m.random.IntN(2) == 0
	var out []byte
	for i := range m.f {
		at := src
		if inPlace {
			at = dst + uint64(i)*n
		}
		out = append(out, m.f[i][at:at+n]...)
	}
	for i := range m.f {
		copy(m.f[i][dst:], out)
	}
	return fixed("AllGatherInto", func(p *peer) collective.Op {
		at := src
		if inPlace {
			at = dst + uint64(p.g.Rank())*n
		}
		return collective.AllGatherInto(collective.Part(p.f, dst, n*uint64(p.g.Size())), collective.Part(p.f, at, n))
	})
}

func (m *model) reduceScatter() step {
	dst, src, n := m.parts()
	k, red := m.kind()
	inPlace := dst == src
	all := n * uint64(m.size)
	out := reduced(m.cut(src, all), k, red)
	at := func(rank int) uint64 {
		if inPlace {
			return src + uint64(rank)*n
		}
		return dst
	}
	for i := range m.f {
		copy(m.f[i][at(i):], out[uint64(i)*n:uint64(i+1)*n])
	}
	return fixed("ReduceScatter", func(p *peer) collective.Op {
		return collective.ReduceScatter(collective.Part(p.f, at(p.g.Rank()), n), collective.Part(p.f, src, all), k, red)
	})
}

// messages: each member sends to one and receives from one, itself for all that is known.
func (m *model) messages() step {
	dst, src, n := m.parts()
	if dst == src {
		dst += 2048
	}
	to := m.random.Perm(m.size)
	out := m.cut(src, n)
	for i, j := range to {
		copy(m.f[j][dst:], out[i])
	}
	return step{name: "Send and Recv", do: func(p *peer) error {
		send := collective.Send(collective.Part(p.f, src, n), to[p.g.Rank()])
		recv := collective.Recv(collective.Part(p.f, dst, n), slices.Index(to, p.g.Rank()))
		if p.g.Rank()%2 == 0 {
			send, recv = recv, send
		}
		return p.g.Do(p.t.Context(), p.st, send, recv)
	}}
}

func (m *model) growingSteps() []func() step {
	return []func() step{m.allGather, m.exchange, m.gather, m.scatter, m.appendFrom}
}

// grow appends to x of all members, unless one of them cannot.
func (m *model) grow(added [][]byte) (want []error) {
	want = make([]error, m.size)
	failed := false
	for i, b := range added {
		if len(m.x[i])+len(b) > mostBytes {
			want[i], failed = vmm.ErrFull, true
		}
	}
	for i, b := range added {
		switch {
		case !failed:
			m.x[i] = slices.Concat(m.x[i], b)
		case want[i] == nil:
			want[i] = collective.ErrPeerFailed
		}
	}
	return want
}

// sameLengths is an error if a call returned other lengths than it must.
func sameLengths(got []uint64, err error, want []uint64) error {
	if err == nil && !slices.Equal(got, want) {
		return fmt.Errorf("lengths %v, not %v", got, want)
	}
	return err
}

func lengthsOf(all [][]byte) []uint64 {
	n := make([]uint64, len(all))
	for i, b := range all {
		n[i] = uint64(len(b))
	}
	return n
}

func (m *model) allGather() step {
	src, ofY := m.x, m.random.IntN(3) > 0
	if ofY {
		src = m.y
	}
	lengths, added := lengthsOf(src), make([][]byte, m.size)
	for i := range added {
		added[i] = bytes.Join(src, nil)
	}
	return step{name: fmt.Sprintf("AllGather %v", ofY), want: m.grow(added), do: func(p *peer) error {
		src := p.x
		if ofY {
			src = p.y
		}
		got, err := p.g.AllGather(p.t.Context(), p.st, p.x, src)
		return sameLengths(got, err, lengths)
	}}
}

// split is how many of n bytes go to each member.
func (m *model) split(n int) []uint64 {
	counts := make([]uint64, m.size)
	for i := range counts {
		counts[i] = uint64(m.random.IntN(n + 1))
		if i == len(counts)-1 {
			counts[i] = uint64(n)
		}
		n -= int(counts[i])
	}
	m.random.Shuffle(len(counts), func(i, j int) { counts[i], counts[j] = counts[j], counts[i] })
	return counts
}

func (m *model) exchange() step {
	counts, received, added := make([][]uint64, m.size), make([][]uint64, m.size), make([][]byte, m.size)
	for i := range counts {
		counts[i] = m.split(len(m.y[i]))
		at := uint64(0)
		for j, n := range counts[i] {
			added[j] = append(added[j], m.y[i][at:at+n]...)
			received[j] = append(received[j], n)
			at += n
		}
	}
	return step{name: "Exchange", want: m.grow(added), do: func(p *peer) error {
		got, err := p.g.Exchange(p.t.Context(), p.st, p.x, p.y, counts[p.g.Rank()])
		return sameLengths(got, err, received[p.g.Rank()])
	}}
}

func (m *model) gather() step {
	root := m.random.IntN(m.size)
	lengths, added := lengthsOf(m.y), make([][]byte, m.size)
	added[root] = bytes.Join(m.y, nil)
	return step{name: "Gather", want: m.grow(added), do: func(p *peer) error {
		if p.g.Rank() == root {
			got, err := p.g.Gather(p.t.Context(), p.st, root, p.x, p.y)
			return sameLengths(got, err, lengths)
		}
		_, err := p.g.Gather(p.t.Context(), p.st, root, nil, p.y)
		return err
	}}
}

func (m *model) scatter() step {
	root := m.random.IntN(m.size)
	counts, added := m.split(len(m.y[root])), make([][]byte, m.size)
	at := uint64(0)
	for i, n := range counts {
		added[i] = m.y[root][at : at+n]
		at += n
	}
	return step{name: "Scatter", want: m.grow(added), do: func(p *peer) error {
		if p.g.Rank() != root {
			got, err := p.g.Scatter(p.t.Context(), p.st, root, p.x, nil, nil)
			return sameLengths([]uint64{got}, err, counts[p.g.Rank():p.g.Rank()+1])
		}
		got, err := p.g.Scatter(p.t.Context(), p.st, root, p.x, p.y, counts)
		return sameLengths([]uint64{got}, err, counts[root:root+1])
	}}
}

func (m *model) appendFrom() step {
	root := m.random.IntN(m.size)
	added := make([][]byte, m.size)
	for i := range added {
		added[i] = m.y[root]
	}
	n := []uint64{uint64(len(m.y[root]))}
	return step{name: "AppendFrom", want: m.grow(added), do: func(p *peer) error {
		var src collective.Memory
		if p.g.Rank() == root {
			src = p.y
		}
		got, err := p.g.AppendFrom(p.t.Context(), p.st, root, p.x, src)
		return sameLengths([]uint64{got}, err, n)
	}}
}

func (m *model) rebalance() step {
	all := bytes.Join(m.x, nil)
	for i := range m.x {
		n := len(all) / (m.size - i)
		if len(all)%(m.size-i) > 0 {
			n++
		}
		m.x[i], all = slices.Clone(all[:n]), all[n:]
	}
	return step{name: "Rebalance", do: func(p *peer) error { return p.g.Rebalance(p.t.Context(), p.st, p.x) }}
}

// badSteps fail, and change nothing.
func (m *model) badSteps() []func() step {
	bad := m.random.IntN(m.size)
	one := func(err error) []error { // one member fails
		want := make([]error, m.size)
		for i := range want {
			want[i] = collective.ErrPeerFailed
		}
		want[bad] = err
		return want
	}
	all := func(err error) []error {
		want := make([]error, m.size)
		for i := range want {
			want[i] = err
		}
		return want
	}
	refused := func(name string, err error, op func(p *peer) collective.Op) func() step {
		return func() step {
			s := fixed(name, op)
			s.want = all(err)
			return s
		}
	}
	steps := []func() step{
		refused("part beyond", vmm.ErrBounds, func(p *peer) collective.Op {
			return collective.AllReduce(p.f, collective.Part(p.f, 8, fixedSize), collective.Uint8, collective.Sum)
		}),
		refused("overlap", vmm.ErrInvalid, func(p *peer) collective.Op {
			return collective.AllReduce(collective.Part(p.f, 8, 16), collective.Part(p.f, 0, 16), collective.Uint8, collective.Sum)
		}),
		refused("no such root", vmm.ErrInvalid, func(p *peer) collective.Op { return collective.Broadcast(p.g.Size(), p.f, p.f) }),
		refused("part of an element", vmm.ErrInvalid, func(p *peer) collective.Op {
			return collective.AllReduce(collective.Part(p.f, 0, 6), collective.Part(p.f, 0, 6), collective.Float32, collective.Sum)
		}),
		refused("lengths", vmm.ErrInvalid, func(p *peer) collective.Op {
			return collective.AllGatherInto(collective.Part(p.f, 0, 8), collective.Part(p.f, 1024, 16))
		}),
		refused("closed", vmm.ErrClosed, func(p *peer) collective.Op { return collective.Broadcast(0, p.closed, p.closed) }),
		refused("no memory", vmm.ErrInvalid, func(*peer) collective.Op { return collective.Send(nil, 0) }),
		func() step {
			return step{name: "counts", want: one(vmm.ErrInvalid), do: func(p *peer) error {
				counts := make([]uint64, p.g.Size())
				counts[0] = p.y.Len()
				if p.g.Rank() == bad {
					counts[0]++
				}
				_, err := p.g.Exchange(p.t.Context(), p.st, p.x, p.y, counts)
				return err
			}}
		},
		func() step {
			return step{name: "to a closed range", want: one(vmm.ErrClosed), do: func(p *peer) error {
				dst := p.x
				if p.g.Rank() == bad {
					dst = p.closed
				}
				_, err := p.g.AllGather(p.t.Context(), p.st, dst, p.y)
				return err
			}}
		},
		func() step {
			return step{name: "to what does not grow", want: one(vmm.ErrInvalid), do: func(p *peer) error {
				var dst collective.Memory = p.x
				if p.g.Rank() == bad {
					dst = collective.Part(p.x, 0, 0)
				}
				_, err := p.g.AllGather(p.t.Context(), p.st, dst, p.y)
				return err
			}}
		},
	}
	if m.size > 1 {
		steps = append(steps, func() step {
			return step{name: "a stream of another device", want: one(vmm.ErrInvalid), do: func(p *peer) error {
				st := p.st
				if p.g.Rank() == bad {
					st = p.foreign
				}
				_, err := p.g.AllGather(p.t.Context(), st, p.x, p.y)
				return err
			}}
		}, func() step {
			return step{name: "roots that differ", want: all(collective.ErrMismatch), do: func(p *peer) error {
				root := 0
				if p.g.Rank() == bad {
					root = 1
				}
				_, err := p.g.AppendFrom(p.t.Context(), p.st, root, p.x, p.y)
				return err
			}}
		}, func() step {
			return step{name: "calls that differ", want: all(collective.ErrMismatch), do: func(p *peer) error {
				if p.g.Rank() == bad {
					return p.g.Rebalance(p.t.Context(), p.st, p.x)
				}
				_, err := p.g.AllGather(p.t.Context(), p.st, p.x, p.y)
				return err
			}}
		})
	}
	return steps
}
