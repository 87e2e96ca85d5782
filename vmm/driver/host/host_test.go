//go:build linux

package host

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

const mib = 1 << 20

var (
	home   = driver.Prop{Location: on(0)}
	shared = driver.Prop{Location: on(0), Share: driver.ShareFD}
	frozen = driver.Prop{Location: on(0), Share: driver.ShareFD | driver.ShareReadOnly}
)

func on(dev int) driver.Location { return driver.Location{Kind: driver.LocationDevice, ID: dev} }

func grant(dev int, a driver.Access) []driver.Grant {
	return []driver.Grant{{To: on(dev), Access: a}}
}

// open opens device dev until the test ends.
func open(t testing.TB, d *Driver, dev int) *device {
	t.Helper()
	v, err := d.Open(dev)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v.(*device)
}

// create creates memory. The caller releases it.
func create(t testing.TB, d *Driver, size uint64, p driver.Prop) driver.Handle {
	t.Helper()
	h, err := d.Create(size, p)
	require.NoError(t, err)
	return h
}

// reserve reserves addresses. The caller frees them.
func reserved(t testing.TB, d *Driver, size uint64) driver.Ptr {
	t.Helper()
	p, err := d.Reserve(size, 0)
	require.NoError(t, err)
	return p
}

// chunk is memory of home, mapped for device 0 until the test ends.
func chunk(t testing.TB, d *Driver, size uint64) driver.Ptr {
	t.Helper()
	p := reserved(t, d, size)
	h := create(t, d, size, home)
	require.NoError(t, d.Map(p, size, h))
	require.NoError(t, d.SetAccess(p, size, grant(0, driver.AccessReadWrite)))
	t.Cleanup(func() {
		_ = d.Unmap(p, size)
		require.NoError(t, d.Release(h))
		require.NoError(t, d.Free(p, size))
	})
	return p
}

// gate holds a stream back until open is called, or the context ends.
func gate(t testing.TB, v *device, s driver.Stream) (open func()) {
	t.Helper()
	p, word, err := v.AllocHost(8)
	require.NoError(t, err)
	require.NoError(t, v.WaitValue(s, p, 1, 4))
	return func() { binary.NativeEndian.PutUint32(word, 1) }
}

// held is what the process holds of the system, by kind.
type held map[string]int

func holds(t testing.TB) held {
	t.Helper()
	all := held{}
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		// The Go runtime opens some of its own when it first needs them.
		if name, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && !strings.HasPrefix(name, "anon_inode:") {
			all["fd "+name]++
		}
	}
	for _, m := range mappings(t) {
		if strings.Contains(m.line, "memfd:cuvmm") {
			all["mappings"]++
		}
	}
	return all
}

// kernelMapping is a line of /proc/self/maps.
type kernelMapping struct {
	from, to uint64
	rights   string
	line     string
}

func mappings(t testing.TB) []kernelMapping {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	var all []kernelMapping
	for line := range strings.Lines(string(maps)) {
		m := kernelMapping{line: line}
		_, err := fmt.Sscanf(line, "%x-%x %s", &m.from, &m.to, &m.rights)
		require.NoError(t, err, line)
		all = append(all, m)
	}
	return all
}

// rights is what the page table allows at p.
func rights(t testing.TB, p driver.Ptr) string {
	t.Helper()
	for _, m := range mappings(t) {
		if m.from <= uint64(p) && uint64(p) < m.to {
			return m.rights
		}
	}
	return ""
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>12 ^ i*7)
	}
	return b
}

func TestCopyInAndOut(t *testing.T) {
	d := New(Config{Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 8*mib)
	// Across the part that is written through the file and the part through the mapping.
	for _, at := range []int{0, 3 * mib, 100, 5*mib + 7, 0} {
		want := pattern(3*mib - 11)
		require.NoError(t, v.CopyIn(p+driver.Ptr(at), want))
		got := make([]byte, len(want))
		require.NoError(t, v.CopyOut(got, p+driver.Ptr(at)))
		require.True(t, bytes.Equal(want, got))
		direct, err := d.HostBytes(p+driver.Ptr(at), uint64(len(want)))
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, direct))
	}
}

func TestUnmapUnderQueuedWork(t *testing.T) {
	d := New(Config{Devices: 2, Memory: 64 * mib})
	v := open(t, d, 0)
	p := chunk(t, d, 4*mib)
	s, err := v.NewStream()
	require.NoError(t, err)
	gate(t, v, s)
	require.NoError(t, v.Fill(p, 7, 1, 4*mib, s))
	require.NoError(t, d.Unmap(p, 4*mib))
	require.ErrorIs(t, v.SyncStream(s), driver.ErrDeviceLost)
	require.ErrorIs(t, v.CopyIn(p, []byte{1}), driver.ErrDeviceLost)
	_, err = d.Create(2*mib, home)
	require.ErrorIs(t, err, driver.ErrDeviceLost)
	require.NoError(t, v.FreeStream(s))
	_, err = d.Open(1)
	require.ErrorIs(t, err, driver.ErrDeviceLost)
	open(t, New(Config{Devices: 2, Memory: 64 * mib}), 1)
}
