package main

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/cuvmm/cuvmm/vmm"
)

const page = 64 << 10

func needsLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs the host driver, which is for Linux")
	}
}

// setup is a device, which fails the test if a memory stays open, and an Allocator on it that
// collects its errors.
func setup(t *testing.T) (*vmm.Device, *Allocator, *[]error) {
	t.Helper()
	needsLinux(t)
	var failed []error
	dev, err := vmm.Open(device)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev, &Allocator{Device: dev, Failed: func(err error) { failed = append(failed, err) }}, &failed
}

// instantiate runs a module with memories of a.
func instantiate(t *testing.T, a *Allocator, c wazero.RuntimeConfig, flags byte, min, max uint32) api.Module {
	t.Helper()
	ctx := experimental.WithMemoryAllocator(t.Context(), a)
	r := wazero.NewRuntimeWithConfig(ctx, c)
	t.Cleanup(func() { require.NoError(t, r.Close(ctx)) })
	m, err := r.Instantiate(ctx, program(flags, min, max))
	require.NoError(t, err)
	return m
}

func first(t *testing.T, m api.Module) *byte {
	t.Helper()
	b, ok := m.Memory().Read(0, 1)
	require.True(t, ok)
	return &b[0]
}

func requireZero(t *testing.T, b []byte) {
	t.Helper()
	require.Equal(t, len(b), strings.Count(string(b), "\x00"))
}

func TestRun(t *testing.T) {
	needsLinux(t)
	var out strings.Builder
	require.NoError(t, run(t.Context(), &out))
	require.Contains(t, out.String(), "1024 pages of 64 KiB, every word checked\nat the same address: true\n")
}

// The program grows its memory to its maximum, and finds new words zero and old ones as it
// left them, in both engines of wazero.
func TestProgramGrows(t *testing.T) {
	for name, c := range map[string]wazero.RuntimeConfig{
		"compiler": wazero.NewRuntimeConfig(), "interpreter": wazero.NewRuntimeConfigInterpreter(),
		"capacity": wazero.NewRuntimeConfig().WithMemoryCapacityFromMax(true),
	} {
		t.Run(name, func(t *testing.T) {
			_, a, failed := setup(t)
			m := instantiate(t, a, c, hasMax, 1, 64)
			before := first(t, m)
			pages, err := m.ExportedFunction("grow").Call(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, 64, pages[0])
			require.Same(t, before, first(t, m))
			require.Empty(t, *failed)
		})
	}
}

// The host grows the memory: zero pages, no more than the maximum, and a length that reads
// and writes respect.
func TestHostGrows(t *testing.T) {
	_, a, failed := setup(t)
	m := instantiate(t, a, wazero.NewRuntimeConfig(), hasMax, 0, 10).Memory()
	for _, step := range []struct{ delta, old uint32 }{{0, 0}, {1, 0}, {0, 1}, {4, 1}, {5, 5}, {0, 10}} {
		old, ok := m.Grow(step.delta)
		require.True(t, ok)
		require.Equal(t, step.old, old)
		b, ok := m.Read(old*page, step.delta*page)
		require.True(t, ok)
		requireZero(t, b)
		require.True(t, step.delta == 0 || m.WriteByte(m.Size()-1, 1))
		require.False(t, m.WriteByte(m.Size(), 1))
	}
	_, ok := m.Grow(1)
	require.False(t, ok)
	require.EqualValues(t, 10*page, m.Size())
	require.Empty(t, *failed, "a maximum is wazero's business")
}

// A shared memory must not move: wazero panics if it does, also from no pages at all.
func TestSharedMemory(t *testing.T) {
	_, a, _ := setup(t)
	threads := wazero.NewRuntimeConfig().WithCoreFeatures(api.CoreFeaturesV2 | experimental.CoreFeaturesThreads)
	m := instantiate(t, a, threads, hasMax|shared, 0, 100).Memory()
	for range 100 {
		_, ok := m.Grow(1)
		require.True(t, ok)
	}
}

// Without memory the program gets -1 from memory.grow and goes on.
func TestOutOfMemory(t *testing.T) {
	dev, a, failed := setup(t)
	dev.SetLimit(10 * page)
	m := instantiate(t, a, wazero.NewRuntimeConfig(), hasMax, 1, 1000)
	pages, err := m.ExportedFunction("grow").Call(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 10, pages[0])
	require.Len(t, *failed, 1)
	require.ErrorIs(t, (*failed)[0], vmm.ErrOutOfMemory)

	dev.SetLimit(0)
	_, ok := m.Memory().Grow(1)
	require.True(t, ok)
}

// wazero cannot be told that a memory cannot be made; it is one that cannot grow.
func TestOutOfAddresses(t *testing.T) {
	_, a, failed := setup(t)
	m := a.Allocate(0, 1<<60)
	require.Nil(t, m.Reallocate(0))
	require.Nil(t, m.Reallocate(page))
	m.Free()
	require.ErrorIs(t, errors.Join((*failed)...), vmm.ErrAddressSpace)
}

// wazero forgets the memory of a module that it cannot instantiate.
func TestClose(t *testing.T) {
	dev, a, _ := setup(t)
	ctx := experimental.WithMemoryAllocator(t.Context(), a)
	r := wazero.NewRuntime(ctx)
	past := []byte{1, 0, 0x41, 0x80, 0x80, 4, 0x0b, 1, 'x'} // data beyond the first page
	_, err := r.Instantiate(ctx, append(program(hasMax, 1, 2), append([]byte{11, byte(len(past))}, past...)...))
	require.ErrorContains(t, err, "out of bounds memory access")
	require.NoError(t, r.Close(ctx))
	require.NotZero(t, dev.Stats().Reserved)
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.Zero(t, dev.Stats().Reserved)
}

func TestReallocate(t *testing.T) {
	dev, a, failed := setup(t)
	dev.SetReleaseThreshold(1 << 30) // what one memory frees, the next one gets
	for range 2 {
		m := a.Allocate(page, 3*page)
		require.NotNil(t, m.Reallocate(0))
		require.Empty(t, m.Reallocate(0))
		b := m.Reallocate(3 * page)
		require.Len(t, b, 3*page)
		requireZero(t, b)
		copy(b, strings.Repeat("secret", len(b)/6))
		require.Nil(t, m.Reallocate(3*page+1))
		require.Same(t, &b[0], &m.Reallocate(1)[0])
		require.EqualValues(t, 's', b[0])
		requireZero(t, m.Reallocate(3 * page)[1:])
		m.Free()
		m.Free()
		require.Nil(t, m.Reallocate(1))
	}
	require.Len(t, *failed, 4)
	for i, want := range []error{vmm.ErrFull, vmm.ErrClosed, vmm.ErrFull, vmm.ErrClosed} {
		require.ErrorIs(t, (*failed)[i], want)
	}
	require.Zero(t, dev.Stats().Reserved)
}

// A memory that must stay empty takes no more addresses than it must.
func TestMaxOfZero(t *testing.T) {
	dev, a, _ := setup(t)
	m := a.Allocate(0, 0)
	defer m.Free()
	require.NotNil(t, m.Reallocate(0))
	require.LessOrEqual(t, dev.Stats().Reserved, uint64(page))
}
