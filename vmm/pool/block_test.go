package pool_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestBlockIsAnArgument of a kernel: the address, and what it may touch.
func TestBlockIsAnArgument(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	seen := make(chan driver.Span, 1)
	m, _, err := w.devs[0].LoadModule(vmm.Code{Image: []byte("// params look 8\n.visible .entry look()"),
		Host: map[string]driver.HostKernel{"look": {Params: []driver.Param{{Size: 8}}, Run: func(l *driver.Launch) error {
			seen <- l.Memory[0]
			return nil
		}}}})
	require.NoError(t, err)
	f, err := m.Function("look")
	require.NoError(t, err)
	for _, b := range blocks(t, p, s) {
		var arg vmm.MemoryArg
		b.MemoryArg(&arg)
		require.NoError(t, arg.Err())
		var use vmm.LaunchMemory
		use.Set(&arg)
		use.Access = vmm.AccessReadWrite
		require.NoError(t, f.Launch(s, &vmm.Launch{Args: make([]byte, 8)}, []vmm.LaunchMemory{use}))
		require.NoError(t, s.Sync())
		got := <-seen
		require.Equal(t, b.Ptr(), got.Addr)
		require.Equal(t, b.Size(), got.Size)
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, m, s, p)
	w.end()
}

// TestFindBetweenBlocks: where no block is none is found, a slab's last bytes included.
func TestFindBetweenBlocks(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{}), w.stream(0)
	const n = 1280 // 51 of them are 256 bytes less than a slab
	var all []pool.Block
	for range 64 * kib / n {
		all = append(all, alloc(t, p, s, n))
	}
	first := all[0].Ptr()
	for at := vmm.Ptr(0); at < 64*kib; at += 64 {
		b, ok := p.Find(first + at)
		require.Equal(t, at/n < vmm.Ptr(len(all)), ok)
		require.True(t, !ok || b.Ptr() == first+at/n*n)
	}
	b, ok := p.Find(first)
	require.True(t, ok)
	require.NoError(t, p.Free(s, b), "what Find returns is the block")
	for _, at := range []vmm.Ptr{0, 1, first - 1, p.Reservation().Ptr() + vmm.Ptr(p.Reservation().Size()), ^vmm.Ptr(0)} {
		_, ok := p.Find(at)
		require.False(t, ok)
	}
	require.ErrorIs(t, p.Free(s, all[0]), pool.ErrDoubleFree)
	for _, b := range all[1:] {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, p)
	w.end()
}

// TestFewAddresses: without a place for a block Alloc says so, and works once there is one.
func TestFewAddresses(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{Max: 16 * chunk, Addresses: 16 * chunk}), w.stream(0)
	var all []pool.Block
	for range 8 {
		all = append(all, alloc(t, p, s, 2*chunk))
	}
	for i := 0; i < 8; i += 2 {
		require.NoError(t, p.Free(s, all[i]))
	}
	require.NoError(t, s.Sync())
	_, err := p.Alloc(s, 4*chunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.ErrorContains(t, err, "Options.Addresses")
	require.NoError(t, pool.Check(p))
	require.NoError(t, p.Free(s, all[1]))
	require.NoError(t, s.Sync(), "its addresses are free, too")
	b := alloc(t, p, s, 4*chunk)
	for _, b := range []pool.Block{b, all[3], all[5], all[7]} {
		require.NoError(t, p.Free(s, b))
	}
	closeAll(t, s, p)
	w.end()
}

// TestHeldChunksAtTheMaximum: if those that a Hold keeps are the only ones that could move,
// there is no memory.
func TestHeldChunksAtTheMaximum(t *testing.T) {
	w := newWorld(t, 1, 16*mib)
	p, s := w.pool(pool.Options{Max: 6 * chunk, ReleaseThreshold: 16 * mib}), w.stream(0)
	first, second, third := alloc(t, p, s, 2*chunk), alloc(t, p, s, 2*chunk), alloc(t, p, s, 2*chunk)
	require.NoError(t, p.Free(s, first))
	require.NoError(t, p.Free(s, third))
	require.NoError(t, s.Sync())
	release, err := p.Reservation().Hold(uint64(first.Ptr()-p.Reservation().Ptr()), 1)
	require.NoError(t, err)
	_, err = p.Alloc(s, 4*chunk)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory)
	require.NoError(t, pool.Check(p))
	require.EqualValues(t, 6*chunk, statsOf(t, p).Reserved)
	release()
	b := alloc(t, p, s, 4*chunk)
	require.NoError(t, p.Free(s, b))
	require.NoError(t, p.Free(s, second))
	closeAll(t, s, p)
	w.end()
}
