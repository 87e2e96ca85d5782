package vmm_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// TestPinnedMirrorWaitsForOrphanedCopies: a copy that could neither be ended nor be waited for
// comes before what the mirror writes.
func TestPinnedMirrorWaitsForOrphanedCopies(t *testing.T) {
	w := staged(t, 1)
	g, _ := noisy(t, w, 2*edge)
	m := mirror(t, w.devs[0], g.Ptr(), 2*edge, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: page})
	open := gate(t, w.devs[0], vmm.IdleLane(w.devs[0]))
	t.Cleanup(open)
	w.refuse("SyncEvent", 2, errInjected)
	w.refuse("SyncStream", 1, errInjected)
	_, err := g.WriteAt(noise(2*edge, 2), 0)
	require.ErrorIs(t, err, errInjected)
	w.refuse("SyncEvent", 0, nil)
	want := noise(2*edge, 3)
	copy(m.Bytes(), want)
	flushed := begun(m.Flush)
	require.Empty(t, flushed, "the orphaned copy comes later")
	open()
	require.NoError(t, <-flushed)
	require.True(t, bytes.Equal(want, out(t, w.devs[0], g.Ptr(), 2*edge)))
	require.NoError(t, m.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestPinnedMirrorShowsNothingOld: a driver may return memory that was in use before.
func TestPinnedMirrorShowsNothingOld(t *testing.T) {
	d, err := vmm.OpenDriver(&usedMemory{host.New(host.Config{Devices: 1, Memory: 64 * page, Granularity: page})}, 0)
	require.NoError(t, err)
	g := newRange(t, d, vmm.RangeOptions{Max: page})
	require.NoError(t, g.Append(pattern(page, 1)))
	m := mirror(t, d, g.Ptr(), page, vmm.MirrorOptions{Write: true, MaxPinned: page})
	require.Equal(t, make([]byte, page), m.Bytes())
	require.NoError(t, m.Close())
	require.NoError(t, g.Close())
	require.NoError(t, d.Close())
}

// usedMemory is a driver whose pinned memory was in use before.
type usedMemory struct{ driver.Driver }

type usedMemoryDevice struct {
	driver.Device
	driver.HostAllocator
}

func (p *usedMemory) Open(n int) (driver.Device, error) {
	d, err := p.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return usedMemoryDevice{d, d.(driver.HostAllocator)}, nil
}

func (d usedMemoryDevice) AllocHost(n uint64) (vmm.Ptr, []byte, error) {
	p, b, err := d.HostAllocator.AllocHost(n)
	for i := range b {
		b[i] = secret
	}
	return p, b, err
}

// TestPinnedMirrorWithoutPinnedMemory: that is an error, not a slower mirror.
func TestPinnedMirrorWithoutPinnedMemory(t *testing.T) {
	d, err := vmm.OpenDriver(&withoutIPC{host.New(host.Config{Devices: 1, Memory: 64 * page, Granularity: page})}, 0)
	require.NoError(t, err)
	g := newRange(t, d, vmm.RangeOptions{Max: page})
	require.NoError(t, g.Append(pattern(page, 1)))
	_, err = d.NewMirror(g.Ptr(), page, vmm.MirrorOptions{Init: true, MaxPinned: page})
	require.ErrorIs(t, err, vmm.ErrNotSupported)
	m := mirror(t, d, g.Ptr(), page, vmm.MirrorOptions{Init: true, MaxPinned: page - 1})
	require.NoError(t, m.Close())
	require.NoError(t, g.Close())
	require.NoError(t, d.Close())
}

// BenchmarkMirror copies the contents of a mirror each way: at its first use, which makes the
// mirror and its host memory, and at later ones.
func BenchmarkMirror(b *testing.B) {
	name, sizes := "host", []int{2, 64}
	if onCUDA {
		name, sizes = "cuda", []int{64, 1024}
	}
	for _, size := range sizes {
		for _, memory := range []string{"pageable", "pinned"} {
			n, pinned := uint64(size)*mib, uint64(0)
			if memory == "pinned" {
				pinned = n
			}
			run := func(way, use string, o vmm.MirrorOptions, first bool, f func(m *vmm.Mirror) error) {
				b.Run(fmt.Sprintf("driver=%s/size=%dMiB/memory=%s/way=%s/use=%s", name, size, memory, way, use), func(b *testing.B) {
					w := newWorld(b, 1)
					d := w.devs[0]
					g, err := d.Alloc(n)
					require.NoError(b, err)
					o.MaxPinned = pinned
					m := mirror(b, d, g.Ptr(), n, o)
					require.NoError(b, f(m)) // makes the lanes
					b.SetBytes(int64(n))
					for b.Loop() {
						if first {
							require.NoError(b, m.Discard())
							m, err = d.NewMirror(g.Ptr(), n, o)
							require.NoError(b, err)
							if o.Init { // it has read
								continue
							}
						}
						if err := f(m); err != nil {
							b.Fatal(err)
						}
					}
					require.NoError(b, m.Discard())
					require.NoError(b, g.Close())
					w.end()
				})
			}
			for _, use := range []string{"first", "later"} {
				run("in", use, vmm.MirrorOptions{Write: true}, use == "first", (*vmm.Mirror).Flush)
				run("out", use, vmm.MirrorOptions{Init: true}, use == "first", (*vmm.Mirror).Refresh)
			}
		}
	}
}
