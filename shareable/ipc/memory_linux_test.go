package ipc_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/pool"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// onDrivers runs a test on each driver.
func onDrivers(t *testing.T, test func(t *testing.T, d vmmtest.Driver)) {
	for _, d := range vmmtest.Drivers() {
		t.Run(d.Name, func(t *testing.T) { test(t, d) })
	}
}

// alloc is memory of a process's own.
func alloc(t *testing.T, dev *vmm.Device, n uint64) *ipc.Memory {
	t.Helper()
	m, err := ipc.Alloc(dev, n)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// open opens a handle.
func open(t *testing.T, dev *vmm.Device, h ipc.Handle) *ipc.Memory {
	t.Helper()
	m, err := ipc.Open(dev, h)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// remote is another process with memory, and the handles of that and of an event.
func remote(t *testing.T, driver string) (c *child, memory, event ipc.Handle) {
	t.Helper()
	c = spawn(t, "memory", driver)
	unquoted(c.says(), &memory)
	unquoted(c.says(), &event)
	return c, memory, event
}

// byteAt reads one byte.
func byteAt(t *testing.T, m *ipc.Memory, off int64) byte {
	t.Helper()
	b := make([]byte, 1)
	_, err := m.ReadAt(b, off)
	require.NoError(t, err)
	return b[0]
}

func TestMemoryOfAnotherProcess(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		c, h, he := remote(t, d.Name)
		require.Equal(t, ipc.KindMemory, h.Kind)
		require.EqualValues(t, mib, h.Size)
		require.Equal(t, c.cmd.Process.Pid, h.PID)
		require.Equal(t, dev.Info().UUID, h.UUID)
		require.Equal(t, ipc.KindEvent, he.Kind)

		ready, err := ipc.OpenEvent(dev, he)
		require.NoError(t, err)
		require.NoError(t, ready.Sync())
		m := open(t, dev, h)
		require.EqualValues(t, mib, m.Len())
		require.Equal(t, dev, m.Device())
		require.Equal(t, byte(7), byteAt(t, m, mib-1))

		// What is queued here is seen there, once the event is reached.
		s, err := dev.NewStream()
		require.NoError(t, err)
		require.NoError(t, s.Wait(ready))
		require.NoError(t, s.Fill(m.Ptr(), 8, 1, mib))
		require.NoError(t, ready.Record(s))
		require.Equal(t, "[8 8]", c.does("wait"))
		_, err = m.WriteAt([]byte{9}, 1)
		require.NoError(t, err)
		require.Equal(t, "[8 9]", c.does("read"))

		// Twice is the same mapping, which goes with the last Close.
		again := open(t, dev, h)
		require.Equal(t, m.Ptr(), again.Ptr())
		require.NoError(t, m.Close())
		require.NoError(t, m.Close())
		_, err = m.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, vmm.ErrClosed)
		require.Equal(t, byte(9), byteAt(t, again, 1))
		var arg vmm.MemoryArg
		again.MemoryArg(&arg)
		require.Equal(t, vmm.Span{Addr: again.Ptr(), Size: mib, Access: vmm.AccessReadWrite}, arg.Span)
		require.ErrorIs(t, dev.Close(), vmm.ErrBusy)
		_, err = again.Handle()
		require.ErrorIs(t, err, vmm.ErrInvalid, "it is the other process's")
		require.NoError(t, again.Close())
		again.MemoryArg(&arg)
		require.Zero(t, arg.Span)

		require.NoError(t, ready.Close())
		require.NoError(t, s.Close())
		require.Equal(t, "closed", c.does("close"))
	})
}

// What other programs write is the first line, or the 64 bytes.
func TestRawHandle(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		c, h, he := remote(t, d.Name)
		for _, text := range []string{line(h.Raw) + "\n", string(h.Raw[:])} {
			var bare ipc.Handle
			require.NoError(t, bare.UnmarshalText([]byte(text)))
			_, err := ipc.Open(dev, bare)
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.ErrorContains(t, err, "set Handle.Size")
			bare.Size = mib
			m := open(t, dev, bare)
			require.Equal(t, byte(7), byteAt(t, m, 0))
			require.NoError(t, m.Close())
		}
		e, err := ipc.OpenEvent(dev, ipc.Handle{Raw: he.Raw})
		require.NoError(t, err)
		require.NoError(t, e.Sync())
		require.NoError(t, e.Close())

		c.kill()
		_, err = ipc.Open(dev, ipc.Handle{Raw: h.Raw, Size: mib})
		require.ErrorIs(t, err, vmm.ErrInvalid, "the driver's own word")
	})
}

func TestExporterIsKilled(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		c, h, he := remote(t, d.Name)
		m, e := open(t, dev, h), func() *vmm.Event {
			e, err := ipc.OpenEvent(dev, he)
			require.NoError(t, err)
			return e
		}()
		require.Equal(t, byte(7), byteAt(t, m, 0))
		c.kill()

		// What was opened can be closed, and nothing hangs.
		_, err := e.Done()
		typed(t, err)
		typed(t, e.Sync())
		_, err = m.ReadAt(make([]byte, 1), 0)
		typed(t, err)
		for name, err := range map[string]error{"memory": second(ipc.Open(dev, h)), "event": second(ipc.OpenEvent(dev, he))} {
			require.ErrorIs(t, err, ipc.ErrExporterGone, name)
		}
		require.NoError(t, e.Close())
		require.NoError(t, m.Close())
	})
}

// A process that has ended, though no other has waited for it yet, is gone.
func TestExporterIsAZombie(t *testing.T) {
	dev := testDriver.Device(t)
	c, h, _ := remote(t, testDriver.Name)
	require.NoError(t, c.cmd.Process.Kill())
	for range c.lines { // until it has closed its files
	}
	require.Eventually(t, func() bool {
		m, err := ipc.Open(dev, h)
		if err == nil {
			require.NoError(t, m.Close())
		}
		return errors.Is(err, ipc.ErrExporterGone)
	}, patience, time.Millisecond)
	c.kill()
}

// typed says that an error is nil or one of package vmm.
func typed(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		var op *vmm.OpError
		require.ErrorAs(t, err, &op)
	}
}

func TestHandleOfItsOwnProcess(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		m := alloc(t, dev, 100)
		h, err := m.Handle()
		require.NoError(t, err)
		require.Equal(t, os.Getpid(), h.PID)
		again, err := m.Handle()
		require.NoError(t, err)
		require.Equal(t, h, again)
		_, err = ipc.Open(dev, h)
		require.ErrorIs(t, err, ipc.ErrOwnHandle)
		_, err = ipc.Open(dev, ipc.Handle{Raw: h.Raw, Size: 100})
		require.ErrorIs(t, err, vmm.ErrInvalid, "the driver's own word")

		e, err := dev.NewEvent(vmm.EventInterprocess)
		require.NoError(t, err)
		h, err = ipc.EventHandle(e)
		require.NoError(t, err)
		_, err = ipc.OpenEvent(dev, h)
		require.ErrorIs(t, err, ipc.ErrOwnHandle)
		require.NoError(t, e.Close())
		plain, err := dev.NewEvent(0)
		require.NoError(t, err)
		_, err = ipc.EventHandle(plain)
		require.ErrorIs(t, err, vmm.ErrInvalid)
		require.NoError(t, plain.Close())
	})
}

func TestOpenRefuses(t *testing.T) {
	dev := vmmtest.Device(t)
	c, good, event := remote(t, "host")
	with := func(change func(*ipc.Handle)) ipc.Handle {
		h := good
		change(&h)
		return h
	}
	for _, c := range []struct {
		name string
		h    ipc.Handle
		want error
	}{
		{"nothing", ipc.Handle{}, ipc.ErrHandle},
		{"zero bytes", with(func(h *ipc.Handle) { h.Raw = [64]byte{} }), ipc.ErrHandle},
		{"an event's", event, ipc.ErrHandle},
		{"a negative process", with(func(h *ipc.Handle) { h.PID = -5 }), ipc.ErrHandle},
		{"no size", with(func(h *ipc.Handle) { h.Size = 0 }), vmm.ErrInvalid},
		{"another boot", with(func(h *ipc.Handle) { h.Boot = "another" }), ipc.ErrExporterGone},
		{"a pid that was used again", with(func(h *ipc.Handle) { h.Start++ }), ipc.ErrExporterGone},
		{"a pid that no process has", with(func(h *ipc.Handle) { h.PID = 1<<31 - 1 }), ipc.ErrExporterGone},
		{"garbage", ipc.Handle{Raw: raw(1), Size: 1}, vmm.ErrInvalid},
		{"other bytes", with(func(h *ipc.Handle) { h.Raw[63]++ }), vmm.ErrInvalid},
	} {
		_, err := ipc.Open(dev, c.h)
		require.ErrorIs(t, err, c.want, c.name)
	}
	_, err := ipc.OpenEvent(dev, good)
	require.ErrorIs(t, err, ipc.ErrHandle, "of memory")

	// The number of a process in another namespace says nothing here, a device that is not
	// here neither. Not every process can find out when it began.
	for _, change := range []func(*ipc.Handle){
		func(h *ipc.Handle) { h.PIDNamespace, h.PID = 1, os.Getpid() },
		func(h *ipc.Handle) { h.UUID[0]++ },
		func(h *ipc.Handle) { h.Start = 0 },
	} {
		m, err := ipc.Open(dev, with(change))
		require.NoError(t, err)
		require.NoError(t, m.Close())
	}
	require.Equal(t, "closed", c.does("close"))
	_, err = ipc.Open(dev, good)
	require.ErrorIs(t, err, vmm.ErrInvalid, "freed, though its process runs")
	require.NotErrorIs(t, err, ipc.ErrExporterGone)
}

func TestMemoryBounds(t *testing.T) {
	dev := testDriver.Device(t)
	for _, n := range []uint64{0, 1 << 62} {
		_, err := ipc.Alloc(dev, n)
		require.Error(t, err)
	}
	m := alloc(t, dev, 10)
	n, err := m.WriteAt([]byte("0123456789"), 0)
	require.NoError(t, err)
	require.Equal(t, 10, n)
	b := make([]byte, 4)
	n, err = m.ReadAt(b, 8)
	require.Equal(t, io.EOF, err) //nolint:testifylint // as io.ReaderAt's callers compare it
	require.Equal(t, "89", string(b[:n]))
	for _, off := range []int64{10, 11, 1 << 62} {
		n, err = m.ReadAt(b, off)
		require.Equal(t, io.EOF, err)
		require.Zero(t, n)
	}
	n, err = m.ReadAt(nil, 10)
	require.NoError(t, err)
	require.Zero(t, n)
	for _, off := range []int64{-1, 7, 10, 11, 1<<63 - 1} {
		n, err = m.WriteAt(b, off)
		require.ErrorIs(t, err, vmm.ErrBounds)
		require.Zero(t, n)
	}
	_, err = m.ReadAt(b, -1)
	require.ErrorIs(t, err, vmm.ErrBounds)
	all := make([]byte, 10)
	_, err = m.ReadAt(all, 0)
	require.NoError(t, err)
	require.Equal(t, "0123456789", string(all))
}

func TestMemoryKeepsTheDeviceOpen(t *testing.T) {
	dev := testDriver.Device(t)
	m := alloc(t, dev, 1)
	err := dev.Close()
	require.ErrorIs(t, err, vmm.ErrBusy)
	require.ErrorContains(t, err, "plain memory made at ")
	require.ErrorContains(t, err, "memory_linux_test.go")
	require.NoError(t, m.Close())
	require.NoError(t, dev.Close())
	_, err = ipc.Alloc(dev, 1)
	require.ErrorIs(t, err, vmm.ErrClosed)
	_, err = ipc.Open(dev, ipc.Handle{Raw: raw(1), Size: 1})
	require.ErrorIs(t, err, vmm.ErrClosed)
}

// Close waits for what is queued, and must not do so during a capture.
func TestMemoryCloseWaits(t *testing.T) {
	dev := testDriver.Device(t)
	s, err := dev.NewStream()
	require.NoError(t, err)
	c, h, _ := remote(t, testDriver.Name)
	for _, m := range []*ipc.Memory{alloc(t, dev, 64*mib), open(t, dev, h)} {
		require.NoError(t, s.BeginCapture())
		require.ErrorIs(t, m.Close(), vmm.ErrCapturing)
		g, err := s.EndCapture()
		require.NoError(t, err)
		require.NoError(t, g.Close())
		for range 20 {
			require.NoError(t, s.Fill(m.Ptr(), 1, 1, m.Len()))
		}
		require.NoError(t, m.Close())
		require.NoError(t, s.Sync(), "the device is not lost")
	}
	require.NoError(t, s.Close())
	c.kill()
}

func TestOpenOnAnotherDevice(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		pairs := map[string]int{}
		var mu sync.Mutex
		devs := d.Devices(t, 2, func(c drivertest.Call) error {
			mu.Lock()
			defer mu.Unlock()
			if c.Name == "EnablePeer" || c.Name == "DisablePeer" {
				pairs[c.Name]++
			}
			return nil
		})
		calls := func(name string) int {
			mu.Lock()
			defer mu.Unlock()
			return pairs[name]
		}
		c, h, he := remote(t, d.Name)
		e, err := ipc.OpenEvent(devs[1], he)
		require.NoError(t, err)
		require.NoError(t, e.Sync())
		require.NoError(t, e.Close())
		s, err := devs[1].NewStream()
		require.NoError(t, err)
		works := func(m *ipc.Memory, name string) {
			t.Helper()
			require.NoError(t, s.Fill(m.Ptr(), 7, 1, mib), name)
			require.NoError(t, s.Sync(), name)
			require.Equal(t, byte(7), byteAt(t, m, mib-1), name)
		}
		for name, opens := range map[string]ipc.Handle{"ours": h, "bytes": {Raw: h.Raw, Size: mib}} {
			enabled, disabled := calls("EnablePeer"), calls("DisablePeer")
			m := open(t, devs[1], opens)
			works(m, name)
			require.Equal(t, enabled, calls("EnablePeer"), "the driver sees to it")

			// A program that enables the pair and disables it again takes nothing away.
			disable, err := vmm.EnableLegacyPeers(devs...)
			require.NoError(t, err)
			works(m, name)
			require.NoError(t, disable())
			require.Equal(t, disabled+2, calls("DisablePeer"), "both ways: "+name)
			works(m, name)
			require.ErrorIs(t, devs[1].Close(), vmm.ErrBusy)

			// And the other way round: the end of the mapping leaves a pair that is enabled.
			disable, err = vmm.EnableLegacyPeers(devs...)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			require.Equal(t, disabled+2, calls("DisablePeer"), name)
			plain := alloc(t, devs[0], mib)
			require.NoError(t, s.Fill(plain.Ptr(), 1, 1, mib), "the pair is there still")
			require.NoError(t, s.Sync())
			again := open(t, devs[1], opens)
			works(again, name)
			require.NoError(t, disable())
			works(again, name)
			require.NoError(t, again.Close())
		}
		require.NoError(t, s.Close())
		require.Equal(t, "closed", c.does("close"))
	})
}

// After each call that fails, what was done is undone, or can be done once more.
func TestFaults(t *testing.T) {
	c, h, _ := remote(t, "host")
	for _, call := range []string{"AllocPlain", "FreePlain", "MemHandle", "OpenMem", "CloseMem", "Sync"} {
		for nth := 1; nth <= 2; nth++ {
			t.Run(fmt.Sprint(call, nth), func(t *testing.T) {
				devs := vmmtest.Devices(t, 2, drivertest.FailNth(call, nth, vmm.ErrOutOfMemory))
				for range 3 {
					m, err := ipc.Alloc(devs[0], 10)
					if err != nil {
						require.ErrorIs(t, err, vmm.ErrOutOfMemory)
						continue
					}
					_, err = m.Handle()
					typed(t, err)
					closes(t, m)
					for _, opens := range []ipc.Handle{h, {Raw: h.Raw, Size: mib}} {
						m, err = ipc.Open(devs[1], opens)
						if err != nil {
							require.ErrorIs(t, err, vmm.ErrOutOfMemory)
							continue
						}
						closes(t, m)
					}
				}
			})
		}
	}
	c.kill()
}

// closes closes memory, at the second try if a call fails.
func closes(t *testing.T, m *ipc.Memory) {
	t.Helper()
	if err := m.Close(); err != nil {
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		require.NoError(t, m.Close())
	}
}

func TestConcurrentOpens(t *testing.T) {
	dev := testDriver.Device(t)
	c, h, _ := remote(t, testDriver.Name)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				m, err := ipc.Open(dev, h)
				if err != nil {
					t.Error(err)
					return
				}
				var at sync.WaitGroup
				at.Go(func() { _, _ = m.ReadAt(make([]byte, 1), 0) })
				at.Go(func() {
					if err := m.Close(); err != nil {
						t.Error(err)
					}
				})
				at.Wait()
			}
		})
	}
	all.Wait()
	require.Empty(t, dev.Report().Open)
	c.kill()
}

// A process that was given a handle in its text form opens it.
func TestWeExport(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		m := alloc(t, d.Device(t), 100)
		for v := range byte(3) {
			_, err := m.WriteAt([]byte{v}, 0)
			require.NoError(t, err)
			h, err := m.Handle()
			require.NoError(t, err)
			c := spawn(t, "opener", d.Name)
			require.Equal(t, fmt.Sprint(v), c.does(quoted(h)))
			c.kill()
		}
	})
}

// TestAllocHasIdleMemoryReleased: plain memory is to be had while the device's cache, or a pool,
// keeps more idle than is left. In the control nothing is released.
func TestAllocHasIdleMemoryReleased(t *testing.T) {
	dev := testDriver.Device(t)
	s, err := dev.NewStream()
	require.NoError(t, err)
	free, _, err := dev.MemInfo()
	require.NoError(t, err)
	n := free / 10 * 6 / mib * mib
	p, err := pool.New(dev, pool.Options{ReleaseThreshold: 1 << 62})
	require.NoError(t, err)
	b, err := p.Alloc(s, n)
	require.NoError(t, err)
	require.NoError(t, p.Free(s, b))
	require.NoError(t, s.Sync())
	raw, err := dev.Raw()
	require.NoError(t, err)
	_, err = raw.(driver.Allocator).AllocPlain(n)
	require.ErrorIs(t, err, vmm.ErrOutOfMemory, "the control")
	m, err := ipc.Alloc(dev, n)
	require.NoError(t, err)
	require.NoError(t, m.Close())

	dev.SetReleaseThreshold(1 << 62)
	g, err := dev.Alloc(n)
	require.NoError(t, err)
	require.NoError(t, g.Close())
	require.NotZero(t, dev.Stats().Cached)
	m, err = ipc.Alloc(dev, n)
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.NoError(t, p.Close())
	require.NoError(t, s.Close())
}

// TestPlainMemoryCounts: plain memory counts against SetLimit until it is freed. Memory that was opened does not.
func TestPlainMemoryCounts(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		defer dev.SetLimit(dev.SetLimit(8 << 20))
		m, err := ipc.Alloc(dev, 6<<20)
		require.NoError(t, err)
		_, err = ipc.Alloc(dev, 4<<20)
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		require.ErrorContains(t, err, "limit")
		_, err = dev.Create(4<<20, vmm.Prop{})
		require.ErrorIs(t, err, vmm.ErrOutOfMemory)
		_, err = ipc.Alloc(dev, 9<<20)
		require.ErrorContains(t, err, "more than there can be")
		require.NoError(t, m.Close())
		again := alloc(t, dev, 8<<20)
		require.NotZero(t, again.Ptr())
	})
}
