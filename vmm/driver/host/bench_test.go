//go:build linux

package host

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// BenchmarkCopyIn is the price of one synchronous copy.
func BenchmarkCopyIn(b *testing.B) {
	for _, c := range []struct {
		name string
		n    int
	}{{"size=4", 4}, {"size=64KiB", 64 << 10}, {"size=16MiB", 16 * mib}} {
		b.Run(c.name, func(b *testing.B) {
			d := New(Config{})
			v := open(b, d, 0)
			p := chunk(b, d, 16*mib)
			src := pattern(c.n)
			b.SetBytes(int64(c.n))
			b.ReportAllocs()
			for b.Loop() {
				if err := v.CopyIn(p, src); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCopyInParallel shows what concurrent copies wait for.
func BenchmarkCopyInParallel(b *testing.B) {
	d := New(Config{})
	v := open(b, d, 0)
	p := chunk(b, d, 16*mib)
	b.SetBytes(64 << 10)
	b.RunParallel(func(pb *testing.PB) {
		src := pattern(64 << 10)
		for pb.Next() {
			if err := v.CopyIn(p, src); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkGrow writes 1 GiB in steps of 16 MiB: in place, into one memory file
// of the final size, and with append. Each starts from memory that the process
// does not have yet, which is what growth is about.
func BenchmarkGrow(b *testing.B) {
	const size, step = 1 << 30, 16 * mib
	src := pattern(step)
	b.Run("by=host", func(b *testing.B) {
		d := New(Config{})
		v := open(b, d, 0)
		b.SetBytes(size)
		for b.Loop() {
			p := reserved(b, d, size)
			var all []driver.Handle
			for at := driver.Ptr(0); at < size; at += step {
				h := create(b, d, step, home)
				all = append(all, h)
				require.NoError(b, d.Map(p+at, step, h))
				require.NoError(b, d.SetAccess(p+at, step, grant(0, driver.AccessReadWrite)))
				require.NoError(b, v.CopyIn(p+at, src))
			}
			b.StopTimer()
			require.NoError(b, d.Unmap(p, size))
			for _, h := range all {
				require.NoError(b, d.Release(h))
			}
			require.NoError(b, d.Free(p, size))
			b.StartTimer()
		}
	})
	b.Run("by=memfd", func(b *testing.B) {
		d := New(Config{})
		b.SetBytes(size)
		for b.Loop() {
			fd, _, err := d.memfd(size, 0, private)
			require.NoError(b, err)
			p, err := mmap(0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED, fd, 0)
			require.NoError(b, err)
			for at := uint64(0); at < size; at += step {
				copy(bytesAt(p+at, step), src)
			}
			b.StopTimer()
			require.NoError(b, munmap(p, size))
			require.NoError(b, unix.Close(fd))
			b.StartTimer()
		}
	})
	b.Run("by=append", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			var all []byte
			for range size / step {
				all = append(all, src...)
			}
			b.StopTimer()
			runtime.KeepAlive(all)
			all = nil
			debug.FreeOSMemory()
			b.StartTimer()
		}
	})
}

// BenchmarkMap is the price of the smallest growth of one mapping and access,
// and of its undo.
func BenchmarkMap(b *testing.B) {
	d := New(Config{})
	p := reserved(b, d, 2*mib)
	h := create(b, d, 2*mib, home)
	who := grant(0, driver.AccessReadWrite)
	b.ReportAllocs()
	for b.Loop() {
		if err := d.Map(p, 2*mib, h); err != nil {
			b.Fatal(err)
		}
		if err := d.SetAccess(p, 2*mib, who); err != nil {
			b.Fatal(err)
		}
		if err := d.Unmap(p, 2*mib); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLife is the price of a chunk's life: created, mapped, one page written,
// unmapped, released.
func BenchmarkLife(b *testing.B) {
	for _, c := range []struct {
		name string
		size uint64
		prop driver.Prop
	}{
		{"chunk=4KiB", 4 << 10, home}, {"chunk=64KiB", 64 << 10, home}, {"chunk=2MiB", 2 * mib, home},
		{"chunk=64MiB", 64 * mib, home}, {"chunk=2MiB/shared", 2 * mib, shared},
	} {
		b.Run(c.name, func(b *testing.B) {
			d := New(Config{Granularity: min(c.size, 2*mib)})
			p := reserved(b, d, c.size)
			who := grant(0, driver.AccessReadWrite)
			stays := create(b, d, c.size, c.prop) // small ones share a file with it
			defer func() { require.NoError(b, d.Release(stays)) }()
			b.ReportAllocs()
			for b.Loop() {
				h, err := d.Create(c.size, c.prop)
				if err != nil {
					b.Fatal(err)
				}
				if err := d.Map(p, c.size, h); err != nil {
					b.Fatal(err)
				}
				if err := d.SetAccess(p, c.size, who); err != nil {
					b.Fatal(err)
				}
				bytesAt(uint64(p), 1)[0] = 1
				if err := d.Unmap(p, c.size); err != nil {
					b.Fatal(err)
				}
				if err := d.Release(h); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkGrowInParallel shows what goroutines that each write fresh memory wait for.
func BenchmarkGrowInParallel(b *testing.B) {
	const size = 4 * mib
	d := New(Config{Granularity: 4096})
	v := open(b, d, 0)
	src := pattern(size)
	for _, chunk := range []uint64{64 << 10, 1 * mib, 4 * mib} {
		b.Run(fmt.Sprintf("chunk=%dKiB", chunk>>10), func(b *testing.B) {
			b.SetBytes(size)
			b.RunParallel(func(pb *testing.PB) {
				p := reserved(b, d, size)
				for pb.Next() {
					var all []driver.Handle
					for at := driver.Ptr(0); at < size; at += driver.Ptr(chunk) {
						h := create(b, d, chunk, home)
						all = append(all, h)
						if err := d.Map(p+at, chunk, h); err != nil {
							b.Fatal(err)
						}
					}
					if err := d.SetAccess(p, size, grant(0, driver.AccessReadWrite)); err != nil {
						b.Fatal(err)
					}
					if err := v.CopyIn(p, src); err != nil {
						b.Fatal(err)
					}
					if err := d.Unmap(p, size); err != nil {
						b.Fatal(err)
					}
					for _, h := range all {
						if err := d.Release(h); err != nil {
							b.Fatal(err)
						}
					}
				}
				if err := d.Free(p, size); err != nil {
					b.Fatal(err)
				}
			})
		})
	}
}

// BenchmarkAllocPlain is the price of plain memory that is not touched.
func BenchmarkAllocPlain(b *testing.B) {
	v := open(b, New(Config{}), 0)
	for b.Loop() {
		p, err := v.AllocPlain(64 << 10)
		if err == nil {
			err = v.FreePlain(p)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}
