package pool_test

import (
	"bufio"
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/internal/lock"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestShortBlocksWithoutASlab: where there is no room for a slab there may be for a block.
func TestShortBlocksWithoutASlab(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{Max: 4 * chunk}), w.stream(0)
	var all []pool.Block
	for {
		b, err := p.Alloc(s, 40*kib) // a slab would have eight of them
		if err != nil {
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			break
		}
		require.NoError(t, s.Fill(b.Ptr(), 1, 1, b.Size()))
		all = append(all, b)
	}
	require.Len(t, all, 5)
	require.NoError(t, pool.Check(p))
	require.NoError(t, p.Free(s, all[0]))
	one := alloc(t, p, s, 100)
	got, ok := p.Find(one.Ptr() + 99)
	require.True(t, ok)
	require.Equal(t, one.Ptr(), got.Ptr())
	require.NoError(t, p.Free(s, one))
	require.ErrorIs(t, p.Free(s, one), pool.ErrDoubleFree)
	for _, b := range all[1:] {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, p)
	w.end()
}

// TestOnOOM is told what was asked for, once for each try, frees, and has Alloc try again.
func TestOnOOM(t *testing.T) {
	for _, n := range []uint64{100, 40 * kib, 70 * kib, 3*chunk + 1} {
		w := newWorld(t, 1, 16*mib)
		s := w.stream(0)
		var p *pool.Pool
		var asked []uint64
		var spare []pool.Block
		p = w.pool(pool.Options{Max: 8 * chunk, OnOOM: func(on *vmm.Stream, n uint64) bool {
			require.Equal(t, s, on)
			asked = append(asked, n)
			if len(spare) == 0 {
				return false
			}
			require.NoError(t, p.Free(on, spare[0]))
			spare = spare[1:]
			return true
		}})
		for range 4 {
			spare = append(spare, alloc(t, p, s, 2*chunk))
		}
		require.Empty(t, asked)
		b := alloc(t, p, s, n)
		require.NotEmpty(t, asked)
		require.LessOrEqual(t, uint64(len(asked)), 1+n/(2*chunk), "each try needs one block more")
		for _, x := range asked {
			require.Equal(t, n, x)
		}
		require.NoError(t, pool.Check(p))
		left := len(spare)
		asked = nil
		_, err := p.Alloc(s, 8*chunk)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		require.Len(t, asked, left+1)
		require.NoError(t, p.Free(s, b))
		closeAll(t, s, p)
		w.end()
	}
}

// TestOnOOMMayCloseThePool: Alloc returns ErrClosed then.
func TestOnOOMMayCloseThePool(t *testing.T) {
	for _, n := range []uint64{100, 2 * chunk} {
		w := newWorld(t, 1, 16*mib)
		s := w.stream(0)
		var p *pool.Pool
		var all pool.Block
		p = w.pool(pool.Options{Max: 4 * chunk, OnOOM: func(on *vmm.Stream, _ uint64) bool {
			require.NoError(t, p.Free(on, all))
			require.NoError(t, p.Close())
			return true
		}})
		all = alloc(t, p, s, 4*chunk)
		_, err := p.Alloc(s, n)
		require.ErrorIs(t, err, vmm.ErrClosed)
		closeAll(t, s, p)
		w.end()
	}
}

// TestOnOOMThatDoesNotReturn: it panics, or ends its goroutine. Others go on with the pool, also where a
// short block was asked for.
func TestOnOOMThatDoesNotReturn(t *testing.T) {
	for name, end := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic(errInjected) }} {
		for _, n := range []uint64{100, 2 * chunk} {
			for _, made := range []func(*world, pool.Options) pool.Allocator{
				func(w *world, o pool.Options) pool.Allocator { return w.pool(o) },
				func(w *world, o pool.Options) pool.Allocator { return w.driverPool(o) },
			} {
				w := newWorld(t, 1, 16*mib)
				s := w.stream(0)
				calls := 0
				p := made(w, pool.Options{Max: 4 * chunk, OnOOM: func(*vmm.Stream, uint64) bool {
					if calls++; calls == 1 {
						end()
					}
					return false
				}})
				all := alloc(t, p, s, 4*chunk)
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					_, _ = p.Alloc(s, n)
				}()
				<-done
				require.Equal(t, 1, calls, name)
				_, err := p.Alloc(s, n)
				require.ErrorIs(t, err, vmm.ErrOutOfMemory)
				require.Equal(t, 2, calls)
				require.NoError(t, p.Free(s, all))
				require.NoError(t, p.Free(s, alloc(t, p, s, n)))
				if p, ok := p.(*pool.Pool); ok {
					require.NoError(t, pool.Check(p))
				}
				closeAll(t, s, p.(interface{ Close() error }))
				w.end()
			}
		}
	}
}

// traced is what a trace has said: lines in order.
type traced struct {
	action string
	ptr    uint64
	size   uint64
	stream uint64
}

func parse(t *testing.T, b []byte) (all []traced) {
	t.Helper()
	lines := bufio.NewScanner(bytes.NewReader(b))
	require.True(t, lines.Scan())
	require.Equal(t, "Thread,Time,Action,Pointer,Size,Stream", lines.Text())
	for lines.Scan() {
		var x traced
		f := strings.Split(lines.Text(), ",")
		require.Len(t, f, 6, lines.Text())
		x.action = f[2]
		_, err := fmt.Sscanf(strings.Replace(f[3], "(nil)", "0", 1)+" "+f[4]+" "+f[5], "%v %d %v", &x.ptr, &x.size, &x.stream)
		require.NoError(t, err, lines.Text())
		all = append(all, x)
	}
	return all
}

func TestTrace(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	var out bytes.Buffer
	p, s := pool.Trace(w.pool(pool.Options{}), &out), w.stream(0)
	raw := uint64(s.Raw())
	var want []traced
	for _, n := range []uint64{0, 100, 70 * kib, 3 * chunk} {
		b := alloc(t, p, s, n)
		want = append(want, traced{"allocate", uint64(b.Ptr()), n, raw})
		c := alloc(t, p, s, n)
		want = append(want, traced{"allocate", uint64(c.Ptr()), n, raw})
		require.NoError(t, p.Free(s, b))
		require.NoError(t, p.FreeNow(c))
		want = append(want, traced{"free", uint64(b.Ptr()), n, raw}, traced{"free", uint64(c.Ptr()), n, 0})
		if n > 0 {
			require.Error(t, p.Free(s, b), "it is no free")
			require.Error(t, p.FreeNow(b))
		}
	}
	_, err := p.Alloc(s, 100*mib)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	want = append(want, traced{"allocate failure", 0, 100 * mib, raw})
	closeAll(t, p)
	require.Equal(t, want, parse(t, out.Bytes()))
	closeAll(t, s)
	w.end()
}

// TestTraceOfManyGoroutines: a line that says that memory was freed comes before one that
// says that it was allocated again.
func TestTraceOfManyGoroutines(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	var out bytes.Buffer
	p, s := pool.Trace(w.pool(pool.Options{ReleaseThreshold: 16 * mib}), &out), w.stream(0)
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			n := []uint64{100, 70 * kib}[i%2]
			for k := range 3000 {
				b, err := p.Alloc(s, n)
				if err == nil && k%2 == 0 {
					err = p.Free(s, b)
				} else if err == nil {
					err = p.FreeNow(b)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	closeAll(t, p)
	live := map[uint64]bool{}
	for i, x := range parse(t, out.Bytes()) {
		require.Equal(t, x.action == "free", live[x.ptr], "line %d: %+v", i, x)
		live[x.ptr] = x.action == "allocate"
	}
	closeAll(t, s)
	w.end()
}

// broken is a writer that fails after so many lines.
type broken struct{ left int }

func (b *broken) Write(p []byte) (int, error) {
	if b.left--; b.left < 0 {
		return 0, errInjected
	}
	return len(p), nil
}

// TestTraceThatFails: Close returns its error, and nothing else does.
func TestTraceThatFails(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	out := &broken{left: 3}
	p, s := pool.Trace(w.pool(pool.Options{}), out), w.stream(0)
	for range 4 {
		require.NoError(t, p.Free(s, alloc(t, p, s, 100)))
	}
	require.Equal(t, -1, out.left, "the first error ends it")
	err := p.Close()
	require.ErrorIs(t, err, errInjected)
	isOpError(t, p, err)
	require.NoError(t, p.Close())
	closeAll(t, s)
	w.end()
}

// TestNothingCostsNothing: without options a pair makes no allocation and no driver call,
// and with OnOOM and Max neither.
func TestNothingCostsNothing(t *testing.T) {
	if lock.Ordered {
		t.Skip("the race detector allocates")
	}
	w := newWorld(t, 1, 16*mib)
	for _, o := range []pool.Options{{}, {Max: 8 * mib, OnOOM: func(*vmm.Stream, uint64) bool { return false }}} {
		p, s := w.pool(o), w.stream(0)
		for _, n := range []uint64{0, 100, 40 * kib, 70 * kib, 3 * chunk} {
			pair := func() {
				b, err := p.Alloc(s, n)
				if err == nil {
					err = p.Free(s, b)
				}
				if err != nil {
					t.Error(err)
				}
			}
			pair()
			require.Zero(t, testing.AllocsPerRun(100, pair), "%d bytes", n)
			require.Empty(t, w.calls(pair), "%d bytes", n)
		}
		closeAll(t, s, p)
	}
	w.end()
}
