package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// kernelDevice is a hookedDevice that fills and checks by kernels.
func kernelDevice(t *testing.T, hook func(drivertest.Call) error) device {
	t.Helper()
	dev := hookedDevice(t, hook)
	dev.settings = kernelSettings()
	return dev
}

// ends frees a buffer at the end of the test.
func ends(t *testing.T, b *buffer, err error) *buffer {
	t.Helper()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.free()) })
	return b
}

// Whatever is wrong with memory, the device says of it what the host says.
func TestDeviceChecksAsTheHost(t *testing.T) {
	t.Parallel()
	const chunk, total = 4 * smallPage, 3*4*smallPage + 4099
	p := verify.Pattern{Seed: 7}
	write := func(b *buffer, off uint64, data []byte) error { return b.dev.raw.CopyIn(b.ptr+driver.Ptr(off), data) }
	damage := map[string]func(*testing.T, *buffer) error{
		"none":   func(*testing.T, *buffer) error { return nil },
		"poison": func(t *testing.T, b *buffer) error { return b.poison(t.Context()) },
		"stale":  func(t *testing.T, b *buffer) error { return b.fill(t.Context(), verify.Pattern{Seed: 6}) },
		"a chunk that was not written": func(_ *testing.T, b *buffer) error {
			return write(b, chunk, make([]byte, chunk))
		},
		"swapped chunks": func(_ *testing.T, b *buffer) error {
			return exchange(0, 2*chunk, chunk)(b.dev.raw, b.ptr, b.size)
		},
		"shifted by a byte": func(_ *testing.T, b *buffer) error {
			x := make([]byte, 100)
			p.Fill(x, 4096)
			return write(b, 4097, x)
		},
	}
	for _, off := range []int64{0, 1, 7, 8, 4095, 4096, chunk - 4097, chunk - 4096, chunk - 1, chunk, 3*chunk - 1, 3 * chunk, total - 4096, total - 3, total - 1} {
		damage["byte "+size.Format(uint64(off))] = func(_ *testing.T, b *buffer) error { return b.flip(off) }
	}
	dev := hookedDeviceOf(t, host.Config{Memory: 1 << 30, Granularity: smallPage}, nil)
	dev.settings = kernelSettings()
	for _, kind := range []string{memVMM, memPlain} {
		b, err := newBuffer(dev, kind, shape{size: total, chunk: chunk})
		ends(t, b, err)
		for what, harm := range damage {
			require.NoError(t, b.fill(t.Context(), p))
			require.NoError(t, harm(t, b))
			for _, mode := range []verify.Mode{verify.Full, verify.Edges, verify.Off} {
				want, err := p.Check(t.Context(), mode, b.size, b.chunks, b.view)
				require.NoError(t, err)
				got, err := b.check(t.Context(), p, mode, b.chunks)
				require.NoError(t, err)
				require.Equal(t, want.Bytes, got.ByDevice)
				got.ByDevice = 0
				require.Equal(t, want, got, "%s %s %s", kind, what, mode)
				require.Equal(t, what != "none" && mode == verify.Full, got.Errors > 0 && mode == verify.Full, what)
			}
		}
	}
}

// No byte is copied to the host that need not be, and the report says so.
func TestReportSaysWhoChecked(t *testing.T) {
	for _, args := range [][]string{
		{"bw", "--size", "256K", "--direction", "h2d,d2h,d2d"},
		{"grow", "--size", "256K", "--step", "64K", "--mem", "vmm,ahead,kept,whole,plain,double"},
		{"grow", "--size", "256K", "--step", "64K", "--mem", "vmm,kept,plain", "--write", "upload"},
		{"p2p", "--size", "4,64K", "--grants", "0"},
	} {
		code, out, stderr := benchWith(t, kernelSettings(), append(args, "--device", "host", "--samples", "1", "--progress", "off", "--format", "json")...)
		require.Equal(t, report.ExitPassed, code, stderr)
		for _, c := range parse(t, out).Cases {
			want := c.Bytes
			if c.Axes["direction"] == d2h { // the host has the data
				want = 0
			}
			require.Equal(t, want, c.Verify.ByDevice, c.ID)
			require.Equal(t, c.Bytes, c.Verify.Bytes, c.ID)
		}
	}
}

// A device without kernels is checked by the host.
func TestDeviceWithoutKernels(t *testing.T) {
	for _, call := range []string{"LoadModule", "Launch"} {
		dev := kernelDevice(t, func(c drivertest.Call) error {
			if c.Name == call {
				return vmm.ErrNotSupported
			}
			return nil
		})
		p := newBWPlan()
		p.directions.values, p.sizes, p.engines.values = []string{d2d}, size.List{1 << 20}, []string{engineCE, engineSM}
		s := newRunner()
		s.run(t.Context(), t, dev, p)
		require.Len(t, s.report.Cases, 4)
		for _, c := range s.report.Cases {
			if c.Axes.Of("engine") == engineSM {
				require.Equal(t, report.Waived, c.Status, c.Reason)
				continue
			}
			require.Equal(t, report.Passed, c.Status, c.Reason)
			require.Equal(t, c.Bytes, c.Verify.Bytes)
			require.Zero(t, c.Verify.ByDevice)
		}
	}
}

// Kernels that cannot be loaded, and such that fail, end a case with their error, and nothing
// stays behind.
func TestKernelsThatFail(t *testing.T) {
	broken := errors.New("broken")
	for _, call := range []string{"LoadModule", "Function", "NewStream", "Create", "Launch", "CopyIn", "CopyOut"} {
		var hook func(drivertest.Call) error
		dev := kernelDevice(t, func(c drivertest.Call) error {
			if hook == nil {
				return nil
			}
			return hook(c)
		})
		hook = drivertest.FailNth(call, 1, broken)
		_, err := dev.ownKernels()
		require.ErrorIs(t, err, broken, call)
		_, err = dev.ownKernels()
		require.ErrorIs(t, err, broken, "it is not tried again")
		b, err := newBuffer(dev, memPlain, shape{size: 4096})
		ends(t, b, err)
		require.ErrorIs(t, b.fill(t.Context(), verify.Pattern{}), broken)
		_, err = b.check(t.Context(), verify.Pattern{}, verify.Full, b.chunks)
		require.ErrorIs(t, err, broken)
	}
	for n := 5; n <= 8; n++ { // behind those that make sure that the kernels work
		dev := kernelDevice(t, drivertest.FailNth("Launch", n, broken))
		p := newBWPlan()
		p.directions.values, p.mems.values, p.sizes, p.engines.values = []string{d2d}, []string{memVMM}, size.List{1 << 20}, []string{engineSM}
		s := newRunner()
		s.run(t.Context(), t, dev, p)
		require.Equal(t, map[report.Status]int{report.Error: 1}, s.report.Count(), n)
		require.Contains(t, string(s.report.Cases[0].Reason), "broken")
	}
}

// lyingDriver has kernels that do something else.
type lyingDriver struct {
	driver.Driver
	lie func(map[string]driver.HostKernel)
}

func (l *lyingDriver) Open(n int) (driver.Device, error) {
	d, err := l.Driver.Open(n)
	if err != nil {
		return nil, err
	}
	return &lyingDevice{d, d.(driver.Launcher), d.(driver.Allocator), d.(driver.HostAllocator), l.lie}, nil
}

type lyingDevice struct {
	driver.Device
	driver.Launcher
	driver.Allocator
	driver.HostAllocator
	lie func(map[string]driver.HostKernel)
}

func (l lyingDevice) LoadModule(c driver.Code) (driver.Module, string, error) {
	l.lie(c.Host)
	return l.Launcher.LoadModule(c)
}

// idle has kernels do nothing.
func idle(names ...string) func(map[string]driver.HostKernel) {
	return func(all map[string]driver.HostKernel) {
		for _, name := range names {
			k := all[name]
			k.Run = func(*driver.Launch) error { return nil }
			all[name] = k
		}
	}
}

// otherSeed has two kernels agree on another pattern than the host's.
func otherSeed(all map[string]driver.HostKernel) {
	for _, name := range []string{"cuvmm_fill_pattern", "cuvmm_verify_pattern"} {
		k := all[name]
		was := k.Run
		k.Run = func(l *driver.Launch) error {
			l.Args[16] ^= 1 // behind the address and the size
			return was(l)
		}
		all[name] = k
	}
}

// Kernels that do nothing, or not what the host does, are not used: each case that needs
// them ends with an error.
func TestWrongKernelsAreNotUsed(t *testing.T) {
	for name, lie := range map[string]func(map[string]driver.HostKernel){
		"fills nothing":       idle("cuvmm_fill_pattern"),
		"finds nothing":       idle("cuvmm_verify_pattern"),
		"copies nothing":      idle("cuvmm_copy"),
		"does nothing":        idle("cuvmm_fill_pattern", "cuvmm_verify_pattern", "cuvmm_copy"),
		"has its own pattern": otherSeed,
	} {
		dev := openDriver(t, &lyingDriver{host.New(host.Config{Devices: 1, Memory: 1 << 30}), lie}, 0)
		dev.settings = kernelSettings()
		p := newBWPlan()
		p.directions.values, p.sizes = []string{d2d}, size.List{1 << 20}
		s := newRunner()
		s.run(t.Context(), t, dev, p)
		require.NoError(t, dev.Close())
		require.Equal(t, map[report.Status]int{report.Error: 2}, s.report.Count(), name)
		require.Contains(t, string(s.report.Cases[0].Reason), errWrongKernels.Error(), name)
	}
}

// A signal ends a check by the device at the next part.
func TestInterruptWhileTheDeviceChecks(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var launches atomic.Int64
	dev := kernelDevice(t, func(c drivertest.Call) error {
		if c.Name == "Launch" && launches.Add(1) == 8 {
			cancel()
		}
		return nil
	})
	b, err := newBuffer(dev, memVMM, shape{size: 64 << 20, chunk: 2 << 20})
	ends(t, b, err)
	require.NoError(t, b.fill(ctx, verify.Pattern{Seed: 1}))
	r, err := b.check(ctx, verify.Pattern{Seed: 1}, verify.Edges, b.chunks)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, int64(8), launches.Load())
	require.Zero(t, r.Errors)
	require.ErrorIs(t, b.fill(ctx, verify.Pattern{Seed: 1}), context.Canceled)
}

// The tour leaves out only what would take the host too long.
func TestTourChecksAllOnTheDevice(t *testing.T) {
	edges := func(dev device) (all, onlyEdges int) {
		groups, err := (&tour{sizes: size.List{2 << 30}, growths: 1}).groups([]device{dev}, 1)
		require.NoError(t, err)
		for _, g := range groups {
			if g.edges {
				onlyEdges++
			} else {
				all++
			}
		}
		return all, onlyEdges
	}
	all, onlyEdges := edges(hookedDevice(t, nil))
	require.Equal(t, 5, all, "copies")
	require.Equal(t, 1, onlyEdges, "growth")
	all, onlyEdges = edges(kernelDevice(t, nil))
	require.Equal(t, 6, all)
	require.Zero(t, onlyEdges)
}
