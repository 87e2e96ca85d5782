package shareable

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestHostileObjects: what an owner says before there is a view.
func TestHostileObjects(t *testing.T) {
	type answer struct {
		do   func(*hostileOwner)
		want error
	}
	says := func(b []byte) func(*hostileOwner) { return func(k *hostileOwner) { k.packet(b) } }
	head := func(of wire.Type, body []byte) []byte {
		return raw(wire.Header{Major: 1, Type: of, Len: uint32(len(body)), Sequence: 1}, body)
	}
	greeting := wire.Hello{Backend: wire.BackendHost}.Append(nil)
	fails := func(code uint32) func(*hostileOwner) {
		return func(k *hostileOwner) {
			k.hello()
			f := k.expect(wire.TypeAttach)
			k.send(wire.TypeError, f.Request, wire.Error{Code: code, Text: "why"}.Append(nil))
		}
	}
	object := func(change func(*wire.Object)) func(*hostileOwner) {
		return func(k *hostileOwner) {
			k.hello()
			f := k.expect(wire.TypeAttach)
			change(&k.o)
			k.send(wire.TypeObject, f.Request, k.o.Append(nil), k.fd, k.wake.reader)
		}
	}
	cases := map[string]answer{
		"version 2":         {says(put(head(wire.TypeHello, greeting), 4, 2)), ErrVersion},
		"another magic":     {says(put(head(wire.TypeHello, greeting), 0, 'X')), ErrProtocol},
		"half a HELLO":      {says(head(wire.TypeHello, greeting)[:70]), ErrProtocol},
		"noise":             {says(make([]byte, 5000)), ErrProtocol},
		"nothing":           {says(nil), ErrOwnerGone},
		"nothing, with fds": {func(k *hostileOwner) { k.packet(nil, nulls(k.t, 64)...) }, ErrProtocol},
		"HELLO with 253":    {func(k *hostileOwner) { k.packet(head(wire.TypeHello, greeting), nulls(k.t, 253)...) }, ErrProtocol},
		"CHUNKS first": {func(k *hostileOwner) {
			k.send(wire.TypeChunks, 0, k.records(0, 1).Append(nil), memory(k.t, piecesize, firm))
		}, ErrProtocol},
		"OBJECT first": {func(k *hostileOwner) { k.send(wire.TypeObject, 1, k.o.Append(nil), k.fd, k.wake.reader) }, ErrProtocol},
		"CLOSING":      {func(k *hostileOwner) { k.send(wire.TypeClosing, 0, wire.Closing{}.Append(nil)) }, ErrOwnerGone},
		"memory of a card": {func(k *hostileOwner) {
			k.send(wire.TypeHello, 0, wire.Hello{Backend: wire.BackendCUDA}.Append(nil))
		}, vmm.ErrNotSupported},
		"not found":  {fails(wire.CodeNotFound), ErrNotFound},
		"permission": {fails(wire.CodePermission), vmm.ErrPermission},
		"limit":      {fails(wire.CodeLimit), vmm.ErrLimit},
		"internal":   {fails(wire.CodeInternal), errRefused},
		"CHUNKS instead": {func(k *hostileOwner) {
			k.hello()
			k.expect(wire.TypeAttach)
			k.send(wire.TypeChunks, 0, k.records(0, 1).Append(nil), memory(k.t, piecesize, firm))
		}, ErrProtocol},
		"no pages": {func(k *hostileOwner) {
			k.hello()
			f := k.expect(wire.TypeAttach)
			k.send(wire.TypeObject, f.Request, k.o.Append(nil))
		}, ErrProtocol},
		"the answer to another request": {func(k *hostileOwner) {
			k.hello()
			f := k.expect(wire.TypeAttach)
			k.send(wire.TypeObject, f.Request+1, k.o.Append(nil), k.fd, k.wake.reader)
		}, ErrProtocol},
		"another name":         {object(func(o *wire.Object) { o.Name = "y" }), ErrProtocol},
		"a bad name":           {object(func(o *wire.Object) { o.Name = "../x" }), ErrProtocol},
		"another instance":     {object(func(o *wire.Object) { o.Instance[3]++ }), ErrProtocol},
		"closed":               {object(func(o *wire.Object) { o.State = wire.StateClosed }), ErrNotFound},
		"state 9":              {object(func(o *wire.Object) { o.State = 9 }), ErrProtocol},
		"no room":              {object(func(o *wire.Object) { o.Max = 0 }), ErrProtocol},
		"half a granule":       {object(func(o *wire.Object) { o.Max = piecesize / 2 }), ErrProtocol},
		"longer than it may":   {object(func(o *wire.Object) { o.Length = o.Max + 1 }), ErrProtocol},
		"more room than room":  {object(func(o *wire.Object) { o.Capacity = o.Max + piecesize }), ErrProtocol},
		"endless rows":         {object(func(o *wire.Object) { o.Elem.Size = 1 << 40; o.Shape = []uint64{1 << 40} }), ErrProtocol},
		"a bit of HELLO again": {func(k *hostileOwner) { k.hello(); k.hello2() }, ErrProtocol},
	}
	dev := vmmtest.Device(t)
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := countResources(t, dev)
			t.Run("victim", func(t *testing.T) {
				k, far := newHostileOwner(t)
				got := begins(t, far, dev, AttachOptions{})
				c.do(k)
				a := <-got
				require.ErrorIs(t, a.err, c.want)
			})
			waitReleased(t, dev, before)
		})
	}
}

// TestHostileMaximum: the maximum that an owner names takes no more of the
// reader's addresses than the reader would ever map.
func TestHostileMaximum(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	for _, most := range []uint64{1 << 46, 1 << 63, 1<<64 - piecesize} {
		k, far := newHostileOwner(t)
		k.o.Max = most
		v := viewOfTwoChunks(t, k, far, dev, AttachOptions{MaxBytes: 5*piecesize + 1})
		require.Equal(t, uint64(5*piecesize), v.res.Size())
		require.Equal(t, uint64(5*piecesize), v.Max())
		k.done(most)
		word(k.page, atQueued).Store(math.MaxUint64)
		require.Equal(t, uint64(2*piecesize), v.Len())
		k.chunks(2, 3)
		k.expect(wire.TypeAck)
		wait(t, v, 5*piecesize)
		k.chunks(5, 1)
		require.ErrorIs(t, waitDetached(t, v), vmm.ErrLimit)
		require.Equal(t, uint64(5*piecesize), v.Len())
		closeView(t, v)
	}
}

func (k *hostileOwner) hello2() {
	k.expect(wire.TypeAttach)
	k.send(wire.TypeHello, 0, wire.Hello{Backend: wire.BackendHost}.Append(nil))
}

// TestOwnerStops: an owner that stands still, goes, or chatters at any stage
// ends Attach and Receive in a bounded time.
func TestOwnerStops(t *testing.T) {
	const short = 300 * time.Millisecond
	stages := map[string]func(*hostileOwner){
		"at once":      func(*hostileOwner) {},
		"after HELLO":  func(k *hostileOwner) { k.hello() },
		"after ATTACH": func(k *hostileOwner) { k.hello(); k.expect(wire.TypeAttach) },
		"after what may be skipped": func(k *hostileOwner) {
			k.hello()
			k.expect(wire.TypeAttach)
			for k.c.Write(999, 0, wire.FlagOptional, nil) == nil {
			}
		},
	}
	dev := vmmtest.Device(t)
	before := countResources(t, dev) // so that the rows are parallel, and the test is not
	rows := map[string]func(*testing.T){}
	for name, stop := range stages {
		rows[name] = func(t *testing.T) {
			k, far := newHostileOwner(t)
			got := begins(t, far, dev, AttachOptions{Timeout: short})
			stop(k)
			require.ErrorIs(t, (<-got).err, os.ErrDeadlineExceeded)
			if name == "after what may be skipped" {
				return
			}
			k, far = newHostileOwner(t)
			got = begins(t, far, dev, AttachOptions{})
			stop(k)
			require.NoError(t, k.c.Close())
			require.ErrorIs(t, (<-got).err, ErrOwnerGone)

			k, far = newHostileOwner(t)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				_, err := AttachConn(ctx, far, "x", dev, AttachOptions{})
				done <- err
			}()
			stop(k)
			cancel()
			require.ErrorIs(t, <-done, context.Canceled)
		}
	}
	sealed := func(k *hostileOwner) {
		k.o.State, k.o.Length = wire.StateSealed, 2*piecesize
		k.hello()
		k.send(wire.TypeObject, 0, k.o.Append(nil))
	}
	chunk := func(k *hostileOwner) {
		sealed(k)
		k.chunks(0, 1)
		k.expect(wire.TypeAck)
	}
	for name, c := range map[string]struct {
		do   func(*hostileOwner)
		want error
	}{
		"receive: at once":      {func(*hostileOwner) {}, os.ErrDeadlineExceeded},
		"receive: after HELLO":  {func(k *hostileOwner) { k.hello() }, os.ErrDeadlineExceeded},
		"receive: after OBJECT": {sealed, os.ErrDeadlineExceeded},
		"receive: after CHUNKS": {chunk, os.ErrDeadlineExceeded},
		"receive: DONE early":   {func(k *hostileOwner) { chunk(k); k.send(wire.TypeDone, 0, nil) }, ErrProtocol},
		"receive: not sealed": {func(k *hostileOwner) {
			k.hello()
			k.send(wire.TypeObject, 0, k.o.Append(nil))
		}, ErrProtocol},
		"receive: another length": {func(k *hostileOwner) {
			chunk(k)
			k.send(wire.TypeSealed, 0, wire.Sealed{Object: 7, Length: piecesize}.Append(nil))
		}, ErrProtocol},
		"receive: RETIRE": {func(k *hostileOwner) {
			chunk(k)
			k.send(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 9}.Append(nil))
		}, ErrProtocol},
		"receive: another HELLO": {func(k *hostileOwner) {
			chunk(k)
			k.send(wire.TypeHello, 0, wire.Hello{Backend: 1}.Append(nil))
		}, ErrProtocol},
		"receive: unsealed": {func(k *hostileOwner) {
			chunk(k)
			k.send(wire.TypeChunks, 0, k.records(1, 1).Append(nil), memory(k.t, piecesize, 0))
		}, vmm.ErrInvalid},
		"receive: gone": {func(k *hostileOwner) { chunk(k); _ = k.c.Close() }, ErrOwnerGone},
	} {
		rows[name] = func(t *testing.T) {
			k, far := newHostileOwner(t)
			limit := inTime
			if errors.Is(c.want, os.ErrDeadlineExceeded) {
				limit = short
			}
			got := make(chan attaching, 1)
			go func() {
				v, err := Receive(t.Context(), far, dev, AttachOptions{Timeout: limit})
				got <- attaching{v, err}
			}()
			c.do(k)
			a := <-got
			require.ErrorIs(t, a.err, c.want)
			require.Nil(t, a.v)
			require.NoError(t, far.Close())
		}
	}
	t.Run("rows", func(t *testing.T) {
		for name, row := range rows {
			t.Run(name, func(t *testing.T) { t.Parallel(); row(t) })
		}
	})
	waitReleased(t, dev, before)
}

// TestReceiveForEver: only the context bounds what a sender says without end.
func TestReceiveForEver(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	k, far := newHostileOwner(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got := make(chan error, 1)
	go func() {
		_, err := Receive(ctx, far, dev, AttachOptions{})
		got <- errors.Join(err, far.Close())
	}()
	k.o.State = wire.StateSealed
	k.hello()
	k.send(wire.TypeObject, 0, k.o.Append(nil))
	last := testgate.Effort(10_000, 200_000, 200_000) // of the frames before the context ends
	for n := 0; k.c.Write(wire.TypeSealed, 0, 0, wire.Sealed{Object: 7}.Append(nil)) == nil; n++ {
		if n == last {
			require.Empty(t, got)
			cancel()
		}
	}
	require.ErrorIs(t, <-got, context.Canceled)
}

// TestSendToHostile: a receiver that is slow, or asks for what it has, does not
// keep Send for ever.
func TestSendToHostile(t *testing.T) {
	t.Parallel()
	_, _, g := stage(t, Options{}, PublishOptions{})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	for name, say := range map[string]func(*wire.Conn){
		"an ACK of chunk 99": func(c *wire.Conn) { _ = c.Write(wire.TypeAck, 0, 0, wire.Ack{Object: 1, Chunk: 99}.Append(nil)) },
		"an ERROR":           func(c *wire.Conn) { _ = c.Write(wire.TypeError, 0, 0, wire.Error{Code: 5}.Append(nil)) },
		"a CHUNKS":           func(c *wire.Conn) { _ = c.Write(wire.TypeDone, 0, 0, nil) },
		"nothing more":       func(c *wire.Conn) { _ = c.Close() },
		"ACKs of nothing": func(c *wire.Conn) {
			for c.Write(wire.TypeAck, 0, 0, wire.Ack{Object: 1}.Append(nil)) == nil {
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pair(t)
			c, err := wire.NewConn(b)
			require.NoError(t, err)
			sent := make(chan error, 1)
			go func() { sent <- errors.Join(Send(boundedContext(t), a, g), a.Close()) }()
			require.NoError(t, c.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: 1}.Append(nil)))
			f, err := c.Read()
			require.NoError(t, err)
			require.Equal(t, wire.TypeHello, f.Type)
			say(c)
			err = <-sent
			require.Error(t, err)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
		})
	}
}

// TestHostilePageValues: whatever is written to a page, Len lies within what is
// mapped and does not go back, and Queued lies within Max.
func TestHostilePageValues(t *testing.T) {
	t.Parallel()
	dev := vmmtest.Device(t)
	k, far := newHostileOwner(t)
	v := viewOfTwoChunks(t, k, far, dev, AttachOptions{})
	old := v.Snapshot()
	for _, n := range []uint64{0, 1, piecesize - 1, piecesize} {
		k.done(n)
		require.Equal(t, uint64(piecesize), v.Len(), "done is %d", n)
	}
	b, err := v.Host()
	require.NoError(t, err)
	require.Len(t, b, piecesize)
	word(k.page, atQueued).Store(math.MaxUint64)
	require.Equal(t, v.Max(), v.Queued())
	word(k.page, atQueued).Store(0)
	require.Equal(t, v.Len(), v.Queued())
	k.done(math.MaxUint64)
	require.Equal(t, uint64(2*piecesize), v.Len())
	for _, g := range []uint64{0, 2, 4, 1 << 63, math.MaxUint64} { // no RETIRE says so
		word(k.page, atGeneration).Store(g)
		k.done(1)
		require.Equal(t, uint64(2*piecesize), v.Len())
		require.False(t, v.Valid(old))
		require.Equal(t, uint64(3), v.Generation())
	}
	for i := 64; i < pageBytes; i += 8 {
		word(k.page, i).Store(math.MaxUint64)
	}
	word(k.page, atMagic).Store(0)
	require.Equal(t, uint64(2*piecesize), v.Len())
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, v.Wait(ctx, v.Max()), context.DeadlineExceeded)
	require.Equal(t, make([]byte, 10), read(t, v, 10))

	// A retirement to the last of all generations is one like any other.
	k.send(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: math.MaxUint64, Capacity: piecesize}.Append(nil))
	k.expect(wire.TypeAck)
	require.Equal(t, uint64(piecesize), v.Len())
	require.Equal(t, uint64(math.MaxUint64), v.Generation())
	k.send(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 0}.Append(nil))
	require.ErrorIs(t, waitDetached(t, v), ErrProtocol)
	closeView(t, v)
}

// TestReaderDoesNotSpin: an owner that writes to the page and wakes without end
// costs a reader that waits little of a processor, also where each wake brings
// a byte.
func TestReaderDoesNotSpin(t *testing.T) {
	for name, step := range map[string]uint64{"for nothing": 0, "for a byte": 1} {
		t.Run(name, func(t *testing.T) {
			dev := vmmtest.Device(t)
			k, far := newHostileOwner(t)
			v := viewOfTwoChunks(t, k, far, dev, AttachOptions{})
			ctx, cancel := context.WithCancel(t.Context())
			got := make(chan error, 1)
			go func() { got <- v.Wait(ctx, v.Max()) }()
			begun, before := time.Now(), v.counts.wakes.Load()
			span := testgate.Effort[time.Duration](50, 400, 400) * time.Millisecond
			n := uint64(piecesize)
			for end := time.Now().Add(span); time.Now().Before(end); {
				for range 20 {
					n += step
					k.done(n)
				}
			}
			took, looks := time.Since(begun), v.counts.wakes.Load()-before
			// So many looks take a pause at least, and each is short.
			require.LessOrEqual(t, looks, uint64(took/watchPause+2)*(watchBurst+2))
			t.Logf("%d looks in %v", looks, took)
			cancel()
			require.ErrorIs(t, <-got, context.Canceled)
		})
	}
}

// TestRetireWhileReading: an owner that takes memory away and brings it back as
// fast as it can never makes a read fault.
func TestRetireWhileReading(t *testing.T) {
	dev := vmmtest.Device(t)
	k, far := newHostileOwner(t)
	v := viewOfTwoChunks(t, k, far, dev, AttachOptions{})
	var readers sync.WaitGroup
	stop := make(chan struct{})
	readers.Go(func() { // one, so that a processor is left to the owner
		b := make([]byte, 64<<10)
		for {
			select {
			case <-stop:
				return
			default:
			}
			n, err := v.ReadAt(b, int64(v.Len()/2))
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, vmm.ErrBounds) {
				t.Errorf("%d bytes: %v", n, err)
			}
			v.Valid(v.Snapshot())
			v.Queued()
			if runtime.GOMAXPROCS(0) == 1 { // else only the clock takes the processor away from here
				<-time.After(time.Microsecond)
			}
		}
	})
	id := uint64(2)
	for i := range uint64(100) {
		k.o.Generation = 4 + i
		word(k.page, atGeneration).Store(k.o.Generation)
		k.done(2 * piecesize)
		k.send(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: k.o.Generation, Capacity: i % 2 * piecesize}.Append(nil))
		k.expect(wire.TypeAck)
		c := k.records(int(i%2), int(2-i%2))
		for j := range c.Records {
			id++
			c.Records[j].ID = id
		}
		fds := make([]int, len(c.Records))
		for j := range fds {
			fds[j] = memory(t, piecesize, firm)
		}
		k.send(wire.TypeChunks, 0, c.Append(nil), fds...)
		k.expect(wire.TypeAck)
	}
	close(stop)
	readers.Wait()
	require.NoError(t, v.Err())
	closeView(t, v)
}

// TestOwnerNeverReads: an owner that sends and takes nothing, and one that does
// nothing at all, keeps neither the view's goroutine nor Close.
func TestOwnerNeverReads(t *testing.T) {
	dev := vmmtest.Device(t)
	before := countResources(t, dev)
	t.Run("victim", func(t *testing.T) {
		k, far := newHostileOwner(t)
		v := viewOfTwoChunks(t, k, far, dev, AttachOptions{Timeout: 50 * time.Millisecond})
		fds := []int{memory(t, piecesize, firm), memory(t, piecesize, firm)}
		for k.c.Write(wire.TypeChunks, 0, 0, k.records(0, 2).Append(nil), fds...) == nil {
		}
		require.ErrorIs(t, waitDetached(t, v), os.ErrDeadlineExceeded)
		require.Equal(t, uint64(piecesize), v.Len())
		closeView(t, v)

		floods, far := newHostileOwner(t)
		v = viewOfTwoChunks(t, floods, far, dev, AttachOptions{Timeout: time.Hour})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for floods.c.Write(wire.TypeChunks, 0, 0, floods.records(0, 2).Append(nil), fds...) == nil {
			}
		}()
		waiting := make(chan error, 1)
		go func() { waiting <- v.Wait(t.Context(), v.Max()) }()
		closeView(t, v)
		require.ErrorIs(t, <-waiting, vmm.ErrClosed)
		<-ended
		k, far = newHostileOwner(t)
		v = viewOfTwoChunks(t, k, far, dev, AttachOptions{Timeout: time.Hour})
		closeView(t, v)
	})
	waitReleased(t, dev, before)
}

// TestViewsBesideTheirOwner: views in the process, and on the device, of their
// owner are readers like any others.
func TestViewsBesideTheirOwner(t *testing.T) {
	s, p, g := stage(t, Options{}, PublishOptions{})
	before := countResources(t, g.Device())
	want := pattern(0, 9<<20)
	require.NoError(t, g.Append(want))
	var views []*View
	for range 2 {
		v, err := Attach(t.Context(), s.Path(), "x", g.Device(), AttachOptions{})
		require.NoError(t, err)
		views = append(views, v)
		wait(t, v, uint64(len(want)))
		require.Equal(t, want, read(t, v, len(want)))
	}
	require.NoError(t, p.Retire(boundedContext(t), 3<<20))
	require.NoError(t, g.Clip())
	require.NoError(t, g.Append(pattern(1, 4<<20)))
	for _, v := range views {
		wait(t, v, 7<<20)
		require.Equal(t, append(pattern(0, 3<<20), pattern(1, 4<<20)...), read(t, v, 7<<20))
	}
	closeView(t, views[0])
	require.NoError(t, p.Seal(boundedContext(t), SealOptions{}))
	require.NoError(t, s.Close())
	require.Equal(t, append(pattern(0, 3<<20), pattern(1, 4<<20)...), read(t, views[1], 7<<20))
	require.NoError(t, g.Close())
	require.Equal(t, append(pattern(0, 3<<20), pattern(1, 4<<20)...), read(t, views[1], 7<<20))
	closeView(t, views[1])
	now := countResources(t, g.Device())
	require.GreaterOrEqual(t, now.free, before.free)
}

// TestWithoutSeals is the negative control of what Import and openPage ask of a
// file: memory that is mapped without it ends the process when its owner
// shrinks it.
func TestWithoutSeals(t *testing.T) {
	const env = "SHAREABLE_TEST_WITHOUT_SEALS"
	if os.Getenv(env) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestWithoutSeals$")
		cmd.Env = append(os.Environ(), env+"=1")
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		require.ErrorAs(t, err, &exit, "%s", out)
		require.Contains(t, string(out), "SIGBUS")
		return
	}
	fd := memory(t, pageBytes, 0)
	b, err := unix.Mmap(fd, 0, pageBytes, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	p := &readerPage{b: b}
	require.Zero(t, p.published())
	require.NoError(t, syscall.Ftruncate(fd, 0))
	t.Log(p.published())
}
