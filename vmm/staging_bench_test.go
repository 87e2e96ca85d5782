package vmm_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// BenchmarkCopyIn copies pageable host memory to the device: the driver's way, through staging,
// and through staging with blocks of other sizes.
func BenchmarkCopyIn(b *testing.B) {
	benchmarkCopies(b, driver.Device.CopyIn, (*vmm.Device).CopyIn)
}

// BenchmarkCopyOut copies to pageable host memory.
func BenchmarkCopyOut(b *testing.B) {
	benchmarkCopies(b,
		func(d driver.Device, p vmm.Ptr, m []byte) error { return d.CopyOut(m, p) },
		func(d *vmm.Device, p vmm.Ptr, m []byte) error { return d.CopyOut(m, p) })
}

func benchmarkCopies(b *testing.B, theirs func(driver.Device, vmm.Ptr, []byte) error, ours func(*vmm.Device, vmm.Ptr, []byte) error) {
	name := "host"
	sizes := []int{2, 16, 64}
	if onCUDA {
		name, sizes = "cuda", append(sizes, 256, 1024)
	}
	for _, size := range sizes {
		run := func(by string, block int, f func(d *vmm.Device, p vmm.Ptr, m []byte) error) {
			b.Run(fmt.Sprintf("driver=%s/size=%dMiB/by=%s", name, size, by), func(b *testing.B) {
				w := newWorld(b, 1)
				if block > 0 || !onCUDA {
					vmm.SetStaging(w.devs[0], &vmm.Staging{Block: block})
				}
				g, err := w.devs[0].Alloc(uint64(size) * mib)
				require.NoError(b, err)
				m := pattern(size*mib, 1)
				require.NoError(b, f(w.devs[0], g.Ptr(), m)) // makes the lanes
				b.SetBytes(int64(len(m)))
				for b.Loop() {
					if err := f(w.devs[0], g.Ptr(), m); err != nil {
						b.Fatal(err)
					}
				}
				require.NoError(b, g.Close())
				w.end()
			})
		}
		run("driver", 0, func(d *vmm.Device, p vmm.Ptr, m []byte) error { return theirs(raw(b, d), p, m) })
		run("ours", 0, ours)
		if onCUDA {
			for _, block := range []int{512 << 10, 1 * mib, 2 * mib} {
				run(fmt.Sprintf("ours/block=%dKiB", block>>10), block, ours)
			}
		}
	}
}
