package collectivetest_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/invariants"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/collective"
	"github.com/cuvmm/cuvmm/shareable/collective/collectivetest"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

const (
	fixedSize = 4096     // bytes of what operations that grow nothing use
	mostBytes = 16 << 10 // of what grows
	batchSize = 20       // steps before contents are compared
)

// peer is a member with two ranges that grow, x and y, and a fixed one.
type peer struct {
	t       testing.TB
	g       *collective.Group
	dev     *vmm.Device
	streams [2]*vmm.Stream
	st      *vmm.Stream // of this batch
	foreign *vmm.Stream // of another device, if there is one
	closed  *vmm.Range
	x, y, f *vmm.Range
}

// model is what the members' memory has, by rank.
type model struct {
	random  *rand.Rand
	size    int
	x, y, f [][]byte
}

// step is a call that all members make, and the error that each gets.
type step struct {
	name string
	do   func(p *peer) error
	want []error // nil: none gets one
}

// TestModel: random calls of all members do what they do to plain slices.
func TestModel(t *testing.T) {
	t.Parallel()
	steps := testgate.Effort(5_000, 100_000, 2_000_000)
	if invariants.Enabled && !testgate.Soak() {
		steps = min(steps, 5_000)
	}
	for size := 1; size <= 5; size++ {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			runModel(t, size, steps/5, rand.New(rand.NewPCG(18, uint64(size))))
		})
	}
}

func runModel(t *testing.T, size, steps int, random *rand.Rand) {
	m := &model{random: random, size: size}
	peers := make([]*peer, size)
	devs := make([]*vmm.Device, size)
	for i := range peers {
		devs[i] = vmmtest.Device(t)
		peers[i] = newPeer(t, devs[i])
		m.x, m.y, m.f = append(m.x, nil), append(m.y, nil), append(m.f, make([]byte, fixedSize))
		if i > 0 {
			peers[i].foreign, peers[0].foreign = peers[0].streams[0], peers[i].streams[0]
		}
	}
	join := func() {
		for i, g := range collectivetest.GroupsOn(t, devs...) {
			if peers[i].g = g; random.IntN(2) == 0 { // Close or Abort of the group undoes it
				_, err := g.Register(t.Context(), peers[i].x, collective.RegisterOptions{})
				require.NoError(t, err)
			}
		}
	}
	join()
	for done := 0; done < steps && !t.Failed(); done += batchSize {
		if random.IntN(100) == 0 {
			m.kill(t, peers)
			join()
			continue
		}
		batch := make([]step, batchSize)
		for i := range batch {
			batch[i] = m.next()
		}
		for _, p := range peers {
			p.st = p.streams[random.IntN(2)]
		}
		together(peers, func(i int, p *peer) {
			for _, s := range batch {
				if !p.check(i, s, s.do(p)) {
					return
				}
			}
			if err := p.g.Sync(t.Context(), p.st); err != nil {
				t.Errorf("rank %d: sync: %v", i, err)
			}
		})
		m.compare(t, peers, batch)
	}
}

func newPeer(t testing.TB, dev *vmm.Device) *peer {
	t.Helper()
	p := &peer{t: t, dev: dev}
	newRange := func(length uint64) *vmm.Range {
		r, err := dev.NewRange(vmm.RangeOptions{Max: mostBytes})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, r.Close()) })
		require.NoError(t, r.Append(make([]byte, length)))
		return r
	}
	p.x, p.y, p.f, p.closed = newRange(0), newRange(0), newRange(fixedSize), newRange(0)
	require.NoError(t, p.closed.Close())
	for i := range p.streams {
		st, err := dev.NewStream()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, st.Close()) })
		p.streams[i] = st
	}
	p.st = p.streams[0]
	return p
}

// check reports whether a step returned what it must.
func (p *peer) check(rank int, s step, err error) bool {
	var want error
	if s.want != nil {
		want = s.want[rank]
	}
	if want == nil && err == nil || want != nil && errors.Is(err, want) {
		return true
	}
	p.t.Errorf("rank %d of %d: %s: %v, not %v", rank, p.g.Size(), s.name, err, want)
	_ = p.g.Abort() // the others must not wait
	return false
}

// together runs f for all members at once.
func together(peers []*peer, f func(int, *peer)) {
	var wg sync.WaitGroup
	for i, p := range peers {
		wg.Go(func() { f(i, p) })
	}
	wg.Wait()
}

func contents(t testing.TB, r *vmm.Range) []byte {
	t.Helper()
	b := make([]byte, r.Len())
	if len(b) > 0 {
		_, err := r.ReadAt(b, 0)
		require.NoError(t, err)
	}
	return b
}

// compare compares all memory with the model.
func (m *model) compare(t *testing.T, peers []*peer, batch []step) {
	t.Helper()
	for i, p := range peers {
		for _, c := range []struct {
			name string
			want []byte
			is   *vmm.Range
		}{{"x", m.x[i], p.x}, {"y", m.y[i], p.y}, {"f", m.f[i], p.f}} {
			if !bytes.Equal(c.want, contents(t, c.is)) {
				var names []string
				for _, s := range batch {
					names = append(names, s.name)
				}
				t.Fatalf("rank %d of %d: %s: %d bytes, not %d, or other ones, after %q", i, m.size, c.name, c.is.Len(), len(c.want), names)
			}
		}
	}
}

// kill ends one member while all make calls. What the ranges had stays.
func (m *model) kill(t *testing.T, peers []*peer) {
	t.Helper()
	var batch []step
	for range batchSize {
		batch = append(batch, m.pick(m.fixedSteps(), m.growingSteps()))
	}
	hadX, hadY := make([][]byte, m.size), make([][]byte, m.size)
	for i, p := range peers {
		hadX[i], hadY[i] = contents(t, p.x), contents(t, p.y)
	}
	victim, at, beside := m.random.IntN(m.size), m.random.IntN(batchSize), m.random.IntN(2) == 0
	killed := make(chan error, 1)
	together(peers, func(i int, p *peer) {
		for n, s := range batch {
			if i == victim && n == at {
				if beside {
					g := p.g // soon that of the next group
					go func() { killed <- collectivetest.Kill(g) }()
				} else {
					killed <- collectivetest.Kill(p.g)
				}
			}
			err := s.do(p)
			if errors.Is(err, collective.ErrPeerGone) || errors.Is(err, collective.ErrAborted) || i == victim && errors.Is(err, vmm.ErrClosed) {
				break
			}
			if !p.check(i, s, err) {
				break
			}
		}
		if err := p.g.Sync(t.Context(), p.st); err != nil && !errors.Is(err, collective.ErrPeerGone) &&
			!errors.Is(err, collective.ErrAborted) && !errors.Is(err, vmm.ErrClosed) {
			t.Errorf("rank %d: sync: %v", i, err)
		}
		if i == victim && len(killed) == 0 && !beside {
			killed <- collectivetest.Kill(p.g)
		}
	})
	_ = collectivetest.Kill(peers[victim].g) // if it ended before
	for i, p := range peers {
		require.NoError(t, p.g.Abort())
		require.NoError(t, p.st.Sync(), "the stream is free")
		require.Error(t, p.g.Do(t.Context(), p.st, collective.Broadcast(0, p.f, p.f)))
		m.x[i], m.y[i], m.f[i] = contents(t, p.x), contents(t, p.y), contents(t, p.f)
		require.True(t, bytes.HasPrefix(m.x[i], hadX[i]), "rank %d", i)
		require.Equal(t, hadY[i], m.y[i], "rank %d", i)
	}
	select {
	case err := <-killed:
		require.NoError(t, err)
	default:
	}
}

// pick is one of the steps.
func (m *model) pick(from ...[]func() step) step {
	n := 0
	for _, f := range from {
		n += len(f)
	}
	n = m.random.IntN(n)
	for _, f := range from {
		if n < len(f) {
			return f[n]()
		}
		n -= len(f)
	}
	return step{}
}

// next is any step. The model has done it.
func (m *model) next() step {
	switch m.random.IntN(10) {
	case 0, 1:
		return m.local()
	case 2:
		return m.pick(m.badSteps())
	}
	return m.pick(m.fixedSteps(), m.growingSteps(), []func() step{m.rebalance})
}

// local changes the memory of each member by itself.
func (m *model) local() step {
	lengths, added, written := make([]uint64, m.size), make([][]byte, m.size), make([][]byte, m.size)
	clip := m.random.IntN(4) == 0
	for i := range m.size {
		lengths[i] = uint64(len(m.x[i]))
		if m.random.IntN(2) == 0 {
			lengths[i] = m.random.Uint64N(lengths[i] + 1)
		}
		m.x[i] = m.x[i][:lengths[i]]
		m.y[i] = m.y[i][:min(len(m.y[i]), 200)]
		for range m.random.IntN(40) {
			added[i] = append(added[i], byte(m.random.Uint32()))
		}
		m.y[i] = append(m.y[i], added[i]...)
		written[i] = make([]byte, 0, fixedSize)
		for range fixedSize / 8 {
			written[i] = binary.LittleEndian.AppendUint64(written[i], m.random.Uint64())
		}
		copy(m.f[i], written[i])
	}
	return step{name: "local", do: func(p *peer) error {
		i := p.g.Rank()
		if err := p.x.SetLen(lengths[i]); err != nil {
			return err
		}
		if err := p.y.SetLen(min(p.y.Len(), 200)); err != nil {
			return err
		}
		if err := p.y.AppendOn(p.st, added[i]); err != nil {
			return err
		}
		if err := p.st.CopyIn(p.f.Ptr(), written[i]); err != nil {
			return err
		}
		if clip {
			return errors.Join(p.x.Clip(), p.y.Clip())
		}
		return nil
	}}
}

func elements[T any](b []byte) []T {
	out := make([]T, len(b)/binary.Size(new(T)))
	_, err := binary.Decode(b, binary.LittleEndian, out)
	if err != nil {
		panic(err)
	}
	return out
}

func modelReduce[T uint8 | int32 | uint64](srcs [][]byte, red collective.Reduction) []byte {
	out := elements[T](srcs[0])
	for _, src := range srcs[1:] {
		for i, y := range elements[T](src) {
			switch red {
			case collective.Product:
				out[i] *= y
			case collective.Max:
				out[i] = max(out[i], y)
			case collective.Min:
				out[i] = min(out[i], y)
			default:
				out[i] += y
			}
		}
	}
	if red == collective.Mean {
		for i := range out {
			out[i] /= T(len(srcs))
		}
	}
	b, err := binary.Append(nil, binary.LittleEndian, out)
	if err != nil {
		panic(err)
	}
	return b
}

// reduced is the reduction of the members' bytes.
func reduced(srcs [][]byte, k collective.Kind, red collective.Reduction) []byte {
	switch k {
	case collective.Uint8:
		return modelReduce[uint8](srcs, red)
	case collective.Int32:
		return modelReduce[int32](srcs, red)
	}
	return modelReduce[uint64](srcs, red)
}
