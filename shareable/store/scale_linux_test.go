package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
)

// smallPages is a device whose objects have a page of the system each.
func smallPages(t *testing.T) *vmm.Device {
	t.Helper()
	dev, err := vmm.Open(smallDevice)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// usage is what a process uses.
type usage struct {
	rss             uint64 // bytes, after a collection
	device          uint64 // bytes of the device that are in use
	fds, goroutines int
}

func (u usage) String() string {
	return fmt.Sprintf("%d KiB, %d descriptors, %d goroutines", u.rss>>10, u.fds, u.goroutines)
}

// ownUsage is what this process uses.
func ownUsage(dev *vmm.Device) (u usage, err error) {
	free, all, err := dev.MemInfo()
	if err != nil {
		return u, err
	}
	u.device = all - free
	debug.FreeOSMemory()
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return u, err
	}
	var size uint64
	if _, err := fmt.Sscan(string(b), &size, &u.rss); err != nil {
		return u, err
	}
	u.rss *= uint64(os.Getpagesize())
	fds, err := os.ReadDir("/proc/self/fd")
	u.fds, u.goroutines = len(fds)-1, runtime.NumGoroutine() // ReadDir has one
	return u, err
}

// daemonVar is the socket of a daemon that this binary plays for other tests.
const daemonVar = "STORE_TEST_DAEMON"

// daemon is a store in a process of its own.
type daemon struct {
	t    *testing.T
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Scanner
	path string
}

// smallDevice is smallPages by name.
const smallDevice = "host?page=4K"

// startDaemon starts a daemon for a device. It ends with the test.
func startDaemon(t *testing.T, device string) *daemon {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	d := &daemon{t: t, path: filepath.Join(t.TempDir(), "d.sock")}
	d.cmd = exec.CommandContext(context.Background(), self, "-test.run=^TestDaemonProcess$", "-test.timeout=60m")
	d.cmd.Env = append(os.Environ(), daemonVar+"="+d.path, daemonVar+"_DEVICE="+device)
	d.cmd.Stderr = os.Stderr
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	d.in, err = d.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := d.cmd.StdoutPipe()
	require.NoError(t, err)
	d.out = bufio.NewScanner(out)
	require.NoError(t, d.cmd.Start())
	t.Cleanup(func() {
		_ = d.in.Close() // the daemon ends
		for d.out.Scan() {
		}
		require.NoError(t, d.cmd.Wait())
	})
	d.usage()
	return d
}

// usage is what the daemon uses now.
func (d *daemon) usage() (u usage) {
	d.t.Helper()
	_, err := fmt.Fprintln(d.in, "usage")
	require.NoError(d.t, err)
	for d.out.Scan() {
		if _, err := fmt.Sscanf(d.out.Text(), "usage %d %d %d %d", &u.rss, &u.device, &u.fds, &u.goroutines); err == nil {
			return u
		}
	}
	require.Fail(d.t, "the daemon has ended")
	return u
}

// TestDaemonProcess is a daemon's process, and nothing in any other.
func TestDaemonProcess(t *testing.T) {
	path := os.Getenv(daemonVar)
	if path == "" {
		t.Skip("is run by other tests")
	}
	dev, err := vmm.Open(os.Getenv(daemonVar + "_DEVICE"))
	require.NoError(t, err)
	defer func() { require.NoError(t, dev.Close()) }()
	s, err := Listen(dev, path, Options{MaxObjects: 1 << 20})
	require.NoError(t, err)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		u, err := ownUsage(dev)
		require.NoError(t, err)
		fmt.Fprintln(os.Stdout, "usage", u.rss, u.device, u.fds, u.goroutines)
	}
	require.NoError(t, s.Close())
}

// many are clients of one daemon that take turns: as many as atOnce make calls at a time.
type many struct {
	t       *testing.T
	clients []*Client
	turns   chan struct{}
}

func (d *daemon) clients(dev *vmm.Device, n, atOnce int) *many {
	d.t.Helper()
	m := &many{t: d.t, turns: make(chan struct{}, atOnce)}
	for range n {
		c, err := Connect(d.t.Context(), d.path, dev, ClientOptions{Timeout: time.Minute})
		require.NoError(d.t, err)
		d.t.Cleanup(func() { require.NoError(d.t, c.Close()) })
		m.clients = append(m.clients, c)
	}
	return m
}

// each has the clients call f n times together, and returns how long each call took, in us.
func (m *many) each(n int, f func(c *Client, i int) error) []float64 {
	m.t.Helper()
	var (
		took  = make([]float64, n)
		errs  = make([]error, len(m.clients))
		tasks sync.WaitGroup
	)
	for k, c := range m.clients {
		tasks.Go(func() {
			for i := k; i < n && errs[k] == nil; i += len(m.clients) {
				m.turns <- struct{}{}
				begun := time.Now()
				errs[k] = f(c, i)
				took[i] = float64(time.Since(begun)) / 1e3
				<-m.turns
			}
		})
	}
	tasks.Wait()
	require.NoError(m.t, errors.Join(errs...))
	return took
}

// small makes a sealed object of one page.
func small(ctx context.Context, c *Client, name string) error {
	w, err := c.Create(ctx, name, CreateOptions{Size: 4096})
	if err != nil {
		return err
	}
	err = w.Append([]byte(name))
	if err == nil {
		err = w.Seal(ctx, shareable.SealOptions{})
	}
	return errors.Join(err, w.Close())
}

// readSmall looks at what small has written.
func readSmall(ctx context.Context, c *Client, name string) error {
	b, err := c.Get(ctx, name, GetOptions{})
	if err != nil {
		return err
	}
	got := make([]byte, b.Len())
	if _, err = b.ReadAt(got, 0); err == nil && string(got) != name {
		err = fmt.Errorf("%q in object %q", got, name)
	}
	return errors.Join(err, b.Close())
}

// TestScale compares a daemon that has many objects and clients with an empty one: what
// create, get and delete take, by as many calls at a time, in turns. It states what an
// object and a client cost the daemon. What it takes too long fails no test: it depends on
// what else the machine does.
func TestScale(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	// On the host memory costs two descriptors: the driver keeps one, to see when it is free.
	objects := int(min(limit.Cur, 20_000)) * 8 / 10 / 2 / testgate.Effort(100, 10, 1)
	clients, rounds, calls := testgate.Effort(20, 200, 2000), testgate.Effort(1, 2, 20), testgate.Effort(30, 200, 200)
	const atOnce = 4
	dev := smallPages(t)
	empty, full := startDaemon(t, smallDevice), startDaemon(t, smallDevice)
	few := empty.clients(dev, atOnce, atOnce)

	before := full.usage()
	crowd := full.clients(dev, clients, atOnce)
	connected := full.usage()
	crowd.each(objects, func(c *Client, i int) error { return small(t.Context(), c, fmt.Sprint("kept/", i)) })
	stored := full.usage()
	t.Logf("a daemon with nothing: %v; with %d clients: %v; with %d objects: %v", before, clients, connected, objects, stored)
	per := func(from, to usage, n int) string {
		return fmt.Sprintf("%.1f KiB, %.2f descriptors, %.2f goroutines",
			float64(int64(to.rss-from.rss))/1024/float64(n), float64(to.fds-from.fds)/float64(n), float64(to.goroutines-from.goroutines)/float64(n))
	}
	t.Logf("a client that is idle costs %s; a sealed object %s", per(before, connected, clients), per(connected, stored, objects))

	kinds := []struct {
		name string
		f    func(c *Client, i, round int) error
	}{
		{"create", func(c *Client, i, round int) error { return small(t.Context(), c, fmt.Sprint("new/", round, "/", i)) }},
		{"get", func(c *Client, i, round int) error {
			return readSmall(t.Context(), c, fmt.Sprint("new/", round, "/", i))
		}},
		{"delete", func(c *Client, i, round int) error {
			return c.Delete(t.Context(), fmt.Sprint("new/", round, "/", i), DeleteOptions{})
		}},
	}
	took := map[string]*[2][]float64{}
	for round := range rounds {
		for _, k := range kinds {
			if took[k.name] == nil {
				took[k.name] = &[2][]float64{}
			}
			for side, m := range []*many{few, crowd} {
				us := m.each(calls, func(c *Client, i int) error { return k.f(c, i, round) })
				took[k.name][side] = append(took[k.name][side], us...)
			}
		}
	}
	var table strings.Builder
	for _, k := range kinds {
		a, b := stats.Quantiles(took[k.name][0], 0.5, 0.99), stats.Quantiles(took[k.name][1], 0.5, 0.99)
		fmt.Fprintf(&table, "\n%-6s empty p50 %6.0f us, p99 %6.0f us; full p50 %6.0f us, p99 %6.0f us; p99 %.2f times (target: 3)",
			k.name, a[0], a[1], b[0], b[1], b[1]/a[1])
	}
	t.Log(table.String())
	crowd.each(clients, func(c *Client, _ int) error {
		return readSmall(t.Context(), c, fmt.Sprint("kept/", rand.IntN(objects)))
	})
	begun := time.Now()
	all, err := few.clients[0].List(t.Context(), ListOptions{})
	require.NoError(t, err)
	require.Empty(t, all)
	all, err = crowd.clients[0].List(t.Context(), ListOptions{Prefix: "kept/"})
	require.NoError(t, err)
	require.Len(t, all, objects)
	t.Logf("%d objects listed in %v", objects, time.Since(begun))

	// All of it goes again.
	crowd.each(objects, func(c *Client, i int) error { return c.Delete(t.Context(), fmt.Sprint("kept/", i), DeleteOptions{}) })
	for _, c := range crowd.clients {
		require.NoError(t, c.Close())
	}
	var after usage
	require.Eventually(t, func() bool {
		after = full.usage()
		return after.fds <= before.fds && after.goroutines <= before.goroutines && after.device == before.device
	}, inTime, 10*step)
	t.Logf("afterwards: %v", after)
}
