package pool_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// blocks are one of each kind.
func blocks(t testing.TB, p *pool.Pool, s *vmm.Stream) map[string]pool.Block {
	t.Helper()
	all := map[string]pool.Block{}
	for name, n := range map[string]uint64{"slab": 100, "page": 70 * kib, "long": 5*chunk + 1} {
		all[name] = alloc(t, p, s, n)
	}
	return all
}

// unchanged runs f and checks that it has changed nothing.
func unchanged(t *testing.T, p *pool.Pool, f func()) {
	t.Helper()
	before := statsOf(t, p)
	f()
	require.Equal(t, before, statsOf(t, p))
	require.NoError(t, pool.Check(p))
}

// isOpError checks that an error says operation and device.
func isOpError(t *testing.T, p pool.Allocator, err error) {
	t.Helper()
	var op *vmm.OpError
	require.ErrorAs(t, err, &op)
	require.NotEmpty(t, op.Op)
	require.Equal(t, p.Device().String(), op.Device)
}

func TestSizeZero(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	var b pool.Block
	require.Empty(t, w.calls(func() {
		unchanged(t, p, func() {
			b = alloc(t, p, s, 0)
			require.Zero(t, b.Ptr())
			require.Zero(t, b.Size())
			var m vmm.MemoryArg
			b.MemoryArg(&m)
			require.NoError(t, p.Free(s, b))
			require.NoError(t, p.Free(s, b), "it is no memory")
			require.NoError(t, p.FreeNow(b))
			_, err := p.Resize(s, b, 1)
			require.ErrorIs(t, err, pool.ErrNoRoom)
			_, err = p.Resize(s, b, 0)
			require.ErrorIs(t, err, vmm.ErrInvalid)
			_, ok := p.Find(0)
			require.False(t, ok)
		})
	}))
	closeAll(t, p)
	_, err := p.Alloc(s, 0)
	require.ErrorIs(t, err, vmm.ErrClosed)
	closeAll(t, s)
	w.end()
}

func TestSizesThatCannotBe(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	for _, o := range []pool.Options{{}, {Max: 4*chunk + 1}, {Max: 4 * chunk, Align: 16}, {Align: chunk}} {
		p, s := w.pool(o), w.stream(0)
		most := uint64(16 * mib)
		if o.Max > 0 {
			most = 4 * chunk
		}
		for _, n := range []uint64{most + 1, 1 << 40, math.MaxInt64, math.MaxUint64 - 255, math.MaxUint64} {
			unchanged(t, p, func() {
				_, err := p.Alloc(s, n)
				require.ErrorIs(t, err, vmm.ErrOutOfMemory)
				isOpError(t, p, err)
			})
		}
		b := alloc(t, p, s, most)
		require.NoError(t, pool.Check(p))
		for n, want := range map[uint64]error{
			most + 1: vmm.ErrOutOfMemory, math.MaxUint64 - 1: pool.ErrNoRoom, math.MaxUint64: pool.ErrNoRoom,
		} {
			unchanged(t, p, func() {
				_, err := p.Resize(s, b, n)
				require.ErrorIs(t, err, want)
			})
		}
		require.EqualValues(t, most, statsOf(t, p).Reserved)
		require.NoError(t, p.Free(s, b))
		closeAll(t, s, p)
	}
	w.end()
}

// TestDoubleFree is always found: whatever has become of the memory since.
func TestDoubleFree(t *testing.T) {
	since := map[string]func(t *testing.T, p *pool.Pool, s *vmm.Stream, b pool.Block){
		"at once": func(*testing.T, *pool.Pool, *vmm.Stream, pool.Block) {},
		"after a sync": func(t *testing.T, _ *pool.Pool, s *vmm.Stream, _ pool.Block) {
			require.NoError(t, s.Sync())
		},
		"after a trim": func(t *testing.T, p *pool.Pool, s *vmm.Stream, _ pool.Block) {
			require.NoError(t, s.Sync())
			_, err := p.TrimTo(0)
			require.NoError(t, err)
		},
		"after the memory was used again": func(t *testing.T, p *pool.Pool, s *vmm.Stream, b pool.Block) {
			c := alloc(t, p, s, b.Size())
			require.Equal(t, b.Ptr(), c.Ptr())
			t.Cleanup(func() { require.NoError(t, p.FreeNow(c)) })
		},
		"after other blocks came there": func(t *testing.T, p *pool.Pool, s *vmm.Stream, b pool.Block) {
			_, err := p.TrimTo(0)
			require.NoError(t, err)
			require.NoError(t, s.Sync())
			for _, n := range []uint64{1, 300, 80 * kib, 6 * chunk} {
				c := alloc(t, p, s, n)
				require.NoError(t, p.Free(s, c))
				require.ErrorIs(t, p.Free(s, b), pool.ErrDoubleFree)
			}
		},
	}
	frees := map[string]func(p *pool.Pool, s *vmm.Stream, b pool.Block) error{
		"Free":    (*pool.Pool).Free,
		"FreeNow": func(p *pool.Pool, _ *vmm.Stream, b pool.Block) error { return p.FreeNow(b) },
		"Resize": func(p *pool.Pool, s *vmm.Stream, b pool.Block) error {
			_, err := p.Resize(s, b, b.Size()/2)
			return err
		},
		"Resize longer": func(p *pool.Pool, s *vmm.Stream, b pool.Block) error {
			_, err := p.Resize(s, b, b.Size()+1)
			return err
		},
	}
	for when, then := range since {
		for first := range frees {
			if first != "Free" && first != "FreeNow" {
				continue
			}
			t.Run(first+" "+when, func(t *testing.T) {
				w := newWorld(t, 1, 16*mib)
				p, s := w.pool(pool.Options{}), w.stream(0)
				t.Cleanup(func() { closeAll(t, s, p); w.end() })
				for kind, b := range blocks(t, p, s) {
					half, err := p.Resize(s, b, b.Size()/2)
					require.NoError(t, err)
					require.NoError(t, frees[first](p, s, b))
					then(t, p, s, b)
					for second, free := range frees {
						unchanged(t, p, func() {
							for _, copied := range []pool.Block{b, half} {
								err := free(p, s, copied)
								require.ErrorIs(t, err, pool.ErrDoubleFree, "%s by %s", kind, second)
								require.ErrorIs(t, err, vmm.ErrInvalid)
								isOpError(t, p, err)
							}
						})
					}
				}
			})
		}
	}
}

// TestFreedByOneOfMany: of several goroutines that free a block one succeeds.
func TestFreedByOneOfMany(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	for range 50 {
		for _, b := range blocks(t, p, s) {
			results := make(chan error, 4)
			for i := range cap(results) {
				go func() {
					if i%2 == 0 {
						results <- p.Free(s, b)
					} else {
						results <- p.FreeNow(b)
					}
				}()
			}
			freed := 0
			for range cap(results) {
				if err := <-results; err == nil {
					freed++
				} else {
					require.ErrorIs(t, err, pool.ErrDoubleFree)
				}
			}
			require.Equal(t, 1, freed)
		}
	}
	require.Zero(t, statsOf(t, p).Blocks)
	require.NoError(t, pool.Check(p))
	closeAll(t, s, p)
	w.end()
}

func TestForeignBlocks(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	x := newWorld(t, 1, 16*mib)
	p, other, far := w.pool(pool.Options{}), w.pool(pool.Options{}), x.pool(pool.Options{})
	s, theirs := w.stream(0), x.stream(0)
	foreign := []pool.Block{{}, alloc(t, other, s, 0), alloc(t, far, theirs, 0)}
	mine := blocks(t, other, s)
	for _, b := range mine {
		foreign = append(foreign, b)
	}
	yours := blocks(t, far, theirs)
	for _, b := range yours {
		foreign = append(foreign, b)
	}
	require.NoError(t, p.Free(s, alloc(t, p, s, 1)))
	for _, b := range foreign {
		unchanged(t, p, func() {
			require.ErrorIs(t, p.Free(s, b), pool.ErrForeignBlock)
			require.ErrorIs(t, p.FreeNow(b), pool.ErrForeignBlock)
			_, err := p.Resize(s, b, 1)
			require.ErrorIs(t, err, pool.ErrForeignBlock)
			require.ErrorIs(t, err, vmm.ErrInvalid)
			isOpError(t, p, err)
			_, ok := p.Find(b.Ptr())
			require.False(t, ok)
		})
	}
	for _, b := range mine {
		require.NoError(t, other.Free(s, b))
	}
	for _, b := range yours {
		require.NoError(t, far.FreeNow(b))
	}
	closeAll(t, s, theirs, p, other, far)
	w.end()
	x.end()
}

// TestBlocksOfTheDriversPool are foreign, and ours are to the driver's pool.
func TestBlocksOfTheDriversPool(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	drivers, err := pool.NewDriver(w.devs[0], pool.Options{})
	require.NoError(t, err)
	theirs, err := drivers.Alloc(s, 100)
	require.NoError(t, err)
	unchanged(t, p, func() {
		require.ErrorIs(t, p.Free(s, theirs), pool.ErrForeignBlock)
		require.ErrorIs(t, p.FreeNow(theirs), pool.ErrForeignBlock)
		_, err := p.Resize(s, theirs, 1)
		require.ErrorIs(t, err, pool.ErrForeignBlock)
	})
	for _, b := range blocks(t, p, s) {
		require.ErrorIs(t, drivers.Free(s, b), pool.ErrForeignBlock)
		require.ErrorIs(t, drivers.FreeNow(b), pool.ErrForeignBlock)
		require.NoError(t, p.Free(s, b))
	}
	require.NoError(t, drivers.Free(s, theirs))
	closeAll(t, s, p, drivers)
	w.end()
}

// TestStreamsThatCannotBe: closed, none, of another driver, of a device without access.
func TestStreamsThatCannotBe(t *testing.T) {
	w, x := newWorld(t, 2, 16*mib), newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	closed := w.stream(0)
	used := w.stream(0)
	require.NoError(t, p.Free(used, alloc(t, p, used, 100)))
	closeAll(t, closed, used)
	theirs, peer := x.stream(0), w.stream(1)
	for kind, b := range blocks(t, p, s) {
		for _, c := range []struct {
			name string
			on   *vmm.Stream
			want error
		}{
			{"none", nil, vmm.ErrInvalid}, {"zero", &vmm.Stream{}, vmm.ErrInvalid},
			{"closed", closed, vmm.ErrClosed}, {"closed after use", used, vmm.ErrClosed},
			{"of another driver", theirs, vmm.ErrInvalid}, {"of a device without access", peer, vmm.ErrInvalid},
		} {
			unchanged(t, p, func() {
				_, err := p.Alloc(c.on, b.Size())
				require.ErrorIs(t, err, c.want, "%s: %s", c.name, kind)
				var op *vmm.OpError
				require.ErrorAs(t, err, &op)
				_, err = p.Alloc(c.on, 0)
				require.ErrorIs(t, err, c.want, c.name)
				require.ErrorIs(t, p.Free(c.on, b), c.want, c.name)
				_, err = p.Resize(c.on, b, 1)
				require.ErrorIs(t, err, c.want, c.name)
			})
		}
		require.NoError(t, p.Free(s, b), "it is allocated as before")
	}
	closeAll(t, s, theirs, peer, p)
	w.end()
	x.end()
}

// TestClosedPool: every call returns ErrClosed, except what tells no more than was known.
func TestClosedPool(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s, late := w.pool(pool.Options{}), w.stream(0), w.stream(0)
	old := blocks(t, p, s)
	for _, b := range old {
		require.ErrorIs(t, p.Close(), vmm.ErrBusy)
		require.NoError(t, pool.Check(p))
		require.NoError(t, p.Free(s, b))
	}
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	for _, on := range []*vmm.Stream{s, late} {
		for _, n := range []uint64{0, 100, 70 * kib, 5 * chunk} {
			_, err := p.Alloc(on, n)
			require.ErrorIs(t, err, vmm.ErrClosed, "%d bytes", n)
		}
	}
	for _, b := range old {
		require.Error(t, p.Free(s, b))
		require.Error(t, p.FreeNow(b))
		_, ok := p.Find(b.Ptr())
		require.False(t, ok)
	}
	for name, f := range admin(p, w.devs[0]) {
		require.ErrorIs(t, f(), vmm.ErrClosed, name)
	}
	require.Equal(t, w.devs[0], p.Device())
	st, err := p.Stats()
	require.NoError(t, err)
	require.Zero(t, st.Reserved+st.Used)
	require.EqualValues(t, 3, st.Allocs)
	closeAll(t, s, late)
	w.end()
}

// admin are the calls that need no stream and no block.
func admin(p *pool.Pool, d *vmm.Device) map[string]func() error {
	return map[string]func() error{
		"TrimTo":              func() error { _, err := p.TrimTo(0); return err },
		"SetReleaseThreshold": func() error { return p.SetReleaseThreshold(1) },
		"ReleaseThreshold":    func() error { _, err := p.ReleaseThreshold(); return err },
		"SetReuse":            func() error { return p.SetReuse(0) },
		"Reuse":               func() error { _, err := p.Reuse(); return err },
		"Grant":               func() error { return p.Grant(vmm.AccessRead, d) },
		"Revoke":              func() error { return p.Revoke(d) },
		"Access":              func() error { _, err := p.Access(d); return err },
		"ResetPeaks":          p.ResetPeaks,
	}
}

// TestNoPool: no method of a nil pool, a zero pool or a zero block panics.
func TestNoPool(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	real, s := w.pool(pool.Options{}), w.stream(0)
	b := alloc(t, real, s, 100)
	for _, p := range []*pool.Pool{nil, {}} {
		for _, n := range []uint64{0, 1, chunk} {
			_, err := p.Alloc(s, n)
			require.ErrorIs(t, err, vmm.ErrInvalid)
		}
		for _, x := range []pool.Block{{}, b} {
			require.ErrorIs(t, p.Free(s, x), vmm.ErrInvalid)
			require.ErrorIs(t, p.FreeNow(x), vmm.ErrInvalid)
			_, err := p.Resize(s, x, 1)
			require.ErrorIs(t, err, vmm.ErrInvalid)
		}
		for name, f := range admin(p, w.devs[0]) {
			require.ErrorIs(t, f(), vmm.ErrInvalid, name)
		}
		_, err := p.Stats()
		require.ErrorIs(t, err, vmm.ErrInvalid)
		_, ok := p.Find(b.Ptr())
		require.False(t, ok)
		require.Nil(t, p.Device())
		require.Nil(t, p.Reservation())
		require.NotEmpty(t, p.String())
		require.NoError(t, p.Close())
	}
	var zero pool.Block
	require.Zero(t, zero.Ptr())
	require.Zero(t, zero.Size())
	var m vmm.MemoryArg
	zero.MemoryArg(&m)
	require.NoError(t, real.Free(s, b))
	closeAll(t, s, real)
	w.end()
}

func TestOptionsThatCannotBe(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	for name, o := range map[string]pool.Options{
		"alignment of 8":      {Align: 8},
		"alignment of 24":     {Align: 24},
		"too much alignment":  {Align: 2 * chunk},
		"part of a granule":   {ChunkSize: chunk / 2},
		"granules and a half": {ChunkSize: 3 * chunk / 2},
		"huge chunks":         {ChunkSize: 32 * mib},
		"no chunk":            {Max: chunk - 1},
		"a policy":            {NoReuse: pool.ReuseAll + 1},
		"all policies":        {NoReuse: math.MaxUint8},
		"a way to share":      {Share: 200},
	} {
		_, err := pool.New(w.devs[0], o)
		require.ErrorIs(t, err, vmm.ErrInvalid, name)
		var op *vmm.OpError
		require.ErrorAs(t, err, &op, name)
	}
	_, err := pool.New(w.devs[0], pool.Options{Addresses: 1 << 50})
	require.ErrorIs(t, err, vmm.ErrAddressSpace)
	_, err = pool.New(nil, pool.Options{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	gone, err := vmm.OpenDriver(host.New(host.Config{}), 0)
	require.NoError(t, err)
	closeAll(t, gone)
	_, err = pool.New(gone, pool.Options{})
	require.ErrorIs(t, err, vmm.ErrClosed)
	p := w.pool(pool.Options{})
	require.ErrorIs(t, p.SetReuse(pool.ReuseAll+1), vmm.ErrInvalid)
	on, err := p.Reuse()
	require.NoError(t, err)
	require.Equal(t, pool.ReuseAll, on)
	closeAll(t, p)
	w.end()
}

// TestOpenPoolKeepsItsDevice: Device.Close returns ErrBusy and names the pool.
func TestOpenPoolKeepsItsDevice(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p := w.pool(pool.Options{})
	err := w.devs[0].Close()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorContains(t, err, "pool")
	closeAll(t, p)
	w.end()
}

// TestExhaustion says what is free, and in how long a run.
func TestExhaustion(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, g := w.pool(pool.Options{Max: 8 * chunk, NoReuse: pool.ReuseAll}), w.gates(0)
	s, other := w.stream(0), w.stream(0)
	var all []pool.Block
	for range 4 {
		all = append(all, alloc(t, p, s, 2*chunk))
	}
	open := g.hold(s)
	require.NoError(t, p.Free(s, all[0]))
	require.NoError(t, p.FreeNow(all[2]))
	_, err := p.Alloc(other, 5*chunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	isOpError(t, p, err)
	for _, part := range []string{"holds 512 KiB (524288 bytes): ", "(262144 bytes) in blocks", "128 KiB (131072 bytes) idle", "(131072 bytes) freed in stream", "(131072 bytes) in the longest free run"} {
		require.ErrorContains(t, err, part)
	}
	require.EqualError(t, pool.Exhausted(p, vmm.ErrOutOfMemory), "out of memory (the pool holds 512 KiB (524288 bytes))")
	require.NoError(t, pool.Check(p))
	open()
	require.NoError(t, p.Free(s, all[1]))
	require.NoError(t, p.Free(s, all[3]))
	closeAll(t, s, other, p)
	w.end()
}

// TestDeviceExhaustion: all other unused memory of the device goes first.
func TestDeviceExhaustion(t *testing.T) {
	w := newWorld(t, 1, 64*chunk)
	d := w.devs[0]
	p, idle, s := w.pool(pool.Options{}), w.pool(pool.Options{ReleaseThreshold: 64 * mib}), w.stream(0)
	d.SetReleaseThreshold(64 * mib)
	r, err := d.Alloc(16 * chunk)
	require.NoError(t, err)
	closeAll(t, r) // cached
	require.NoError(t, idle.FreeNow(alloc(t, idle, s, 16*chunk)))
	b := alloc(t, p, s, 64*chunk)
	require.Zero(t, statsOf(t, idle).Reserved)
	_, err = p.Alloc(s, 100)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, p.Free(s, b))
	closeAll(t, s, p, idle)
	w.end()
}

// TestCapture: nothing changes while the stream is captured, and a graph may use blocks.
func TestCapture(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s, other := w.pool(pool.Options{ReleaseThreshold: 16 * mib}), w.stream(0), w.stream(0)
	all := blocks(t, p, s)
	b := all["long"]
	require.NoError(t, s.BeginCapture())
	require.NoError(t, s.Fill(b.Ptr(), 7, 4, b.Size()/4))
	unchanged(t, p, func() {
		for _, x := range all {
			_, err := p.Alloc(s, x.Size())
			require.ErrorIs(t, err, vmm.ErrCapturing)
			isOpError(t, p, err)
			require.ErrorIs(t, p.Free(s, x), vmm.ErrCapturing)
			_, err = p.Resize(s, x, 1)
			require.ErrorIs(t, err, vmm.ErrCapturing)
		}
	})
	c := alloc(t, p, other, 100)
	require.NoError(t, p.Free(other, c), "streams that are not captured go on")
	_, err := p.TrimTo(0)
	require.NoError(t, err)
	graph, err := s.EndCapture()
	require.NoError(t, err)
	x, err := graph.Instantiate()
	require.NoError(t, err)
	require.NoError(t, s.Fill(b.Ptr(), 1, 4, b.Size()/4))
	require.NoError(t, x.Launch(s))
	require.NoError(t, s.Sync())
	got := make([]byte, b.Size())
	require.NoError(t, w.devs[0].CopyOut(got, b.Ptr()))
	require.EqualValues(t, 7, got[0])
	require.EqualValues(t, 7, got[b.Size()/4*4-4])
	closeAll(t, x, graph)
	for _, b := range all {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, other, p)
	w.end()
}

// TestCloseDuringACapture: the pool stays open, and works on.
func TestCloseDuringACapture(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s, other := w.pool(pool.Options{}), w.stream(0), w.stream(0)
	for _, b := range blocks(t, p, other) {
		require.NoError(t, p.Free(other, b))
	}
	require.NoError(t, s.BeginCapture())
	if err := p.Close(); err != nil {
		require.ErrorIs(t, err, vmm.ErrCapturing)
		require.NoError(t, pool.Check(p))
		require.NoError(t, p.Free(other, alloc(t, p, other, 100)))
	}
	graph, err := s.EndCapture()
	require.NoError(t, err)
	closeAll(t, graph, s, other, p)
	w.end()
}
