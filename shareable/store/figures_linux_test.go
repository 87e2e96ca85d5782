package store

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// The tests of this file measure; VMM_TEST_DRIVER=cuda does on the card. A missed target is
// reported and fails no test: it depends on the machine and what else runs there.

// onCard is n on a GPU, and less where the same runs on the host.
func onCard(n, host uint64) uint64 {
	if os.Getenv("VMM_TEST_DRIVER") == "cuda" {
		return n
	}
	return host
}

// measured is a device to measure on, and its name. On the host its memory is in pages of
// the system.
func measured(t *testing.T) (*vmm.Device, string) {
	t.Helper()
	name := smallDevice
	if os.Getenv("VMM_TEST_DRIVER") == "cuda" {
		name = "cuda:0"
	}
	dev, err := vmm.Open(name)
	if name != smallDevice {
		testgate.Require(t, "cuda", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev, name
}

// report logs samples in ns.
func report(t *testing.T, what string, ns []float64) (p99 float64) {
	t.Helper()
	q := stats.Quantiles(ns, 0.5, 0.99)
	t.Logf("%s: p50 %.1f us, p99 %.1f us, %d times", what, q[0]/1e3, q[1]/1e3, len(ns))
	return q[1]
}

// TestEchoProcess is no test: it sends back each byte that comes.
func TestEchoProcess(t *testing.T) {
	if os.Getenv(echoVar) == "" {
		t.Skip("is run by other tests")
	}
	var b [1]byte
	for {
		n, err := unix.Read(3, b[:])
		require.NoError(t, err)
		if n == 0 {
			return
		}
		_, err = unix.Write(3, b[:])
		require.NoError(t, err)
	}
}

const echoVar = "VMM_TEST_ECHO"

// emptyTrip returns a call that sends a byte to another process, which waits in the kernel,
// and waits for it there to come back. Nothing that asks another process can take less.
func emptyTrip(t *testing.T) func() time.Duration {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	far := os.NewFile(uintptr(fds[1]), "far")
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.CommandContext(context.Background(), self, "-test.run=^TestEchoProcess$")
	child.Env, child.ExtraFiles = append(os.Environ(), echoVar+"=1"), []*os.File{far}
	child.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, child.Start())
	require.NoError(t, far.Close())
	t.Cleanup(func() {
		require.NoError(t, unix.Close(fds[0]))
		require.NoError(t, child.Wait())
	})
	return func() time.Duration {
		b := [1]byte{}
		begun := time.Now()
		_, err := unix.Write(fds[0], b[:])
		require.NoError(t, err)
		_, err = unix.Read(fds[0], b[:])
		require.NoError(t, err)
		return time.Since(begun)
	}
}

// TestFigureGet measures Get of a sealed object of 1 GiB, whose descriptor the store has,
// and beside it, by turns, the driver's calls for the same descriptor alone and an empty round trip
// between two processes.
func TestFigureGet(t *testing.T) {
	const size = 1 << 30
	dev, name := measured(t)
	d := startDaemon(t, name)
	raw := plainTo(t, d.path, dev)
	q := wire.Create{Name: "big", Size: size, Device: uint32(dev.Info().Ordinal)}
	m, err := raw.leaseWith(wire.TypeCreate, q.Append(nil))
	require.NoError(t, err)
	var fds []int
	err = raw.Call(t.Context(), wire.TypeGrow, wire.Grow{Object: m.ID, Capacity: size}.Append(nil), wire.TypeChunks, func(f wire.Frame) error {
		for _, fd := range f.FDs {
			own, err := unix.Dup(fd.Int())
			if err != nil {
				return err
			}
			fds = append(fds, own)
		}
		return nil
	})
	require.NoError(t, err)
	require.Len(t, fds, 1)
	defer func() { require.NoError(t, unix.Close(fds[0])) }()
	require.NoError(t, raw.ask(wire.TypeSeal, wire.Seal{Object: m.ID, Length: size}.Append(nil)))

	c, err := Connect(t.Context(), d.path, dev, ClientOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = dev.Raw() // the context is made before
	require.NoError(t, err)
	drv := dev.Driver()
	there := vmm.Location{Kind: vmm.LocationDevice, ID: dev.Info().Ordinal}
	p, err := drv.Reserve(size, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, drv.Free(p, size)) }()
	var closes []float64
	ours := func() time.Duration {
		begun := time.Now()
		b, err := c.Get(t.Context(), "big", GetOptions{})
		took := time.Since(begun)
		require.NoError(t, err)
		require.Equal(t, uint64(size), b.Len())
		begun = time.Now()
		require.NoError(t, b.Close())
		closes = append(closes, float64(time.Since(begun)))
		return took
	}
	theirs := func() time.Duration {
		begun := time.Now()
		h, err := drv.Import(fds[0], size, vmm.Prop{Location: there})
		require.NoError(t, err)
		require.NoError(t, drv.Map(p, size, h))
		require.NoError(t, drv.SetAccess(p, size, []driver.Grant{{To: there, Access: vmm.AccessRead}}))
		took := time.Since(begun)
		require.NoError(t, drv.Unmap(p, size))
		require.NoError(t, drv.Release(h))
		return took
	}
	rounds := int(onCard(200, testgate.Effort[uint64](10, 50, 200)))
	took := versus.Rounds(rounds, ours, theirs, emptyTrip(t))
	get, bare := report(t, "get of 1 GiB", took[0]), report(t, "import, map and set access", took[1])
	trip := report(t, "an empty round trip", took[2])
	report(t, "close", closes)
	over := make([]float64, len(took[0]))
	for i := range over {
		over[i] = took[0][i] - took[1][i]
	}
	report(t, "get over the driver's calls, in pairs", over)
	t.Logf("p99 of get less p99 of the driver's calls: %.1f us (target: 300), and less p99 of an empty round trip: %.1f us", (get-bare)/1e3, (get-bare-trip)/1e3)
}

// plainTo is connected for a socket.
func plainTo(t *testing.T, path string, dev *vmm.Device) plainClient {
	t.Helper()
	c, err := sharing.Dial(t.Context(), path, dev, shareable.AttachOptions{}, serve.Notified{Event: func(wire.Frame) error { return nil }})
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return plainClient{t, dev, c}
}

// TestFigureList measures List of many objects.
func TestFigureList(t *testing.T) {
	dev, name := measured(t)
	d := startDaemon(t, name)
	c, err := Connect(t.Context(), d.path, dev, ClientOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	objects := testgate.Effort(100, 1000, 1000)
	size := onCard(2<<20, 4096)
	begun := time.Now()
	for i := range objects {
		w, err := c.Create(t.Context(), fmt.Sprint("figures/", i), CreateOptions{Size: size})
		require.NoError(t, err)
		require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
		require.NoError(t, w.Close())
	}
	t.Logf("%d objects of %d KiB made and sealed, one after the other: %.1f us each", objects, size>>10, float64(time.Since(begun))/1e3/float64(objects))
	var took []float64
	for range testgate.Effort(5, 50, 50) {
		begun := time.Now()
		all, err := c.List(t.Context(), ListOptions{})
		took = append(took, float64(time.Since(begun)))
		require.NoError(t, err)
		require.Len(t, all, objects)
	}
	report(t, fmt.Sprintf("list of %d objects (target of 1,000: 5,000 us)", objects), took)
}

// TestFigureMirror measures a mirror's first use, and later ones beside the driver's copies
// of pinned memory, by turns.
func TestFigureMirror(t *testing.T) {
	dev, _ := measured(t)
	size := onCard(1<<30, testgate.Effort[uint64](8<<20, 64<<20, 64<<20))
	g, err := dev.NewRange(vmm.RangeOptions{Max: size})
	require.NoError(t, err)
	defer func() { require.NoError(t, g.Close()) }()
	require.NoError(t, g.Grow(size))
	require.NoError(t, g.SetLen(size))
	raw, err := dev.Raw()
	require.NoError(t, err)
	host, ok := raw.(driver.HostAllocator)
	if !ok {
		t.Skip("the driver has no pinned memory")
	}
	p, pinned, err := host.AllocHost(size)
	require.NoError(t, err)
	defer func() { require.NoError(t, host.FreeHost(p)) }()
	clear(pinned)
	timed := func(f func() error) func() time.Duration {
		return func() time.Duration {
			begun := time.Now()
			require.NoError(t, f())
			return time.Since(begun)
		}
	}
	var m *vmm.Mirror
	first := timed(func() (err error) {
		m, err = dev.NewMirror(g.Ptr(), size, vmm.MirrorOptions{Init: true, Write: true, MaxPinned: size})
		return err
	})()
	gbs := func(ns float64) float64 { return float64(size) / ns }
	t.Logf("mirror of %d MiB: first use %v, %.1f GB/s", size>>20, first, gbs(float64(first)))
	for _, way := range []struct {
		name         string
		ours, theirs func() error
	}{
		{"to the host", m.Refresh, func() error { return raw.CopyOut(pinned, g.Ptr()) }},
		{"to the device", m.Flush, func() error { return raw.CopyIn(g.Ptr(), pinned) }},
	} {
		took := versus.Rounds(testgate.Effort(5, 20, 20), timed(way.ours), timed(way.theirs))
		low, high := versus.Interval(took[1], took[0])
		t.Logf("%s: mirror %.1f GB/s, pinned copy %.1f GB/s; %.3f to %.3f of it (target: 0.8)",
			way.name, gbs(versus.Median(took[0])), gbs(versus.Median(took[1])), low, high)
	}
	require.NoError(t, m.Discard())
}
