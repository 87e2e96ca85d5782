package ipc_test

import (
	"bytes"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// event opens the event whose handle is the next line.
func (p *part) event() *vmm.Event {
	p.in.Scan()
	var h ipc.Handle
	unquoted(p.in.Text(), &h)
	e, err := ipc.OpenEvent(p.dev, h)
	must(err)
	return e
}

// reader imports the pool that it inherits and opens two events. In the order of a stream it
// reads the blocks that it is told: after the first event, or at once, which it waits for. It
// frees each in that order and records the second event, reports whether all that has ended, and
// once it is asked what it has read.
func (p *part) reader() {
	in, err := ipc.ImportPool(p.dev, inheritedFD)
	must(err)
	ready, finished := p.event(), p.event()
	s, err := p.dev.NewStream()
	must(err)
	to, err := p.dev.Alloc(mib)
	must(err)
	for p.in.Scan() {
		when, text, _ := strings.Cut(p.in.Text(), " ")
		var token ipc.Token
		unquoted(text, &token)
		if when == "ready" {
			must(s.Wait(ready))
		}
		b, err := in.Import(token)
		must(err)
		must(s.Copy(to.Ptr(), b.Ptr(), mib))
		must(b.Free(s))
		must(finished.Record(s))
		if when == "now" {
			must(s.Sync())
		}
		done, err := s.Done()
		must(err)
		fmt.Println("ended:", done)

		p.in.Scan() // the question
		must(s.Sync())
		got := make([]byte, mib)
		must(p.dev.CopyOut(got, to.Ptr()))
		if !bytes.Equal(got, bytes.Repeat(got[:1], mib)) {
			must(fmt.Errorf("it is not all %d", got[0]))
		}
		fmt.Println(got[0])
	}
	must(s.Close())
	must(to.Close())
	must(finished.Close())
	must(ready.Close())
	must(in.Close())
}

// TestPoolOrderOfTwoProcesses is the guide's order: one process writes a block and records an
// event, another waits for that in a stream, reads, frees, and records a second event, and the
// first frees after that in a stream. All of it is queued before any of it runs.
func TestPoolOrderOfTwoProcesses(t *testing.T) {
	onDrivers(t, func(t *testing.T, d vmmtest.Driver) {
		dev := d.Device(t)
		own, f := exported(t, dev)
		ready, err := dev.NewEvent(vmm.EventInterprocess)
		require.NoError(t, err)
		finished, err := dev.NewEvent(vmm.EventInterprocess)
		require.NoError(t, err)
		c := spawn(t, "reader", d.Name, f)
		for _, e := range []*vmm.Event{ready, finished} {
			h, err := ipc.EventHandle(e)
			require.NoError(t, err)
			_, err = fmt.Fprintln(c.in, quoted(h))
			require.NoError(t, err)
		}
		// Not closed by a Cleanup: where the test has failed, the stream may wait for ever.
		s, err := dev.NewStream()
		require.NoError(t, err)

		// round has a block that is full of old filled with v, read and freed.
		round := func(when string, old, v uint32) (ended, read string) {
			b, err := own.Alloc(s, mib)
			require.NoError(t, err)
			require.NoError(t, s.Fill(b.Ptr(), old, 1, mib))
			require.NoError(t, s.Sync())
			token, err := ipc.ExportPointer(own, b)
			require.NoError(t, err)
			open := gate(t, s)
			require.NoError(t, s.Fill(b.Ptr(), v, 1, mib))
			require.NoError(t, ready.Record(s))
			ended = c.does(when, quoted(token))
			require.NoError(t, s.Wait(finished))
			require.NoError(t, own.Free(s, b))
			// What may have the same memory.
			next, err := own.Alloc(s, mib)
			require.NoError(t, err)
			require.NoError(t, s.Fill(next.Ptr(), 255, 1, mib))
			require.NoError(t, own.Free(s, next))
			open()
			read = c.does("what")
			require.NoError(t, s.Sync())
			return ended, read
		}
		for i := range testgate.Effort(5, 100, 100) {
			v := uint32(i%100 + 1)
			ended, read := round("ready", 100+v, v)
			require.Equal(t, "ended: false", ended)
			require.Equal(t, fmt.Sprint(v), read)
		}
		// Without the wait it is the old bytes that are read.
		ended, read := round("now", 201, 1)
		require.Equal(t, "ended: true", ended)
		require.Equal(t, "201", read)

		require.NoError(t, c.in.Close())
		c.ends()
		require.NoError(t, s.Close())
		require.NoError(t, finished.Close())
		require.NoError(t, ready.Close())
		require.NoError(t, own.Close())
	})
}

// gate makes later work of a stream wait until open is called.
func gate(t *testing.T, s *vmm.Stream) (open func()) {
	t.Helper()
	raw, err := s.Device().Raw()
	require.NoError(t, err)
	words, ops := raw.(driver.HostAllocator), raw.(driver.StreamMemOps)
	word, _, err := words.AllocHost(8)
	require.NoError(t, err)
	other, err := raw.NewStream()
	require.NoError(t, err)
	write := func(v uint64) {
		require.NoError(t, ops.WriteValue(other, word, v, 8))
		require.NoError(t, raw.SyncStream(other))
	}
	write(0) // the memory may have been another gate's
	require.NoError(t, ops.WaitValue(s.Raw(), word, 1, 8))
	open = sync.OnceFunc(func() { write(1) })
	t.Cleanup(func() {
		open()
		if t.Failed() {
			return // the stream may wait for another process for ever, and a free for the stream
		}
		require.NoError(t, raw.FreeStream(other))
		require.NoError(t, words.FreeHost(word))
	})
	return open
}
