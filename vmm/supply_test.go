package vmm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
)

// lender is a Supplier as a daemon is one: it owns memory, on a driver of its own, and imports
// it where it is needed. Asked for the same place twice it returns the same memory.
type lender struct {
	t     testing.TB
	owner *world
	to    *vmm.Device
	share bool   // false: private chunks of to, not imported ones
	size  uint64 // of each chunk
	extra int    // chunks more than are needed

	mu     sync.Mutex
	owned  map[uint64]*vmm.Chunk // by offset
	asked  [][2]uint64
	calls  int // under way
	before func(ctx context.Context) error
	alter  func([]*vmm.Chunk) []*vmm.Chunk
}

func newLender(t testing.TB, to *vmm.Device) *lender {
	t.Helper()
	l := &lender{t: t, owner: newWorld(t, 1), to: to, share: true, size: page, owned: map[uint64]*vmm.Chunk{}}
	t.Cleanup(func() {
		for _, c := range l.owned {
			require.NoError(t, c.Close())
		}
		l.owner.end()
	})
	return l
}

func (l *lender) Chunks(ctx context.Context, off, need uint64) (all []*vmm.Chunk, err error) {
	l.mu.Lock()
	l.asked = append(l.asked, [2]uint64{off, need})
	l.calls++
	calls, before, alter := l.calls, l.before, l.alter
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.calls--
	}()
	if calls > 1 {
		return nil, errors.New("two calls at once")
	}
	if before != nil {
		if err := before(ctx); err != nil {
			return nil, err
		}
	}
	n := int((need+l.size-1)/l.size) + l.extra
	for i := range n {
		c, err := l.chunk(off + uint64(i)*l.size)
		if err != nil {
			return all, err // with those before: the range closes them
		}
		all = append(all, c)
	}
	if alter != nil {
		all = alter(all)
	}
	return all, nil
}

func (l *lender) chunk(off uint64) (*vmm.Chunk, error) {
	if !l.share {
		return l.to.Create(l.size, vmm.Prop{})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.owned[off]
	if c == nil {
		var err error
		if c, err = l.owner.devs[0].Create(l.size, vmm.Prop{Share: vmm.ShareFD}); err != nil {
			return nil, err
		}
		l.owned[off] = c
	}
	fd, err := c.Export()
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "chunk")
	defer file.Close()
	return l.to.Import(fd, l.size, vmm.Prop{Share: vmm.ShareFD})
}

// set changes what the next call does.
func (l *lender) set(before func(context.Context) error, alter func([]*vmm.Chunk) []*vmm.Chunk) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.alter = before, alter
}

// wasAsked returns what it was asked for, and forgets it.
func (l *lender) wasAsked() [][2]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.asked
	l.asked = nil
	return all
}

// stopped makes the next call stop until let is called, or ctx is done; then it goes on, or
// returns ctx's error.
func (l *lender) stopped() (reached chan struct{}, let func()) {
	reached, gone := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(reached) })
	l.set(func(ctx context.Context) error {
		once()
		select {
		case <-gone:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, nil)
	let = sync.OnceFunc(func() { close(gone) })
	l.t.Cleanup(let)
	return reached, let
}

// supplied returns a range of 64 pages with a lender.
func supplied(t testing.TB, w *world) (*vmm.Range, *lender) {
	t.Helper()
	l := newLender(t, w.devs[0])
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 64 * page, Supplier: l})
	w.register(g)
	return g, l
}

// TestSupplier: all growth of a range comes from its Supplier, side by side, and none of it
// gets into the cache.
func TestSupplier(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	keepChunks(t, w, 1, 1, 1)
	g, l := supplied(t, w)
	created := w.made("Create")
	require.NoError(t, g.Append(pattern(3*page/2, 1)))
	require.NoError(t, g.Append(pattern(page, 2)))
	l.extra = 2
	s := stream(t, d)
	require.NoError(t, g.AppendOn(s, pattern(page, 3)))
	require.NoError(t, s.Close())
	require.NoError(t, g.Grow(3*page))
	require.Equal(t, [][2]uint64{{0, 2 * page}, {2 * page, page}, {3 * page, page}, {6 * page, page}}, l.wasAsked())
	require.EqualValues(t, 9*page, g.Cap(), "all that came is mapped")
	want := append(append(pattern(3*page/2, 1), pattern(page, 2)...), pattern(page, 3)...)
	got := new(bytes.Buffer)
	_, err := g.WriteTo(got)
	require.NoError(t, err)
	require.Equal(t, want, got.Bytes())

	require.Equal(t, created, w.made("Create"))
	st := d.Stats()
	require.EqualValues(t, 3*page, st.Cached, "nothing was taken from there")
	require.Equal(t, []uint64{3 * page, 9 * page, 0}, []uint64{st.Committed, st.Imported, st.Used}, "its memory is another's")
	require.EqualValues(t, 4, g.Stats().Growths)
	require.NotNil(t, g.Options().Supplier)
	require.NoError(t, g.Clip())
	require.NoError(t, d.Sync())
	require.EqualValues(t, 4*page, g.Cap())
	require.EqualValues(t, 3*page, d.Stats().Cached, "nor does anything come there")
	require.EqualValues(t, 4*page, d.Stats().Imported)

	// The owner has what was written, and whoever maps the same chunks.
	again := newRange(t, d, vmm.RangeOptions{Max: 64 * page, Supplier: l})
	l.extra = 0
	require.NoError(t, again.Grow(uint64(len(want))))
	require.NoError(t, again.SetLen(uint64(len(want))))
	require.Equal(t, w.contents(g), w.contents(again))
	require.NoError(t, g.Close())
	require.NoError(t, again.Close())
	w.end()
}

// TestSuppliedChunksAreNotCached, though they are private ones of the device.
func TestSuppliedChunksAreNotCached(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	d.SetReleaseThreshold(64 * page)
	g, l := supplied(t, w)
	l.share = false
	require.NoError(t, g.Grow(4*page))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(pattern(2*page, 1)))
	require.NoError(t, g.Close())
	require.Zero(t, d.Stats().Cached)
	require.Zero(t, d.Stats().Committed)
	w.end()
}

// TestSupplierOptions: those for chunks of the range's own, and growth ahead, are refused beside a
// Supplier, and what the range has filled in makes another one.
func TestSupplierOptions(t *testing.T) {
	w := newWorld(t, 1)
	l := newLender(t, w.devs[0])
	for _, o := range []vmm.RangeOptions{
		{Chunk: page}, {Zero: true}, {Share: vmm.ShareFD}, {RDMA: true}, {Compress: true},
	} {
		o.Max, o.Supplier = 8*page, l
		_, err := w.devs[0].NewRange(o)
		require.ErrorIs(t, err, vmm.ErrInvalid, "%+v", o)
	}
	_, err := w.devs[0].NewRange(vmm.RangeOptions{Max: 8 * page, GrowAhead: page, Supplier: l})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.ErrorContains(t, err, "growth ahead of a range with a Supplier")
	g := newRange(t, w.devs[0], vmm.RangeOptions{Max: 8*page - 1, Supplier: l})
	again := newRange(t, w.devs[0], g.Options())
	l.size = 8 * page
	require.NoError(t, again.Append(pattern(8*page-1, 1)), "the maximum is exact, the chunks are whole")
	require.ErrorIs(t, again.Append([]byte{1}), vmm.ErrFull)
	require.NoError(t, errors.Join(g.Close(), again.Close()))
	w.end()
}

// TestSupplierBreaksARule: the growth fails, nothing has changed, and all chunks are closed,
// those included that are in order.
func TestSupplierBreaksARule(t *testing.T) {
	other := newWorld(t, 1)
	type chunks = []*vmm.Chunk
	closed := func(all chunks) chunks {
		for _, c := range all {
			require.NoError(t, c.Close())
		}
		return all
	}
	for name, c := range map[string]struct {
		alter func(w *world, all chunks) chunks
		text  string
	}{
		"none":      {func(_ *world, all chunks) chunks { return closed(all)[:0] }, "0 bytes of the"},
		"too few":   {func(_ *world, all chunks) chunks { return all[len(closed(all[:1])):] }, "that are needed"},
		"nil":       {func(_ *world, all chunks) chunks { return append(all, nil) }, "nil or closed"},
		"zero":      {func(_ *world, all chunks) chunks { return append(all, &vmm.Chunk{}) }, "nil or closed"},
		"closed":    {func(_ *world, all chunks) chunks { return append(all[:1], closed(all[1:])...) }, "nil or closed"},
		"twice":     {func(_ *world, all chunks) chunks { return append(all, all[0]) }, "twice"},
		"too much":  {func(w *world, all chunks) chunks { return append(all, chunk(t, w, 63*page)) }, "left of the range"},
		"of others": {func(_ *world, all chunks) chunks { return append(all, chunk(t, other, page)) }, "another device"},
		"of a peer": {func(w *world, all chunks) chunks {
			c, err := w.devs[1].Create(page, vmm.Prop{})
			require.NoError(t, err)
			return append(all, c)
		}, "another device"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			g, l := supplied(t, w)
			require.NoError(t, g.Append(pattern(page, 1)))
			before, committed := w.picture(g), w.devs[0].Stats().Committed
			l.set(nil, func(all []*vmm.Chunk) []*vmm.Chunk { return c.alter(w, all) })
			for what, err := range map[string]error{
				"append": g.Append(pattern(2*page, 2)),
				"grow":   g.Grow(2 * page),
			} {
				require.ErrorIs(t, err, vmm.ErrInvalid, what)
				require.ErrorContains(t, err, c.text, what)
				require.ErrorContains(t, err, what)
			}
			require.Equal(t, before, w.picture(g))
			require.Equal(t, committed, w.devs[0].Stats().Committed)
			l.set(nil, nil)
			require.NoError(t, g.Append(pattern(2*page, 2)))
			require.NoError(t, g.Close())
			w.end()
		})
	}
	other.end()
}

// TestSupplierFails: its error is the growth's, the chunks that it returned besides are closed,
// and what OnPressure releases has it asked again.
func TestSupplierFails(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, l := supplied(t, w)
	require.NoError(t, g.Append(pattern(page, 1)))
	before := w.picture(g)
	l.set(func(context.Context) error { return errInjected }, nil)
	require.ErrorIs(t, g.Append(pattern(page, 1)), errInjected)
	require.ErrorIs(t, g.Grow(page), errInjected)
	s := stream(t, d)
	require.ErrorIs(t, g.AppendOn(s, pattern(page, 1)), errInjected)
	require.NoError(t, s.Close())
	require.Equal(t, before, w.picture(g))
	l.set(nil, nil)
	w.refuse("Import", 2, errInjected)
	l.extra = 1
	require.ErrorIs(t, g.Grow(page), errInjected)
	w.refuse("Import", 0, nil)
	require.Equal(t, before, w.picture(g))

	l.wasAsked()
	full := true
	l.set(func(context.Context) error {
		if full {
			return fmt.Errorf("the daemon has none: %w", vmm.ErrOutOfMemory)
		}
		return nil
	}, nil)
	require.ErrorIs(t, g.Append(pattern(page, 2)), vmm.ErrOutOfMemory)
	stop := d.OnPressure(func(error) bool {
		was := full
		full = false
		return was
	})
	require.NoError(t, g.Append(pattern(page, 2)))
	require.Len(t, l.wasAsked(), 3)
	stop()
	require.NoError(t, g.Close())
	w.end()
}

// TestSleepOfASuppliedRange is refused, and no other range sleeps either.
func TestSleepOfASuppliedRange(t *testing.T) {
	w := newWorld(t, 1)
	g, _ := supplied(t, w)
	own := ranged(t, w, page)
	require.NoError(t, g.Append(pattern(page, 7)))
	for _, mode := range []vmm.SleepMode{vmm.SleepDrop, vmm.SleepKeep} {
		require.ErrorIs(t, vmm.Sleep(mode, own, g), vmm.ErrNotSupported)
		awake(t, own)
		awake(t, g)
	}
	require.NoError(t, vmm.Wake(own, g))
	require.NoError(t, errors.Join(g.Close(), own.Close()))
	w.end()
}

// TestLimitAndSuppliedMemory: imported memory does not count.
func TestLimitAndSuppliedMemory(t *testing.T) {
	w := newWorld(t, 1)
	w.devs[0].SetLimit(page)
	g, l := supplied(t, w)
	for off := range uint64(8) { // on CUDA the owner is of this process, too
		l.owner.devs[0].SetLimit(0)
		c, err := l.owner.devs[0].Create(page, vmm.Prop{Share: vmm.ShareFD})
		require.NoError(t, err)
		l.owned[off*page] = c
	}
	w.devs[0].SetLimit(page)
	require.NoError(t, g.Append(pattern(8*page, 1)))
	w.devs[0].SetLimit(0)
	require.NoError(t, g.Close())
	w.end()
}

// TestReadersWhileASupplierIsAsked: nothing waits but what needs the memory.
func TestReadersWhileASupplierIsAsked(t *testing.T) {
	for name, grow := range map[string]func(g *vmm.Range, s *vmm.Stream) error{
		"append":    func(g *vmm.Range, _ *vmm.Stream) error { return g.Append(pattern(4*page, 2)) },
		"append on": func(g *vmm.Range, s *vmm.Stream) error { return g.AppendOn(s, pattern(4*page, 2)) },
		"grow":      func(g *vmm.Range, _ *vmm.Stream) error { return g.Grow(4 * page) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2)
			g, l := supplied(t, w)
			s := stream(t, w.devs[0])
			require.NoError(t, g.Append(pattern(page+7, 1)))
			reached, let := l.stopped()
			grown := make(chan error, 1)
			go func() { grown <- grow(g, s) }()
			<-reached
			_, err := g.ReadAt(make([]byte, page), 0)
			require.NoError(t, err)
			if !onCUDA {
				_, err = g.Host()
				require.NoError(t, err)
			}
			_, err = g.WriteAt(pattern(page, 3), 0)
			require.NoError(t, err)
			release, err := g.Hold(0, page)
			require.NoError(t, err)
			release()
			require.NoError(t, g.Append(pattern(7, 3)), "it fits")
			require.NoError(t, g.SetLen(page))
			require.NoError(t, g.Grant(vmm.AccessRead, w.devs[1]))
			require.EqualValues(t, page, g.Len())
			require.NotEmpty(t, g.Segments())
			require.NotEmpty(t, w.devs[0].Report().Open)
			require.NoError(t, g.Clip())
			require.EqualValues(t, page, g.Cap())
			let()
			require.NoError(t, <-grown)
			require.NoError(t, s.Sync())
			asked := l.wasAsked()
			require.Equal(t, [2]uint64{page, 4 * page}, asked[len(asked)-1], "a Clip has come between")
			require.EqualValues(t, 5*page, g.Cap())
			require.NoError(t, g.Close())
			require.NoError(t, s.Close())
			w.end()
		})
	}
}

// TestCloseWhileASupplierIsAsked: ctx is done, Close waits for the call, and who asked is told
// that the range is closed, whatever the Supplier returns.
func TestCloseWhileASupplierIsAsked(t *testing.T) {
	for name, heeds := range map[string]bool{"heeds ctx": true, "supplies all the same": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			g, l := supplied(t, w)
			require.NoError(t, g.Append(pattern(page, 1)))
			reached, ended := make(chan struct{}), false
			l.set(func(ctx context.Context) error {
				close(reached)
				<-ctx.Done()
				for range 100 {
					runtime.Gosched()
				}
				ended = true
				if heeds {
					return ctx.Err()
				}
				return nil
			}, nil)
			results := make(chan error, 2)
			go func() { results <- g.Append(pattern(page, 1)) }()
			<-reached
			go func() { results <- g.Grow(page) }() // waits for the first call, or finds the range closed
			release, err := g.Hold(0, 1)
			require.NoError(t, err)
			require.ErrorIs(t, g.Close(), vmm.ErrBusy, "which ends nothing")
			require.False(t, ended)
			release()
			require.NoError(t, g.Close())
			require.True(t, ended)
			require.ErrorIs(t, <-results, vmm.ErrClosed)
			require.ErrorIs(t, <-results, vmm.ErrClosed)
			require.Len(t, l.wasAsked(), 2)
			require.ErrorIs(t, g.Append([]byte{1}), vmm.ErrClosed)
			require.NoError(t, g.Close())
			w.end()
		})
	}
}

// TestSupplyBesideOthers: appends, growth and clips at once; every byte is where it belongs.
func TestSupplyBesideOthers(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	l := newLender(t, d)
	g := newRange(t, d, vmm.RangeOptions{Max: 256 * page, Supplier: l})
	const each, writers = 30, 4
	var all sync.WaitGroup
	for n := range writers {
		all.Go(func() {
			for range each {
				if err := g.Append(bytes.Repeat([]byte{byte(n + 1)}, page)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	quit := make(chan struct{})
	clips := make(chan struct{})
	go func() {
		defer close(clips)
		for {
			select {
			case <-quit:
				return
			default:
			}
			if err := errors.Join(g.Clip(), g.Grow(3*page)); err != nil {
				t.Error(err)
			}
		}
	}()
	all.Wait()
	close(quit)
	<-clips
	require.EqualValues(t, each*writers*page, g.Len())
	counts := make([]int, writers+1)
	b := make([]byte, page)
	for off := int64(0); off < int64(g.Len()); off += page {
		_, err := g.ReadAt(b, off)
		require.NoError(t, err)
		require.Equal(t, -1, slices.IndexFunc(b, func(x byte) bool { return x != b[0] }))
		counts[b[0]]++
	}
	require.Equal(t, []int{0, each, each, each, each}, counts)
	require.NoError(t, g.Close())
	w.end()
}

// supplyScenes are the scenes of ranges with a Supplier.
func supplyScenes() map[string]func(t *testing.T, w *world) error {
	// whileAsked runs f on a range whose Supplier is being asked for an append.
	whileAsked := func(f func(g *vmm.Range) error) func(*testing.T, *world) error {
		return func(t *testing.T, w *world) error {
			g, l := supplied(t, w)
			require.NoError(t, g.Append(pattern(page+1, 7)))
			reached, let := l.stopped()
			appended := make(chan error, 1)
			go func() { appended <- g.Append(pattern(page, 1)) }()
			<-reached
			result := f(g)
			let()
			if err := <-appended; err != nil {
				require.ErrorIs(t, err, vmm.ErrClosed)
			}
			require.NoError(t, g.Close())
			return result
		}
	}
	return map[string]func(t *testing.T, w *world) error{
		"Sleep x supplied": func(t *testing.T, w *world) error {
			g, _ := supplied(t, w)
			require.NoError(t, g.Append(pattern(page, 7)))
			err := vmm.Sleep(vmm.SleepKeep, g)
			awake(t, g)
			require.NoError(t, g.Close())
			return err
		},
		"ReadAt x Supplier asked": whileAsked(func(g *vmm.Range) error { return second(g.ReadAt([]byte{0}, 0)) }),
		"Hold x Supplier asked": whileAsked(func(g *vmm.Range) error {
			release, err := g.Hold(0, page)
			if err == nil {
				release()
			}
			return err
		}),
		"SetLen x Supplier asked": whileAsked(func(g *vmm.Range) error { return g.SetLen(page) }),
		"Clip x Supplier asked":   whileAsked(func(g *vmm.Range) error { return errors.Join(g.SetLen(1), g.Clip()) }),
		"Sleep x Supplier asked":  whileAsked(func(g *vmm.Range) error { return vmm.Sleep(vmm.SleepDrop, g) }),
		"Close x Supplier asked":  whileAsked(func(g *vmm.Range) error { return g.Close() }),
	}
}
