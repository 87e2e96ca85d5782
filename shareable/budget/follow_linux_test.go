package budget_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// cards is a host driver whose devices have places on the PCI bus.
type cards struct {
	*host.Driver
	mig string
}

func (c cards) Devices() ([]driver.Info, error) {
	all, err := c.Driver.Devices()
	for i := range all {
		all[i].PCI, all[i].MIG = fmt.Sprintf("0000:%x0:00.0", 10+i), c.mig
		all[i].UUID = [16]byte{0x10 + byte(i), 15: 0xff}
	}
	return all, err
}

func openCard(t *testing.T, ordinal int) *vmm.Device {
	t.Helper()
	d, err := vmm.OpenDriver(cards{host.New(host.Config{Devices: 2, Granularity: unit, Memory: 256 * unit}), ""}, ordinal)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// files are those of a kernel.
type files struct {
	t    *testing.T
	root string
}

// newFiles are those of one whose process is in the group /pod/job.
func newFiles(t *testing.T) files {
	s := files{t, t.TempDir()}
	s.write("proc/self/cgroup", "0::/pod/job\n")
	return s
}

func (s files) write(name, text string) {
	s.t.Helper()
	name = filepath.Join(s.root, name)
	require.NoError(s.t, os.MkdirAll(filepath.Dir(name), 0o700))
	require.NoError(s.t, os.WriteFile(name, []byte(text), 0o600))
}

// card writes lines of the first card to a file of the group, beside those of others.
func (s files) card(group, name string, units int) {
	s.t.Helper()
	s.write("sys/fs/cgroup/"+group+"/"+name, fmt.Sprintf("drm/0000:01:00.0/vram0 1\nnvidia/0000:a0:00.0/bar1 3\nnvidia/0000:b0:00.0/vidmem 2\nnvidia/00000000:A0:00.0/vidmem %d\n", units*unit))
}

// limit limits the group of the process.
func (s files) limit(max, current int) {
	s.t.Helper()
	s.card("pod/job", "dmem.max", max)
	s.card("pod/job", "dmem.current", current)
}

func (s files) follow(d *vmm.Device) (stop func()) {
	s.t.Helper()
	stop, err := budget.Follow(d, budget.WithRoot(budget.FollowOptions{}, s.root))
	require.NoError(s.t, err)
	s.t.Cleanup(stop)
	synctest.Wait()
	return stop
}

// read waits until the limits have been read again.
func read() {
	time.Sleep(2 * time.Second) //nolint:forbidigo // the clock of the bubble
	synctest.Wait()
}

// shrinking gives what it is asked for, of a range, and notes how much that was.
func shrinking(t *testing.T, d *vmm.Device, g *vmm.Range) (sizes *[]int) {
	t.Helper()
	sizes = new([]int)
	t.Cleanup(d.OnPressure(func(need error) bool {
		var e *vmm.OpError
		require.ErrorAs(t, need, &e)
		if e.Op != "give" {
			return false
		}
		*sizes = append(*sizes, int(e.Size/unit))
		have := g.Cap()
		require.NoError(t, g.SetLen(have-min(have, e.Size)))
		require.NoError(t, g.Clip())
		return g.Cap() < have
	}))
	return sizes
}

// grow makes room for so many units in all.
func grow(g *vmm.Range, units int) error { return g.Grow(uint64(units*unit) - g.Len()) }

// TestFollow: a process does not pass the maximum of its control group, and without Follow it does.
func TestFollow(t *testing.T) {
	for _, followed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s, d := newFiles(t), openCard(t, 0)
			s.limit(64, 8)
			g := vector(t, d)
			if !followed {
				require.NoError(t, grow(g, 65))
				return
			}
			stop := s.follow(d)
			err := grow(g, 57)
			require.ErrorIs(t, err, vmm.ErrOutOfMemory)
			require.ErrorContains(t, err, filepath.Join(s.root, "sys/fs/cgroup/pod/job/dmem.max"))
			require.NoError(t, grow(g, 56))
			stop()
			stop()
			require.NoError(t, grow(g, 65), "nothing is followed any more")
		})
	}
}

// TestFollowFallsAndRises: functions are asked for what is above a limit that has fallen, and growth goes on when it
// rises.
func TestFollowFallsAndRises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newFiles(t), openCard(t, 0)
		s.limit(64, 0)
		s.follow(d)
		g := vector(t, d)
		sizes := shrinking(t, d, g)
		require.NoError(t, grow(g, 60))
		s.limit(64, 60)
		read()
		require.Empty(t, *sizes, "a sixteenth is left")
		require.NoError(t, grow(g, 61))
		s.limit(64, 61)
		read()
		require.Equal(t, []int{1}, *sizes, "less is left")
		s.limit(32, 60)
		read()
		require.Equal(t, []int{1, 30}, *sizes)
		require.Equal(t, uint64(30*unit), g.Cap())
		require.ErrorIs(t, grow(g, 33), vmm.ErrOutOfMemory)
		s.limit(64, 30)
		read()
		require.NoError(t, grow(g, 60))
		require.Len(t, *sizes, 2)
	})
}

// TestFollowGroups: the tightest group counts, with what others in it use.
func TestFollowGroups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newFiles(t), openCard(t, 0)
		s.card("", "dmem.capacity", 256)
		s.limit(64, 0)
		s.card("pod", "dmem.max", 80)
		s.card("pod", "dmem.current", 40)
		s.follow(d)
		g := vector(t, d)
		sizes := shrinking(t, d, g)
		require.ErrorContains(t, grow(g, 41), "/pod/dmem.max")
		require.NoError(t, grow(g, 32))
		s.card("pod/job", "dmem.current", 32)
		s.card("pod", "dmem.current", 80) // a neighbour has grown by 8
		read()
		require.Equal(t, []int{2}, *sizes)
		all, err := budget.LimitsIn(d, s.root)
		require.NoError(t, err)
		cgroup := filepath.Join(s.root, "sys/fs/cgroup")
		require.Len(t, all, 3)
		for i, want := range []budget.Limit{
			{Source: cgroup + "/pod/job/dmem.max", Bytes: 64 * unit, Others: 2 * unit},
			{Source: cgroup + "/pod/dmem.max", Bytes: 80 * unit, Others: 50 * unit},
			{Source: cgroup + "/dmem.capacity", Bytes: 256 * unit},
		} {
			l := all[i]
			require.Equal(t, want, budget.Limit{Source: l.Source, Bytes: l.Bytes, Others: l.Others, Soft: l.Soft})
		}
		s.write("proc/self/cgroup", "0::/elsewhere\n")
		read()
		require.NoError(t, grow(g, 256), "the process has left the groups")
		read()
		require.Len(t, *sizes, 1, "a process may have all that there is")
	})
}

// TestFollowSoft: memory beyond dmem.min is kept until the device is nearly full.
func TestFollowSoft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newFiles(t), openCard(t, 0)
		s.card("pod/job", "dmem.min", 32)
		s.card("pod/job", "dmem.current", 0)
		s.follow(d)
		g := vector(t, d)
		sizes := shrinking(t, d, g)
		require.NoError(t, grow(g, 240))
		s.card("pod/job", "dmem.current", 240)
		read()
		require.Empty(t, *sizes, "a sixteenth is free")
		require.NoError(t, grow(g, 250))
		s.card("pod/job", "dmem.current", 250)
		read()
		require.Equal(t, []int{10}, *sizes)
		s.card("pod/job", "dmem.min", 255)
		s.card("pod/job", "dmem.current", 250)
		require.NoError(t, grow(g, 250))
		read()
		require.Len(t, *sizes, 1, "what is below it is not taken")
		s.card("pod/job", "dmem.min", 0)
		read()
		require.Len(t, *sizes, 1, "nothing is promised, as where nothing is set")
	})
}

// TestFollowUnreadable: while files are gone or have garbage the bound stays, a lower one of others counts, and there
// is one warning.
func TestFollowUnreadable(t *testing.T) {
	file := "pod/job/dmem.max"
	for _, c := range []struct {
		name string
		harm func(s files)
	}{
		{"gone", func(s files) { require.NoError(s.t, os.Remove(filepath.Join(s.root, "sys/fs/cgroup", file))) }},
		{"empty", func(s files) { s.write("sys/fs/cgroup/"+file, "") }},
		{"garbage", func(s files) { s.write("sys/fs/cgroup/"+file, "nvidia/0000:a0:00.0/vidmem 12x\n") }},
		{"negative", func(s files) { s.write("sys/fs/cgroup/"+file, "nvidia/0000:a0:00.0/vidmem -1\n") }},
		{"binary", func(s files) { s.write("sys/fs/cgroup/"+file, "\x00\xff// /\n\n nvidia/0000:a0:00.0/vidmem") }},
		{"a folder", func(s files) {
			require.NoError(s.t, os.Remove(filepath.Join(s.root, "sys/fs/cgroup", file)))
			require.NoError(s.t, os.Mkdir(filepath.Join(s.root, "sys/fs/cgroup", file), 0o700))
		}},
		{"no use", func(s files) {
			require.NoError(s.t, os.Remove(filepath.Join(s.root, "sys/fs/cgroup/pod/job/dmem.current")))
		}},
		{"no groups", func(s files) { require.NoError(s.t, os.Remove(filepath.Join(s.root, "proc/self/cgroup"))) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, d := newFiles(t), openCard(t, 0)
				var log bytes.Buffer
				s.limit(64, 8)
				s.card("pod", "dmem.max", 128)
				s.card("pod", "dmem.current", 8)
				stop, err := budget.Follow(d, budget.WithRoot(budget.FollowOptions{Logger: slog.New(slog.NewTextHandler(&log, nil))}, s.root))
				require.NoError(t, err)
				defer stop()
				c.harm(s)
				read()
				read()
				g := vector(t, d)
				require.ErrorIs(t, grow(g, 57), vmm.ErrOutOfMemory)
				require.NoError(t, grow(g, 16))
				require.Equal(t, 1, strings.Count(log.String(), "level=WARN"), log.String())
				if c.name != "no groups" {
					s.card("pod", "dmem.max", 32)
					s.card("pod", "dmem.current", 24)
					read()
					require.ErrorContains(t, grow(g, 25), "/pod/dmem.max", "a lower one counts")
				}
				s.write("proc/self/cgroup", "0::/pod/job\n")
				require.NoError(t, os.RemoveAll(filepath.Join(s.root, "sys/fs/cgroup", file)))
				s.limit(200, 16)
				s.card("pod", "dmem.max", 200)
				read()
				require.NoError(t, grow(g, 100), "all can be read again")
			})
		})
	}
}

// TestFollowLater: limits that are not there at first are followed when they are.
func TestFollowLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newFiles(t), openCard(t, 0)
		require.NoError(t, os.RemoveAll(filepath.Join(s.root, "proc")))
		all, err := budget.LimitsIn(d, s.root)
		require.NoError(t, err)
		require.Empty(t, all)
		s.follow(d)
		g := vector(t, d)
		require.NoError(t, grow(g, 100))
		s.write("proc/self/cgroup", "0::/pod/job\n")
		s.write("sys/fs/cgroup/pod/job/dmem.max", "nvidia/0000:a0:00.0/vidmem max\n")
		read()
		require.NoError(t, grow(g, 110))
		s.limit(112, 110)
		read()
		require.ErrorIs(t, grow(g, 113), vmm.ErrOutOfMemory)
	})
}

// TestLimitsUnreadable: what cannot be read at first is an error, beside the limits that can be.
func TestLimitsUnreadable(t *testing.T) {
	s, d := newFiles(t), openCard(t, 0)
	s.limit(64, 0)
	s.card("pod", "dmem.current", 0)
	s.write("sys/fs/cgroup/pod/dmem.max", "nvidia/0000:a0:00.0/vidmem garbage\n")
	all, err := budget.LimitsIn(d, s.root)
	require.ErrorContains(t, err, "/pod/dmem.max")
	require.ErrorContains(t, err, "garbage")
	require.Len(t, all, 1)
	require.EqualValues(t, 64*unit, all[0].Bytes)
}

// TestFollowTwoDevices: each has its own line.
func TestFollowTwoDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFiles(t)
		drv := cards{host.New(host.Config{Devices: 2, Granularity: unit}), ""}
		write := func(name string, a, b int) {
			s.write("sys/fs/cgroup/pod/job/"+name, fmt.Sprintf("nvidia/0000:a0:00.0/vidmem %d\nnvidia/0000:b0:00.0/vidmem %d\n", a*unit, b*unit))
		}
		write("dmem.max", 64, 48)
		write("dmem.current", 0, 16)
		var all []*vmm.Range
		var sizes []*[]int
		for i := range 2 {
			d, err := vmm.OpenDriver(drv, i)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			all = append(all, vector(t, d))
			sizes = append(sizes, shrinking(t, d, all[i]))
			s.follow(d)
		}
		require.ErrorIs(t, grow(all[0], 65), vmm.ErrOutOfMemory)
		require.ErrorIs(t, grow(all[1], 33), vmm.ErrOutOfMemory)
		require.NoError(t, grow(all[0], 60))
		require.NoError(t, grow(all[1], 30))
		write("dmem.max", 64, 32)
		write("dmem.current", 60, 46)
		read()
		require.Empty(t, *sizes[0])
		require.Equal(t, []int{15}, *sizes[1], "of 32, others use 16, and one stays unused")
	})
}

// TestFollowHost: a device of host memory is bounded by memory.max, and by nothing that is for cards.
func TestFollowHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		t.Setenv("CUDA_DEVICE_MEMORY_LIMIT", "1k")
		s, d := newFiles(t), process(t)
		s.limit(1, 0)
		s.write("sys/fs/cgroup/pod/job/memory.max", "max\n")
		s.write("sys/fs/cgroup/pod/job/memory.current", "0\n")
		s.write("sys/fs/cgroup/pod/memory.max", fmt.Sprintln(64*unit))
		s.write("sys/fs/cgroup/pod/memory.current", fmt.Sprintln(48*unit))
		s.write("sys/fs/cgroup/pod/memory.stat", fmt.Sprintln("inactive_file", 16*unit))
		s.follow(d)
		g := vector(t, d)
		require.ErrorContains(t, grow(g, 33), "/pod/memory.max")
		require.NoError(t, grow(g, 30))
		s.write("sys/fs/cgroup/pod/memory.current", fmt.Sprintln(78*unit))
		s.write("sys/fs/cgroup/pod/memory.max", fmt.Sprintln(48*unit))
		sizes := shrinking(t, d, g)
		read()
		require.Equal(t, []int{15}, *sizes)
	})
}

// TestFollowVariables: the variables of MPS and HAMi are limits of the device that they name.
func TestFollowVariables(t *testing.T) {
	const mps, hami = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT"
	for _, c := range []struct {
		mps, hami, hami1 string
		want             []budget.Limit // of device 1
		bad              bool
	}{
		{},
		{mps: "0=2G,1=10G", want: []budget.Limit{{Source: mps, Bytes: 10 << 30}}},
		{mps: "0=2G, 1=512m", want: []budget.Limit{{Source: mps, Bytes: 512 << 20}}},
		{mps: "0=2G"},
		{mps: "GPU-11000000-0000-0000-0000-0000000000ff=1G", want: []budget.Limit{{Source: mps, Bytes: 1 << 30}}},
		{mps: "1=10%", bad: true},
		{mps: "1=-1G", bad: true},
		{mps: "1=99999999999G", bad: true},
		{mps: "1"},
		{mps: ",=,1=,=1"},
		{hami: "4096m", want: []budget.Limit{{Source: hami, Bytes: 4 << 30}}},
		{hami: "4096m", hami1: "1g", want: []budget.Limit{{Source: hami + "_1", Bytes: 1 << 30}}},
		{hami: "4096m", hami1: "0", want: []budget.Limit{{Source: hami, Bytes: 4 << 30}}},
		{hami1: "0x1000", want: []budget.Limit{{Source: hami + "_1", Bytes: 4096}}},
		{hami: "0"},
		{hami1: "many", hami: "1K", want: []budget.Limit{{Source: hami, Bytes: 1024}}, bad: true},
		{mps: "1=2G", hami1: "1G", want: []budget.Limit{{Source: mps, Bytes: 2 << 30}, {Source: hami + "_1", Bytes: 1 << 30}}},
	} {
		t.Run(c.mps+" "+c.hami+" "+c.hami1, func(t *testing.T) {
			t.Setenv(mps, c.mps)
			t.Setenv(hami, c.hami)
			t.Setenv(hami+"_1", c.hami1)
			got, err := budget.LimitsIn(openCard(t, 1), t.TempDir())
			require.Equal(t, c.want, got)
			if c.bad {
				require.ErrorIs(t, err, vmm.ErrInvalid)
			} else {
				require.NoError(t, err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		t.Setenv(mps, fmt.Sprintf("0=%dK", 16*unit>>10))
		d := openCard(t, 0)
		newFiles(t).follow(d)
		g := vector(t, d)
		require.ErrorContains(t, grow(g, 17), mps)
		require.NoError(t, grow(g, 16))
	})
}

// TestFollowInstance: the controller has the whole card's memory, which is not an instance's.
func TestFollowInstance(t *testing.T) {
	t.Setenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "MIG-1=1G")
	s := newFiles(t)
	s.limit(1, 0)
	d, err := vmm.OpenDriver(cards{host.New(host.Config{}), "MIG-1"}, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.Close()) }()
	all, err := budget.LimitsIn(d, s.root)
	require.NoError(t, err)
	require.Equal(t, []budget.Limit{{Source: "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", Bytes: 1 << 30}}, all)
}

// TestFollowOnce: a device is followed once at a time, and stays open meanwhile.
func TestFollowOnce(t *testing.T) {
	_, err := budget.Follow(nil, budget.FollowOptions{})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	_, err = budget.Follow(new(vmm.Device), budget.FollowOptions{})
	require.Error(t, err)
	_, err = budget.Limits(new(vmm.Device))
	require.NoError(t, err)
	_, err = budget.Limits(nil)
	require.ErrorIs(t, err, vmm.ErrInvalid)
	d, err := vmm.OpenDriver(host.New(host.Config{}), 0)
	require.NoError(t, err)
	_, err = budget.Limits(d)
	require.NoError(t, err)
	stop, err := budget.Follow(d, budget.FollowOptions{})
	require.NoError(t, err)
	_, err = budget.Follow(d, budget.FollowOptions{})
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorIs(t, d.Close(), vmm.ErrBusy)
	stop()
	stop, err = budget.Follow(d, budget.FollowOptions{})
	require.NoError(t, err)
	stop()
	require.NoError(t, d.Close())
	_, err = budget.Follow(d, budget.FollowOptions{})
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// TestFollowStops: no function is called after stop, which waits for one.
func TestFollowStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newFiles(t), openCard(t, 0)
		g := vector(t, d)
		require.NoError(t, grow(g, 64))
		s.limit(32, 64)
		var calls, running atomic.Int32
		defer d.OnPressure(func(error) bool {
			calls.Add(1)
			running.Store(1)
			time.Sleep(time.Second) //nolint:forbidigo // as above
			running.Store(0)
			return false
		})()
		stop, err := budget.Follow(d, budget.WithRoot(budget.FollowOptions{}, s.root))
		require.NoError(t, err)
		synctest.Wait()
		require.EqualValues(t, 1, running.Load())
		stop()
		require.Zero(t, running.Load())
		require.EqualValues(t, 1, calls.Load())
		time.Sleep(time.Minute) //nolint:forbidigo // as above
		require.EqualValues(t, 1, calls.Load())
	})
}

// TestFollowBesideJoin: a member that has given to a limit keeps its lease, and grows again when the limit rises.
func TestFollowBesideJoin(t *testing.T) {
	path := serve(t, 128*unit)
	d, m := join(t, path, "a", 0)
	b, mb := join(t, path, "b", 0)
	s := newFiles(t)
	limit := func(max int) {
		s.write("sys/fs/cgroup/pod/job/memory.max", fmt.Sprintln(max*unit))
		s.write("sys/fs/cgroup/pod/job/memory.current", "0\n")
	}
	limit(100)
	g := vector(t, d)
	require.NoError(t, grow(g, 80))
	shrinking(t, d, g)
	stop, err := budget.Follow(d, budget.WithRoot(budget.FollowOptions{Every: time.Millisecond}, s.root))
	require.NoError(t, err)
	defer stop()
	limit(32)
	soon := func(f func() bool) { t.Helper(); require.Eventually(t, f, 10*time.Second, time.Millisecond) }
	soon(func() bool { return m.Stats().Created == 30*unit })
	require.ErrorIs(t, grow(g, 33), vmm.ErrOutOfMemory)
	limit(math.MaxInt32)
	soon(func() bool { return grow(g, 100) == nil })
	require.GreaterOrEqual(t, m.Stats().Lease, uint64(100*unit))
	limit(16)
	soon(func() bool { return m.Stats().Created <= 15*unit })
	limit(math.MaxInt32)
	gb := vector(t, b)
	require.NoError(t, grow(gb, 64), "others get it")
	require.LessOrEqual(t, m.Stats().Lease+mb.Stats().Lease, uint64(128*unit))
}
