package vmm_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
)

// addPTX adds v to n words.
const addPTX = `
.version 7.0
.target sm_52
.address_size 64
.visible .entry add(.param .u64 p, .param .u64 n, .param .u32 v)
{
	.reg .pred %q;
	.reg .b32 %b, %t, %v, %x;
	.reg .b64 %i, %n, %p, %o;
	ld.param.u64 %p, [p];
	ld.param.u64 %n, [n];
	ld.param.u32 %v, [v];
	mov.u32 %b, %ctaid.x;
	mov.u32 %t, %ntid.x;
	mul.wide.u32 %i, %b, %t;
	mov.u32 %t, %tid.x;
	cvt.u64.u32 %o, %t;
	add.u64 %i, %i, %o;
	setp.ge.u64 %q, %i, %n;
	@%q bra DONE;
	shl.b64 %o, %i, 2;
	add.u64 %p, %p, %o;
	ld.u32 %x, [%p];
	add.u32 %x, %x, %v;
	st.u32 [%p], %x;
DONE:
	ret;
}
`

var addParams = []vmm.Param{{Offset: 0, Size: 8}, {Offset: 8, Size: 8}, {Offset: 16, Size: 4}}

func addCode() vmm.Code {
	return vmm.Code{
		Image: []byte(addPTX),
		Host: map[string]vmm.HostKernel{
			"add": {Params: addParams, Run: func(l *vmm.Launch) error {
				words := hostWords(binary.NativeEndian.Uint64(l.Args), binary.NativeEndian.Uint64(l.Args[8:]))
				for i := range words {
					words[i] += binary.NativeEndian.Uint32(l.Args[16:])
				}
				return nil
			}},
			"panic":  {Params: addParams, Run: func(*vmm.Launch) error { panic("the kernel's own") }},
			"riddle": {Params: addParams, Run: func(*vmm.Launch) error { panic(riddle{}) }},
			"refuse": {Params: addParams, Run: func(*vmm.Launch) error { return errors.New("the kernel's own") }},
		},
	}
}

// riddle panics when it is asked what it is.
type riddle struct{}

func (riddle) Addr() uintptr { panic("no") }

// addLaunch is a launch of add over a page.
func addLaunch(p vmm.Ptr, v uint32) *vmm.Launch {
	args := binary.NativeEndian.AppendUint64(nil, uint64(p))
	args = binary.NativeEndian.AppendUint64(args, page/4)
	args = binary.NativeEndian.AppendUint32(args, v)
	return &vmm.Launch{Grid: vmm.Dim{X: page / 4 / 256}, Block: vmm.Dim{X: 256}, Args: args}
}

// argOf is the range as an argument of a kernel.
func argOf(g *vmm.Range) (m vmm.MemoryArg) {
	g.MemoryArg(&m)
	return m
}

// uses is memory for a launch.
func uses(args ...vmm.MemoryArg) (all []vmm.LaunchMemory) {
	for _, m := range args {
		all = append(all, vmm.LaunchMemory{MemoryArg: m})
	}
	return all
}

// adder is the kernel add on a device.
func adder(t *testing.T, d *vmm.Device) (*vmm.Module, *vmm.Function) {
	t.Helper()
	m, _, err := d.LoadModule(addCode())
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.Close() })
	f, err := m.Function("add")
	require.NoError(t, err)
	return m, f
}

// wordAt is the first word of the range.
func wordAt(t *testing.T, g *vmm.Range) uint32 {
	t.Helper()
	var b [4]byte
	_, err := g.ReadAt(b[:], 0)
	require.NoError(t, err)
	return binary.NativeEndian.Uint32(b[:])
}

// zeroed is a range of a page of zeros.
func zeroed(t *testing.T, d *vmm.Device) *vmm.Range {
	t.Helper()
	g := newRange(t, d, vmm.RangeOptions{Max: 64 * page})
	require.NoError(t, g.Append(make([]byte, page)))
	return g
}

func TestLaunch(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s := zeroed(t, d), stream(t, d)
	m, f := adder(t, d)
	require.Equal(t, "add", f.Name())
	require.Same(t, m, f.Module())
	require.Same(t, d, m.Device())
	if params, err := f.Params(); !errors.Is(err, vmm.ErrNotSupported) {
		require.NoError(t, err)
		require.Equal(t, addParams, params)
	}
	info, err := f.Info()
	require.NoError(t, err)
	require.GreaterOrEqual(t, info.MaxThreads, uint32(256))
	blocks, err := f.Occupancy(256, 0)
	require.NoError(t, err)
	require.Positive(t, blocks)
	threads, grid, err := f.SuggestBlock(0)
	require.NoError(t, err)
	require.Positive(t, threads)
	require.Positive(t, grid)
	require.NoError(t, f.SetMaxDynamicShared(64<<10))
	require.ErrorIs(t, f.SetMaxDynamicShared(1<<30), vmm.ErrInvalid)

	l := addLaunch(g.Ptr(), 7)
	require.NoError(t, f.Launch(s, l, uses(argOf(g))))
	require.NoError(t, f.Launch(s, l, uses(argOf(g))))
	require.NoError(t, s.Sync())
	require.Equal(t, uint32(14), wordAt(t, g))

	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	require.ErrorIs(t, f.Launch(s, l, uses(argOf(g))), vmm.ErrClosed)
	_, err = f.Info()
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = m.Function("add")
	require.ErrorIs(t, err, vmm.ErrClosed)
	require.NoError(t, s.Close())
	require.NoError(t, g.Close())
	w.end()
}

// TestLaunchRefuses what a kernel must not run on, and nothing is queued or left locked.
func TestLaunchRefuses(t *testing.T) {
	w := newWorld(t, 2)
	d, peer := w.devs[0], w.devs[1]
	g, named, asleep, granted := zeroed(t, d), zeroed(t, d), zeroed(t, d), zeroed(t, d)
	s, other, theirs := stream(t, d), stream(t, d), stream(t, peer)
	require.NoError(t, named.UsedBy(other))
	require.NoError(t, vmm.Sleep(vmm.SleepDrop, asleep))
	require.NoError(t, granted.Grant(vmm.AccessRead, peer))
	gone := zeroed(t, d)
	closed := argOf(gone)
	require.NoError(t, gone.Close())
	_, f := adder(t, d)
	_, far := adder(t, peer)
	_, err := f.Module().Function("none")
	require.ErrorIs(t, err, vmm.ErrInvalid)

	beyond := argOf(g)
	beyond.Size = g.Cap() + 1
	big, wide := addLaunch(g.Ptr(), 1), addLaunch(g.Ptr(), 1)
	big.Block.X = 4096
	wide.Shared = 1 << 30
	for _, c := range []struct {
		name   string
		f      *vmm.Function
		on     *vmm.Stream
		l      *vmm.Launch
		memory vmm.MemoryArg
		want   error
	}{
		{"fine", f, s, addLaunch(g.Ptr(), 1), argOf(g), nil},
		{"a named stream", f, other, addLaunch(named.Ptr(), 1), argOf(named), nil},
		{"a pointer", f, s, addLaunch(g.Ptr(), 1), vmm.MemoryArg{Span: vmm.Span{Addr: g.Ptr()}}, nil},
		{"a stream that was not named", f, s, addLaunch(named.Ptr(), 1), argOf(named), vmm.ErrInvalid},
		{"beyond what is mapped", f, s, addLaunch(g.Ptr(), 1), beyond, vmm.ErrBounds},
		{"a pointer to nothing", f, s, addLaunch(g.Ptr(), 1), vmm.MemoryArg{Span: vmm.Span{Addr: g.Ptr() + 60*page}}, vmm.ErrBounds},
		{"no memory", f, s, addLaunch(g.Ptr(), 1), vmm.MemoryArg{}, vmm.ErrInvalid},
		{"asleep", f, s, addLaunch(asleep.Ptr(), 1), argOf(asleep), vmm.ErrAsleep},
		{"closed", f, s, addLaunch(g.Ptr(), 1), closed, vmm.ErrClosed},
		{"without access", far, theirs, addLaunch(g.Ptr(), 1), argOf(g), vmm.ErrPermission},
		{"with less access", far, theirs, addLaunch(granted.Ptr(), 1), argOf(granted), vmm.ErrPermission},
		{"another device's stream", f, theirs, addLaunch(g.Ptr(), 1), argOf(g), vmm.ErrInvalid},
		{"no stream", f, nil, addLaunch(g.Ptr(), 1), argOf(g), vmm.ErrInvalid},
		{"no function", nil, s, addLaunch(g.Ptr(), 1), argOf(g), vmm.ErrInvalid},
		{"too many threads", f, s, big, argOf(g), vmm.ErrInvalid},
		{"too much shared memory", f, s, wide, argOf(g), vmm.ErrInvalid},
	} {
		err := c.f.Launch(c.on, c.l, uses(argOf(g), c.memory))
		require.ErrorIs(t, err, c.want, c.name)
		if c.want != nil {
			var op *vmm.OpError
			require.ErrorAs(t, err, &op, c.name)
		}
	}
	require.NoError(t, d.Sync())
	require.Equal(t, uint32(2), wordAt(t, g), "one launch and the pointer's")
	for _, x := range []interface{ Close() error }{g, named, asleep, granted, s, other, theirs, f.Module(), far.Module()} {
		require.NoError(t, x.Close(), "nothing is left locked")
	}
	w.end()
}

// TestLaunchUnnamedStream: UsedBy promises that no other stream works on the memory, and
// the wait before an unmap relies on it. Without the check the device is lost.
func TestLaunchUnnamedStream(t *testing.T) {
	if onCUDA && !testgate.InChild(t) { // a GPU does not come back
		return
	}
	for _, checked := range []bool{true, false} {
		w := newWorld(t, 1)
		d := w.devs[0]
		vmm.SetNoNameCheck(d, !checked)
		g, s, named := zeroed(t, d), stream(t, d), stream(t, d)
		require.NoError(t, g.Grow(4*page))
		require.NoError(t, g.SetLen(4*page))
		require.NoError(t, g.UsedBy(named))
		_, f := adder(t, d)
		open := gate(t, d, s.Raw())
		t.Cleanup(open)
		err := f.Launch(s, addLaunch(g.Ptr()+3*page, 1), uses(argOf(g)))
		if checked {
			require.ErrorIs(t, err, vmm.ErrInvalid)
			open()
			continue
		}
		require.NoError(t, err)
		require.NoError(t, g.SetLen(page))
		require.NoError(t, clipped(g)())
		open()
		err = d.Sync()
		require.ErrorIs(t, err, vmm.ErrDeviceLost)
		t.Log(err)
	}
}

// TestLaunchHoldsMemory: a Clip that begins between the check and the queueing waits, and
// then for the kernel.
func TestLaunchHoldsMemory(t *testing.T) {
	if onCUDA {
		t.Skip("the driver's calls are watched")
	}
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s := zeroed(t, d), stream(t, d)
	require.NoError(t, g.Grow(4*page))
	_, f := adder(t, d)
	clip := make(chan error, 1)
	arg := argOf(g)
	arg.Size = g.Cap()
	w.before = func(c drivertest.Call) error {
		if c.Name != "Launch" {
			return nil
		}
		go func() { clip <- g.Clip() }()
		require.Eventually(t, func() bool { return g.Cap() == page }, time.Minute, time.Millisecond, "the clip has begun")
		require.Empty(t, clip, "and waits")
		return nil
	}
	require.NoError(t, f.Launch(s, addLaunch(g.Ptr()+vmm.Ptr(g.Cap()-page), 1), uses(arg)))
	require.NoError(t, <-clip)
	w.before = nil
	require.NoError(t, d.Sync())
	for _, x := range []interface{ Close() error }{g, s, f.Module()} {
		require.NoError(t, x.Close())
	}
	w.end()
}

// TestKernelFaults: a kernel that fails costs the device, and the error says why.
func TestKernelFaults(t *testing.T) {
	names := []string{"panic", "refuse", "riddle", "add"}
	want := map[string]string{
		"panic": "the kernel's own", "refuse": "the kernel's own", "riddle": "another one when asked why",
		"add": "invalid memory access",
	}
	if onCUDA {
		names, want = []string{"add"}, map[string]string{"add": "ILLEGAL_ADDRESS"}
	}
	w := newWorld(t, 1)
	other := zeroed(t, w.devs[0])
	parent := onCUDA && !testgate.InChild(t) // a GPU does not come back
	require.Zero(t, wordAt(t, other), "other processes are unaffected")
	require.NoError(t, other.Close())
	w.end()
	if parent {
		return
	}
	for _, name := range names {
		w := newWorld(t, 1)
		d := w.devs[0]
		s := stream(t, d)
		m, _ := adder(t, d)
		f, err := m.Function(name)
		require.NoError(t, err)
		require.NoError(t, f.Launch(s, addLaunch(1<<46, 1), nil))
		err = s.Sync()
		require.ErrorIs(t, err, vmm.ErrDeviceLost)
		require.ErrorContains(t, err, want[name])
		require.ErrorIs(t, s.Close(), vmm.ErrDeviceLost)
		require.ErrorIs(t, m.Close(), vmm.ErrDeviceLost)
		require.NoError(t, d.Close(), "what is lost can be closed")
	}
}

// TestModuleFaults fails each driver call that loading, launching and closing make.
func TestModuleFaults(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	g, s := zeroed(t, d), stream(t, d)
	for n := 1; ; n++ {
		w.arm(n)
		m, _, err := d.LoadModule(addCode())
		var f *vmm.Function
		if err == nil {
			f, err = m.Function("add")
		}
		if err == nil {
			err = f.Launch(s, addLaunch(g.Ptr(), 1), uses(argOf(g)))
		}
		if err == nil {
			err = m.Close()
		}
		calls := w.disarm()
		require.NoError(t, m.Close())
		if len(calls) < n {
			require.NoError(t, err)
			break
		}
		require.ErrorIs(t, err, errInjected, "call %d, %s", n, calls[n-1])
	}
	require.NoError(t, g.Close())
	require.NoError(t, s.Close())
	w.end()
}

func TestModuleOfAnother(t *testing.T) {
	w := newWorld(t, 1)
	_, _, err := w.devs[0].LoadModule(vmm.Code{})
	require.Error(t, err)
	_, _, err = (*vmm.Device)(nil).LoadModule(addCode())
	require.ErrorIs(t, err, vmm.ErrInvalid)
	require.NoError(t, (*vmm.Module)(nil).Close())
	_, err = (*vmm.Module)(nil).Function("add")
	require.ErrorIs(t, err, vmm.ErrInvalid)
	m, f := adder(t, w.devs[0])
	require.ErrorIs(t, w.devs[0].Close(), vmm.ErrBusy)
	s := stream(t, w.devs[0])
	capturer := raw(t, w.devs[0]).(driver.Grapher)
	require.NoError(t, capturer.BeginCapture(s.Raw(), driver.CaptureRelaxed))
	require.ErrorIs(t, m.Close(), vmm.ErrCapturing)
	require.NoError(t, endCapture(capturer, s.Raw()))
	g := zeroed(t, w.devs[0])
	require.NoError(t, f.Launch(s, addLaunch(g.Ptr(), 1), uses(argOf(g))), "it was not closed")
	for _, x := range []interface{ Close() error }{m, s, g} {
		require.NoError(t, x.Close())
	}
	w.end()
}

func TestStreamPriorities(t *testing.T) {
	w := newWorld(t, 1)
	d := w.devs[0]
	least, greatest, err := d.StreamPriorities()
	require.NoError(t, err)
	require.LessOrEqual(t, greatest, least)
	for _, p := range []int{least, greatest, -1000, 1000} {
		s, err := d.NewStreamPriority(p)
		require.NoError(t, err)
		require.NoError(t, s.Sync())
		require.NoError(t, s.Close())
	}
	w.arm(1)
	_, err = d.NewStreamPriority(0)
	require.ErrorIs(t, err, errInjected)
	w.disarm()
	w.end()
}
