package hostcopy

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// counted is a Buffer that counts the addresses it takes.
func counted(taken *uint64) *Buffer {
	return &Buffer{Take: func(n uint64) error { *taken += n; return nil }, Return: func(n uint64) { *taken -= n }}
}

func TestBuffer(t *testing.T) {
	var taken uint64
	b := counted(&taken)
	require.NoError(t, b.Free(), "empty")
	require.NoError(t, b.Ensure(unit+1))
	require.Len(t, b.Mem, 2*unit)
	require.EqualValues(t, 2*unit, taken)
	require.True(t, IsFresh(b.Mem))
	b.Mem[0], b.Mem[2*unit-1] = 1, 2
	require.NoError(t, b.Ensure(2*unit))
	require.EqualValues(t, 1, b.Mem[0], "it is large enough")
	require.NoError(t, b.Ensure(2*unit+1))
	require.EqualValues(t, 3*unit, taken)
	require.NoError(t, b.Free())
	require.Zero(t, taken)
	require.Nil(t, b.Mem)
	require.NoError(t, b.Ensure(1))
	require.EqualValues(t, smallUnit, taken)
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Ensure(1<<63), driver.ErrOutOfMemory)
	require.ErrorIs(t, b.Ensure(^uint64(0)), driver.ErrOutOfMemory)
	require.Zero(t, taken)

	refused := errors.New("refused")
	b.Take = func(uint64) error { return refused }
	require.ErrorIs(t, b.Ensure(1), refused)
	require.Nil(t, b.Mem)
}

// TestBufferBeyondTheGroup: what a control group would kill the process for is refused.
func TestBufferBeyondTheGroup(t *testing.T) {
	old := Root
	Root = t.TempDir()
	t.Cleanup(func() { Root = old })
	for name, text := range map[string]string{
		"proc/meminfo":                     "MemAvailable: 1000000 kB\n",
		"proc/self/cgroup":                 "0::/job\n",
		"sys/fs/cgroup/job/memory.max":     "9000000\n",
		"sys/fs/cgroup/job/memory.current": "1000000\n",
	} {
		name = filepath.Join(Root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o700))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	}
	var taken uint64
	b := counted(&taken)
	require.ErrorIs(t, b.Ensure(3_800_000), driver.ErrOutOfMemory, "with 4 MiB left for others")
	require.Zero(t, taken)
	require.NoError(t, b.Ensure(3_790_000))
	require.False(t, b.IsWritten())

	second := counted(&taken)
	require.ErrorIs(t, second.Ensure(100_000), driver.ErrOutOfMemory, "the first will write to it")
	b.Wrote(3_000_000)
	require.NoError(t, second.Ensure(100_000), "most of it was written to")
	require.NoError(t, second.Free())
	require.False(t, b.IsWritten())
	b.Wrote(790_000)
	require.True(t, b.IsWritten())
	require.NoError(t, second.Ensure(100_000), "it has: it is no longer among what is free")
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Ensure(3_750_000), driver.ErrOutOfMemory)
	require.NoError(t, second.Free())
	require.NoError(t, b.Ensure(3_750_000))
	refused := errors.New("refused")
	require.NoError(t, b.Free())
	b.Take = func(uint64) error { return refused }
	require.ErrorIs(t, b.Ensure(3_750_000), refused)
	require.NoError(t, second.Ensure(3_750_000), "a refused one has no promise")
	require.NoError(t, second.Free())

	// Several are one promise: all of it, or none.
	third := counted(&taken)
	require.ErrorIs(t, Ensure(Need{third, 2_000_000}, Need{second, 1_800_000}), driver.ErrOutOfMemory)
	require.Zero(t, taken)
	require.ErrorIs(t, Ensure(Need{third, 2_000_000}, Need{b, 1_700_000}), refused)
	require.NoError(t, second.Ensure(1_700_000), "what the refused one needed is promised no more")
	require.ErrorIs(t, Ensure(Need{third, 2_000_000}, Need{second, 1_800_000}), driver.ErrOutOfMemory, "third has its memory and its promise")
	require.NoError(t, third.Free())
	require.NoError(t, second.Free())
	require.ErrorIs(t, Ensure(Need{third, 1 << 62}, Need{second, 1 << 62}, Need{b, 1 << 62}), driver.ErrOutOfMemory)
	require.Zero(t, taken)
}

// TestCopyIntoFreshMemory: every byte arrives, from and to every place in a page.
func TestCopyIntoFreshMemory(t *testing.T) {
	var taken uint64
	src := make([]byte, 3*populated+100)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	for _, at := range []int{0, 1, 4095, populated - 1} {
		for _, n := range []int{0, 1, 4097, populated, len(src) - 1} {
			b := counted(&taken)
			require.NoError(t, b.Ensure(unit))
			require.True(t, IsFresh(b.Mem))
			Copy(b.Mem[at:at+n], src[1:])
			require.Equal(t, src[1:1+n], b.Mem[at:at+n])
			require.True(t, bytes.Equal(make([]byte, unit-at-n), b.Mem[at+n:]), "and nothing else")
			require.NoError(t, b.Free())
		}
	}
	clear(src)
	require.False(t, IsFresh(src))
	require.False(t, IsFresh(nil))
}
