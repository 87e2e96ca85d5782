package pool_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
	"github.com/cuvmm/cuvmm/internal/trace"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// rmmEvent is a line of a trace as RMM's replay benchmark has it; see
// cpp/benchmarks/utilities/log_parser.hpp of rapidsai/rmm.
type rmmEvent struct {
	thread uint64
	action string
	ptr    uint64
	size   uint64
	stream uint64
}

// readRMM reads a trace by what that file says: columns are found by their names in the first
// line, Thread, Size and Stream are decimal, of which what follows the digits does not count,
// Pointer is hexadecimal or (nil), and there are three actions.
func readRMM(r io.Reader) (all []rmmEvent, err error) {
	lines := bufio.NewScanner(r)
	lines.Scan()
	names := strings.Split(lines.Text(), ",")
	for lines.Scan() {
		cells := strings.Split(lines.Text(), ",")
		if len(cells) != len(names) {
			return nil, fmt.Errorf("%d cells: %q", len(cells), lines.Text())
		}
		cell := func(name string) string {
			if i := slices.Index(names, name); i >= 0 {
				return cells[i]
			}
			err = errors.Join(err, fmt.Errorf("no column %q: %q", name, names))
			return ""
		}
		number := func(text string, base int) uint64 {
			n, e := strconv.ParseUint(text, base, 64)
			err = errors.Join(err, e)
			return n
		}
		digits := func(text string) string {
			return text[:len(text)-len(strings.TrimLeft(text, "0123456789"))]
		}
		x := rmmEvent{action: cell("Action")}
		x.thread, x.size = number(digits(cell("Thread")), 10), number(digits(cell("Size")), 10)
		x.stream = number(digits(cell("Stream")), 10)
		if p := cell("Pointer"); p != "(nil)" {
			x.ptr = number(strings.TrimPrefix(p, "0x"), 16)
		}
		if !slices.Contains([]string{"allocate", "allocate failure", "free"}, x.action) {
			err = errors.Join(err, fmt.Errorf("action %q", x.action))
		}
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, lines.Err()
}

// replayRMM does what cpp/benchmarks/replay/replay.cpp does with the events, and returns the
// peak. What would be strange there is an error here: a block that is allocated or freed
// twice, or freed with another size, and what is left at the end.
func replayRMM(all []rmmEvent) (peak uint64, failures int, err error) {
	live := map[uint64]uint64{}
	var sum uint64
	for i, x := range all {
		was, ok := live[x.ptr]
		switch {
		case x.stream > 2:
			return 0, 0, fmt.Errorf("event %d: %+v is not of a default stream", i, x)
		case x.action == "allocate failure":
			failures++
			continue
		case x.size == 0:
			continue
		case x.action == "allocate" && !ok:
			live[x.ptr] = x.size
			sum += x.size
			peak = max(peak, sum)
		case x.action == "free" && ok && was == x.size:
			delete(live, x.ptr)
			sum -= x.size
		default:
			return 0, 0, fmt.Errorf("event %d: %+v, and there is %d bytes", i, x, was)
		}
	}
	if len(live) > 0 {
		return 0, 0, fmt.Errorf("%d blocks are left", len(live))
	}
	return peak, failures, nil
}

// tracer is a goroutine that allocates in several streams. At the end of each round it has
// exactly as many bytes as it ever has.
type tracer struct {
	*rand.Rand
	p       pool.Allocator
	streams []*vmm.Stream
	all     []pool.Block
	old     []pool.Block // the same, as they were before a Resize
	live    uint64
	failed  int
	resized int
}

const tracerMost = mib

func (x *tracer) stream() *vmm.Stream { return x.streams[x.IntN(len(x.streams))] }

func (x *tracer) alloc(n uint64) error {
	b, err := x.p.Alloc(x.stream(), n)
	if err == nil {
		x.all, x.old, x.live = append(x.all, b), append(x.old, b), x.live+n
	}
	return err
}

// free frees one of the blocks; of two values that Resize left, either.
func (x *tracer) free() error {
	i := x.IntN(len(x.all))
	b := x.all[i]
	x.live -= b.Size()
	if x.IntN(2) == 0 {
		b = x.old[i]
	}
	x.all, x.old = slices.Delete(x.all, i, i+1), slices.Delete(x.old, i, i+1)
	if x.IntN(4) == 0 {
		return x.p.FreeNow(b)
	}
	return x.p.Free(x.stream(), b)
}

func (x *tracer) resize() error {
	i := x.IntN(len(x.all))
	b := x.all[i]
	n := min(1+x.Uint64N(2*b.Size()), b.Size()+tracerMost-x.live)
	r, err := x.p.Resize(x.stream(), b, n)
	switch {
	case errors.Is(err, pool.ErrNoRoom):
		return nil
	case err == nil && n != b.Size():
		x.resized++
	}
	x.all[i], x.live = r, x.live-b.Size()+r.Size()
	return err
}

// round does 200 things, and allocates what is left.
func (x *tracer) round() error {
	for range 200 {
		n := 1 + x.Uint64N(1+x.Uint64N(200*kib))
		var err error
		switch k := x.IntN(10); {
		case k == 0:
			x.failed++
			if _, err := x.p.Alloc(x.stream(), 1<<40); !errors.Is(err, vmm.ErrOutOfMemory) {
				return fmt.Errorf("1 TiB: %w", err)
			}
		case k < 5 && x.live+n <= tracerMost:
			err = x.alloc(n)
		case k < 8 && len(x.all) > 0:
			err = x.resize()
		case len(x.all) > 0:
			err = x.free()
		}
		if err != nil {
			return err
		}
	}
	if x.live == tracerMost {
		return nil
	}
	return x.alloc(tracerMost - x.live)
}

// TestTraceIsReadByRMM: what several goroutines do comes out of a reader of RMM's form with
// the same peak, and out of a replay of our own.
func TestTraceIsReadByRMM(t *testing.T) {
	w := newWorld(t, 1, 128*mib)
	var out bytes.Buffer
	p := pool.Trace(w.pool(pool.Options{ReleaseThreshold: 128 * mib}), &out)
	streams := []*vmm.Stream{w.stream(0), w.stream(0), w.stream(0)}
	all := make([]*tracer, 4)
	for i := range all {
		all[i] = &tracer{Rand: rand.New(rand.NewPCG(31, uint64(i))), p: p, streams: streams}
	}
	var peak uint64
	for range 5 {
		var wg sync.WaitGroup
		for _, x := range all {
			wg.Go(func() {
				if err := x.round(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		var live uint64
		for _, x := range all {
			live += x.live
		}
		peak = max(peak, live)
	}
	failed, resized := 0, 0
	for _, x := range all {
		for len(x.all) > 0 {
			require.NoError(t, x.free())
		}
		failed += x.failed
		resized += x.resized
	}
	require.Positive(t, resized)
	closeAll(t, p)

	events, err := readRMM(bytes.NewReader(out.Bytes()))
	require.NoError(t, err)
	got, failures, err := replayRMM(events)
	require.NoError(t, err)
	require.Equal(t, peak, got)
	require.Equal(t, failed, failures)
	pairs := 0
	for i, x := range events[1:] {
		if x.ptr == events[i].ptr && x.action == "allocate" && events[i].action == "free" {
			pairs++
		}
	}
	require.GreaterOrEqual(t, pairs, resized, "a Resize is two lines, with none between")
	t.Logf("%d events, %d times resized, %d failures, peak %d", len(events), resized, failures, got)

	tr, err := trace.Read(bytes.NewReader(out.Bytes()), "pool")
	require.NoError(t, err)
	require.Equal(t, got, tr.Peak())
	dev, err := vmm.OpenDriver(nulldriver.NewSized(8<<30), 0)
	require.NoError(t, err)
	a, others, end := contenders()[0].opened(t, dev, tr.Streams)
	r, err := tr.Replay(t.Context(), checkOverlaps(a), others, nil)
	require.NoError(t, err)
	require.Equal(t, got, r.Live)
	require.Zero(t, r.Failures)
	end()
	require.NoError(t, dev.Close())
	closeAll(t, streams[0], streams[1], streams[2])
	w.end()
}

// TestTraceOfResize: each Resize to another size is two lines, and no other is any.
func TestTraceOfResize(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	var out bytes.Buffer
	p, s, other := pool.Trace(w.pool(pool.Options{}), &out), w.stream(0), w.stream(0)
	raw, second := uint64(s.Raw()), uint64(other.Raw())
	var want []traced
	for _, sizes := range [][]uint64{{100_000, 2_000_000, 500, 500, 1}, {100, 120, 3, 3}} { // in chunks, in a slab
		b := alloc(t, p, s, sizes[0])
		first := b
		want = append(want, traced{"allocate", uint64(b.Ptr()), sizes[0], raw})
		for i, n := range sizes[1:] {
			var err error
			b, err = p.Resize(other, b, n)
			require.NoError(t, err)
			if n != sizes[i] {
				want = append(want, traced{"free", uint64(b.Ptr()), sizes[i], second}, traced{"allocate", uint64(b.Ptr()), n, second})
			}
		}
		_, err := p.Resize(s, b, 100*mib)
		require.Error(t, err)
		_, err = p.Resize(s, b, 0)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.NoError(t, p.Free(s, first), "the value that Alloc returned")
		want = append(want, traced{"free", uint64(b.Ptr()), sizes[len(sizes)-1], raw})
		_, err = p.Resize(s, b, 1)
		require.ErrorIs(t, err, pool.ErrDoubleFree)
	}
	closeAll(t, p)
	require.Equal(t, want, parse(t, out.Bytes()))
	closeAll(t, s, other)
	w.end()
}

// TestTraceOfABlockFreedElsewhere: the next block at its address has its own size.
func TestTraceOfABlockFreedElsewhere(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	var out bytes.Buffer
	inner, s := w.pool(pool.Options{}), w.stream(0)
	p := pool.Trace(inner, &out)
	b, err := p.Resize(s, alloc(t, p, s, 100_000), 99_000)
	require.NoError(t, err)
	require.NoError(t, inner.Free(s, b))
	c := alloc(t, p, s, 100_000)
	require.Equal(t, b.Ptr(), c.Ptr())
	require.NoError(t, p.Free(s, c))
	closeAll(t, p)
	lines := parse(t, out.Bytes())
	require.Equal(t, traced{"free", uint64(c.Ptr()), 100_000, uint64(s.Raw())}, lines[len(lines)-1])
	closeAll(t, s)
	w.end()
}

// TestTraceOfADriverPool: any Allocator can be written down. Its Resize fails, which is no line.
func TestTraceOfADriverPool(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	dp, err := pool.NewDriver(w.devs[0], pool.Options{})
	require.NoError(t, err)
	var out bytes.Buffer
	p, s := pool.Trace(dp, &out), w.stream(0)
	b := alloc(t, p, s, 1000)
	r, err := p.Resize(s, b, 500)
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	require.Equal(t, b, r)
	require.NoError(t, p.Free(s, b))
	closeAll(t, p)
	on := uint64(s.Raw())
	require.Equal(t, []traced{{"allocate", uint64(b.Ptr()), 1000, on}, {"free", uint64(b.Ptr()), 1000, on}}, parse(t, out.Bytes()))
	closeAll(t, s)
	w.end()
}

// TestTraceForm: the lines are those that RMM writes, and package trace reads them.
func TestTraceForm(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	var out bytes.Buffer
	p, s := pool.Trace(w.pool(pool.Options{}), &out), w.stream(0)
	b := alloc(t, p, s, 1000)
	_, err := p.Alloc(s, 64*mib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, p.FreeNow(b))
	closeAll(t, p, s)
	w.end()
	const at = `1,\d\d:\d\d:\d\d\.\d{6},`
	require.Regexp(t, fmt.Sprintf("^Thread,Time,Action,Pointer,Size,Stream\n"+at+"allocate,%#x,1000,%#x\n"+
		at+`allocate failure,\(nil\),67108864,%#x`+"\n"+at+"free,%#x,1000,0\n$",
		uint64(b.Ptr()), uint64(s.Raw()), uint64(s.Raw()), uint64(b.Ptr())), out.String())
	tr, err := trace.Read(&out, "x")
	require.NoError(t, err)
	require.Equal(t, uint64(1000), tr.Peak())
}
