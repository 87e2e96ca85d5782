//go:build linux

package host

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// plain is n bytes of plain memory that begin with b.
func plain(t testing.TB, v *device, n uint64, b byte) driver.Ptr {
	t.Helper()
	p, err := v.AllocPlain(n)
	require.NoError(t, err)
	require.NoError(t, v.CopyIn(p, []byte{b}))
	return p
}

func first(t testing.TB, v *device, p driver.Ptr) byte {
	t.Helper()
	var b [1]byte
	require.NoError(t, v.CopyOut(b[:], p))
	return b[0]
}

func memHandle(t testing.TB, v *device, p driver.Ptr) driver.IPCHandle {
	t.Helper()
	h, err := v.MemHandle(p)
	require.NoError(t, err)
	again, err := v.MemHandle(p)
	require.NoError(t, err)
	require.Equal(t, h, again)
	return h
}

// invalid checks that a handle cannot be opened, as memory or as an event.
func invalid(t testing.TB, v *device, h driver.IPCHandle) {
	t.Helper()
	_, err := v.OpenMem(h)
	require.ErrorIs(t, err, driver.ErrInvalid)
	_, err = v.OpenEvent(h)
	require.ErrorIs(t, err, driver.ErrInvalid)
}

// TestOpenMem: two Drivers are as two processes. Each sees what the other writes, and
// what the maker frees is free at once.
func TestOpenMem(t *testing.T) {
	before := holds(t)
	one, two := New(Config{Memory: mib}), New(Config{Memory: mib})
	v, w := open(t, one, 0), open(t, two, 0)
	p := plain(t, v, 5000, 1)
	other := plain(t, v, 1, 7)
	h := memHandle(t, v, p)
	q, err := w.OpenMem(h)
	require.NoError(t, err)
	require.Equal(t, byte(1), first(t, w, q))
	require.NoError(t, w.CopyIn(q, []byte{8}))
	require.Equal(t, byte(8), first(t, v, p))
	require.ErrorIs(t, w.CopyIn(q+4999, []byte{1, 2}), driver.ErrInvalid, "past the end")
	require.EqualValues(t, mib, free(t, w), "it counts for its maker alone")

	again, err := w.OpenMem(h)
	require.NoError(t, err)
	require.Equal(t, q, again)
	require.NoError(t, w.CloseMem(q))
	require.Equal(t, byte(8), first(t, w, q))
	for _, err := range []error{w.FreePlain(q), w.FreeAsync(q, w.CopyStream()), w.CloseMem(q + 1), v.CloseMem(p), w.CloseMem(0)} {
		require.ErrorIs(t, err, driver.ErrInvalid)
	}
	_, err = w.MemHandle(q)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.NoError(t, w.CloseMem(q))
	require.ErrorIs(t, w.CloseMem(q), driver.ErrInvalid)
	require.ErrorIs(t, w.CopyIn(q, []byte{1}), driver.ErrInvalid)

	_, err = v.OpenMem(h)
	require.ErrorIs(t, err, driver.ErrInvalid)
	require.ErrorContains(t, err, "of this process")
	q, err = w.OpenMem(h)
	require.NoError(t, err)
	require.NoError(t, v.FreePlain(p))
	require.EqualValues(t, mib-4096, free(t, v))
	var st unix.Stat_t
	require.NoError(t, unix.Fstat(v.context.plain.fd, &st))
	require.EqualValues(t, 4096, st.Blocks*512, "only the other block has a page")
	require.NoError(t, w.CloseMem(q))
	invalid(t, w, h)
	require.NoError(t, v.FreePlain(other))
	require.NoError(t, v.Close())
	require.NoError(t, w.Close())
	require.Equal(t, before, holds(t))
	require.Zero(t, one.mappings+two.mappings)
}

// What is no handle, or one that another has changed, is refused.
func TestOpenMemRefuses(t *testing.T) {
	v, w := open(t, New(Config{}), 0), open(t, New(Config{}), 0)
	h := memHandle(t, v, plain(t, v, 1, 1))
	invalid(t, w, driver.IPCHandle{})
	for i := range h {
		for _, change := range []byte{1, 0x80, 0xff} {
			bad := h
			bad[i] ^= change
			_, err := w.OpenMem(bad)
			require.Error(t, err, i)
			if dev := i == 10 || i == 11; !dev { // a device that is not there may be no more than unreachable
				require.ErrorIs(t, err, driver.ErrInvalid, i)
			}
		}
	}
	later := plain(t, v, 1, 1)
	h = memHandle(t, v, later)
	free := gate(t, v, v.CopyStream())
	require.NoError(t, v.FreeAsync(later, v.CopyStream()))
	invalid(t, w, h)
	free()
	host, _, err := v.AllocHost(8)
	require.NoError(t, err)
	async, err := v.AllocAsync(8, v.CopyStream())
	require.NoError(t, err)
	mapped := chunk(t, v.context.d, 2*mib)
	for _, p := range []driver.Ptr{0, 1, host, async, mapped, plain(t, v, 8, 1) + 1} {
		_, err := v.MemHandle(p)
		require.ErrorIs(t, err, driver.ErrInvalid, p)
	}
}

// TestOpenMemOfAnotherDevice: a path is enough.
func TestOpenMemOfAnotherDevice(t *testing.T) {
	one := New(Config{Devices: 3})
	two := New(Config{Devices: 2, NoPeer: [][2]int{{0, 1}}})
	h := memHandle(t, open(t, one, 1), plain(t, open(t, one, 1), 1, 1))
	_, err := open(t, two, 0).OpenMem(h)
	require.ErrorIs(t, err, driver.ErrNotSupported)
	beyond := memHandle(t, open(t, one, 2), plain(t, open(t, one, 2), 1, 1))
	_, err = open(t, two, 0).OpenMem(beyond)
	require.ErrorIs(t, err, driver.ErrNotSupported)
	w := open(t, New(Config{Devices: 2}), 0)
	p, err := w.OpenMem(h)
	require.NoError(t, err)
	_, dev, err := w.PoolOf(p)
	require.NoError(t, err)
	require.Equal(t, 1, dev)
	require.NoError(t, w.EnablePeer(1))
	require.NoError(t, w.DisablePeer(1))
	require.Equal(t, byte(1), first(t, w, p))
}

// TestPlainTakesNoDescriptors: however many blocks there are, they take one.
func TestPlainTakesNoDescriptors(t *testing.T) {
	before := memoryFiles(holds(t))
	v := open(t, New(Config{}), 0)
	for range 1000 {
		memHandle(t, v, plain(t, v, 1, 1))
	}
	require.Equal(t, before+1, memoryFiles(holds(t)))
}

// TestPlainBeyondTheFile: where the process may have no large file, further ones follow.
func TestPlainBeyondTheFile(t *testing.T) {
	before := holds(t)
	d := New(Config{})
	v := open(t, d, 0)
	old := plain(t, v, 4096, 1)
	h := memHandle(t, v, old)
	v.context.plain.next = v.context.plain.size - 3*4096
	last := plain(t, v, 4096, 2)
	next := plain(t, v, 4096, 3)
	require.NotEqual(t, memHandle(t, v, last), memHandle(t, v, next))
	w := open(t, New(Config{}), 0)
	p, err := w.OpenMem(h)
	require.NoError(t, err)
	require.Equal(t, byte(1), first(t, w, p))
	require.NoError(t, v.FreePlain(old))
	require.NoError(t, v.FreePlain(last))
	require.Equal(t, byte(3), first(t, v, next))
	require.NoError(t, v.Close())
	require.NoError(t, w.Close())
	require.Equal(t, before, holds(t))
}

// TestLegacyIPCAcrossProcesses: a process makes memory and an event, and is killed.
func TestLegacyIPCAcrossProcesses(t *testing.T) {
	if os.Getenv("CUVMM_HOST_MAKER") != "" {
		makeAndWait(t)
		return
	}
	if !processes.Shown() {
		t.Skip("/proc is that of another pid namespace: mount it anew (unshare --mount-proc)")
	}
	maker := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=2m")
	maker.Env = append(os.Environ(), "CUVMM_HOST_MAKER=1")
	out, err := maker.StdoutPipe()
	require.NoError(t, err)
	in, err := maker.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, maker.Start())
	lines := bufio.NewScanner(out)
	next := func() driver.IPCHandle {
		require.True(t, lines.Scan())
		b, err := hex.DecodeString(lines.Text())
		require.NoError(t, err)
		return driver.IPCHandle(b)
	}
	d := New(Config{})
	v := open(t, d, 0)
	mem, reached, held := next(), next(), next()
	p, err := v.OpenMem(mem)
	require.NoError(t, err)
	require.Equal(t, byte(1), first(t, v, p))
	events := map[driver.IPCHandle]driver.Event{}
	for _, h := range []driver.IPCHandle{reached, held} {
		events[h], err = v.OpenEvent(h)
		require.NoError(t, err)
	}
	done := func(h driver.IPCHandle) bool {
		yes, err := v.Done(events[h])
		require.NoError(t, err)
		return yes
	}
	require.True(t, done(reached))
	require.False(t, done(held))

	// What we record is seen there.
	require.NoError(t, v.CopyIn(p, []byte{8}))
	require.NoError(t, v.Record(events[reached], v.CopyStream()))
	_, err = fmt.Fprintln(in)
	require.NoError(t, err)
	require.True(t, lines.Scan())
	require.Equal(t, "8", lines.Text())

	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, v.Wait(s, events[held]))
	require.NoError(t, v.Fill(p, 9, 1, 1, s))
	finished, err := v.StreamDone(s)
	require.NoError(t, err)
	require.False(t, finished)
	require.NoError(t, maker.Process.Kill())
	require.NoError(t, v.SyncEvent(events[held]))
	require.NoError(t, v.SyncStream(s))
	require.Equal(t, byte(9), first(t, v, p), "memory that is mapped stays")
	require.Error(t, maker.Wait())

	_, err = open(t, New(Config{}), 0).OpenMem(mem)
	require.ErrorIs(t, err, driver.ErrInvalid)
	e, err := v.OpenEvent(held)
	require.NoError(t, err)
	yes, err := v.Done(e)
	require.NoError(t, err)
	require.True(t, yes)
	require.NoError(t, v.FreeEvent(e))
}

// makeAndWait is the process that is killed.
func makeAndWait(t *testing.T) {
	v := open(t, New(Config{}), 0)
	p := plain(t, v, 1, 1)
	fmt.Println(hex.EncodeToString(name(memHandle(t, v, p))))
	gate(t, v, v.CopyStream())
	s, err := v.NewStream()
	require.NoError(t, err)
	var e driver.Event
	for _, at := range []driver.Stream{s, v.CopyStream()} {
		of, err := v.NewEvent(driver.EventInterprocess)
		require.NoError(t, err)
		require.NoError(t, v.Record(of, at))
		h, err := v.EventHandle(of)
		require.NoError(t, err)
		fmt.Println(hex.EncodeToString(name(h)))
		if at == s {
			e = of
		}
	}
	_, err = os.Stdin.Read(make([]byte, 1))
	require.NoError(t, err)
	require.NoError(t, v.Wait(s, e))
	q, err := v.AllocPlain(1)
	require.NoError(t, err)
	require.NoError(t, v.Copy(q, p, 1, s))
	require.NoError(t, v.SyncStream(s))
	b, err := v.context.d.HostBytes(q, 1)
	require.NoError(t, err)
	fmt.Println(b[0])
	select {} // until it is killed
}

func name(h driver.IPCHandle) []byte { return h[:] }

// TestMakersKilledAtAnyPoint: what a maker that is killed has handed out opens or is
// ErrInvalid, and nothing stays.
func TestMakersKilledAtAnyPoint(t *testing.T) {
	if os.Getenv("CUVMM_HOST_MAKER") != "" {
		v := open(t, New(Config{}), 0)
		for {
			p := plain(t, v, 1, 1)
			fmt.Println(hex.EncodeToString(name(memHandle(t, v, p))))
			require.NoError(t, v.FreePlain(p))
		}
	}
	before := holds(t)
	d := New(Config{Memory: mib})
	v := open(t, d, 0)
	for round := range 10 {
		maker := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.timeout=2m")
		maker.Env = append(os.Environ(), "CUVMM_HOST_MAKER=1")
		out, err := maker.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, maker.Start())
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			b, err := hex.DecodeString(lines.Text())
			if err != nil || len(b) != 64 {
				break // cut short
			}
			p, err := v.OpenMem(driver.IPCHandle(b))
			if err != nil {
				require.ErrorIs(t, err, driver.ErrInvalid)
			} else {
				require.NoError(t, v.CloseMem(p))
			}
			if n == 10*round {
				require.NoError(t, maker.Process.Kill())
			}
		}
		require.Error(t, maker.Wait())
	}
	require.EqualValues(t, mib, free(t, v))
	require.NoError(t, v.Close())
	require.Equal(t, before, holds(t))
	require.Zero(t, d.mappings)
}
