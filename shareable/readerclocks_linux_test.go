package shareable

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

const smallChunk = 4096

// smallOwnerOf publishes "x", which has n chunks of a page.
func smallOwnerOf(t *testing.T, n int, o Options) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	s, p, g := smallOwner(t, o, smallChunk, 4<<20)
	require.NoError(t, g.Append(pattern(0, n*smallChunk)))
	require.NoError(t, p.Flush(t.Context()))
	return s, p, g
}

// again sends a RESYNC from the first chunk on.
func again(o uint64) []byte { return wire.Resync{Object: o, Batch: wire.MaxFDs}.Append(nil) }

// TestUnreadFrames: whatever a reader does that does not read, at most two frames of
// chunks lie in its connection. When it reads, it gets all of them.
func TestUnreadFrames(t *testing.T) {
	t.Parallel()
	const chunks = 256
	attach := func(e *hostileClient, name string) {
		require.NoError(e.t, e.send(wire.TypeAttach, wire.Attach{Access: wire.AccessRead, Name: name}.Append(nil)))
	}
	for name, do := range map[string]func(t *testing.T, e *hostileClient, p *Publication){
		"RESYNC": func(t *testing.T, e *hostileClient, p *Publication) {
			attach(e, "x")
			for range testgate.Effort(8, 60, 60) {
				require.NoError(t, e.send(wire.TypeResync, again(p.id)))
				<-time.After(2 * time.Millisecond)
			}
		},
		"ACK": func(t *testing.T, e *hostileClient, p *Publication) {
			attach(e, "x")
			for range testgate.Effort(8, 60, 60) {
				p.mu.Lock()
				var last uint64
				for a := range p.attachments {
					last = a.sentID
				}
				p.mu.Unlock()
				require.NoError(t, e.send(wire.TypeAck, wire.Ack{Object: p.id, Chunk: last}.Append(nil)))
				<-time.After(2 * time.Millisecond)
			}
		},
		"many objects": func(t *testing.T, e *hostileClient, p *Publication) {
			for i := range 20 {
				more, err := p.srv.Publish(fmt.Sprint("more", i), p.r, PublishOptions{})
				require.NoError(t, err)
				defer func() { require.NoError(t, more.Close()) }()
				require.NoError(t, more.Flush(t.Context()))
				attach(e, more.Name())
			}
			attach(e, "x")
			require.Never(t, func() bool { return p.srv.Stats().Frames > 2 }, 100*time.Millisecond, 10*time.Millisecond)
		},
		"generations": func(t *testing.T, e *hostileClient, p *Publication) {
			attach(e, "x")
			for i := range 20 {
				require.NoError(t, p.r.Grow(uint64(chunks+64*(1+i%2))*smallChunk))
				require.NoError(t, p.Flush(t.Context()))
				require.NoError(t, p.r.Clip())
				require.NoError(t, p.Flush(t.Context()))
				<-time.After(2 * time.Millisecond)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, p, _ := smallOwnerOf(t, chunks, Options{AckTimeout: time.Hour, RequestTimeout: time.Hour})
			e := rawConn(t, s.Path())
			e.hello()
			do(t, e, p)
			require.LessOrEqual(t, s.Stats().Frames, uint64(2))
			// It reads now.
			last, generation := uint64(0), uint64(0)
			for last < chunks {
				f, ok := e.read()
				require.True(t, ok)
				ack := wire.Ack{Generation: generation}
				switch f.Type {
				case wire.TypeRetire:
					m, err := wire.DecodeRetire(f.Payload)
					require.NoError(t, err)
					generation = m.Generation
					ack = wire.Ack{Object: m.Object, Chunk: last, Generation: generation}
				case wire.TypeChunks:
					m, err := wire.DecodeChunks(f.Payload)
					require.NoError(t, err)
					ack = wire.Ack{Object: m.Object, Chunk: m.Records[len(m.Records)-1].ID, Generation: m.Generation}
					if m.Object == p.id {
						last = max(last, ack.Chunk)
					}
				default:
					continue
				}
				require.NoError(t, e.send(wire.TypeAck, ack.Append(nil)))
			}
		})
	}
}

// TestRetireOneGenerationAtATime: a reader that acknowledges each generation at the last
// moment keeps no Retire waiting for longer than twice its time.
func TestRetireOneGenerationAtATime(t *testing.T) {
	t.Parallel()
	const limit, generations = 300 * time.Millisecond, 20
	s, p, g := smallOwnerOf(t, 4, Options{AckTimeout: limit})
	e := rawConn(t, s.Path())
	e.hello()
	o := e.attach("x")
	f, _ := e.read()
	require.Equal(t, wire.TypeChunks, f.Type)
	require.NoError(t, e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 4}.Append(nil)))
	for range generations {
		require.NoError(t, g.Grow(8*smallChunk))
		require.NoError(t, p.Flush(t.Context()))
		require.NoError(t, g.Clip())
		require.NoError(t, p.Flush(t.Context()))
	}
	require.GreaterOrEqual(t, p.Generation(), uint64(generations))
	retired := make(chan error, 1)
	go func() { retired <- p.Retire(t.Context(), smallChunk) }()
	begun := time.Now()
	acked := 0
	for done := false; !done; {
		select {
		case err := <-retired:
			require.NoError(t, err)
			done = true
		case <-time.After(limit * 3 / 4):
			acked++
			_ = e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 4, Generation: uint64(acked)}.Append(nil))
		}
	}
	t.Logf("Retire returned after %v, %d of %d acknowledged", time.Since(begun), acked, p.Generation())
	require.LessOrEqual(t, acked, 6)
	soon(t, "that is counted", func() bool { return s.Stats().TimedOut == 1 })
}

// TestStreamOfGenerations: a reader that takes its time for each of them is not cut off,
// and has one RETIRE to apply at a time.
func TestStreamOfGenerations(t *testing.T) {
	t.Parallel()
	const limit, generations = time.Second, 15
	s, p, g := smallOwnerOf(t, 4, Options{AckTimeout: limit})
	r := attachPlain(t, s.Path(), "x")
	r.until(4 * smallChunk)
	r.lazy = true
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for !isClosed(stop) {
			if err := errors.Join(g.Grow(8*smallChunk), p.Flush(t.Context()), g.Clip(), p.Flush(t.Context())); err != nil {
				stopped <- err
				return
			}
			<-time.After(limit / 200)
		}
		stopped <- nil
	}()
	for range generations {
		for r.step() != wire.TypeRetire {
		}
		applied := r.tracker.Generation()
		<-time.After(limit / 10) // less than the limit, and for all of them together more
		p.mu.Lock()
		for a := range p.attachments {
			require.Equal(t, applied, a.sentGeneration)
		}
		p.mu.Unlock()
		r.ack()
	}
	close(stop)
	require.NoError(t, <-stopped)
	r.lazy = false
	require.NoError(t, g.Append(pattern(4*smallChunk, 8*smallChunk)))
	require.Equal(t, pattern(0, 12*smallChunk), r.until(12*smallChunk))
	require.Zero(t, s.Stats().TimedOut)
	require.Equal(t, 1, p.Readers())
}

// TestOldAcknowledgements: to ask again for chunks that are acknowledged, and to
// acknowledge them again, wins a reader no time for those that are not.
func TestOldAcknowledgements(t *testing.T) {
	t.Parallel()
	s, p, _ := smallOwnerOf(t, 128, Options{AckTimeout: 300 * time.Millisecond})
	e := rawConn(t, s.Path())
	e.hello()
	o := e.attach("x")
	reads := make(chan struct{})
	go func() { // so that it is not cut off for that
		defer close(reads)
		for _, ok := e.read(); ok; _, ok = e.read() {
		}
	}()
	soon(t, "a reader is there", func() bool { return p.Readers() == 1 })
	for i := 0; p.Readers() > 0; i++ {
		require.Less(t, i, 200)
		_ = e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: min(64, s.Stats().Frames*64)}.Append(nil))
		_ = e.send(wire.TypeResync, again(o.ID))
		<-time.After(50 * time.Millisecond)
	}
	soon(t, "that is counted", func() bool { return s.Stats().TimedOut == 1 })
	<-reads
}

// TestChunksThatWaitForOthers: chunks may have to wait until the reader reads those of
// another object. It then has its whole time for them.
func TestChunksThatWaitForOthers(t *testing.T) {
	t.Parallel()
	s, x, _ := smallOwnerOf(t, wire.MaxFDs, Options{AckTimeout: time.Hour})
	r, err := x.r.Device().NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Chunk: smallChunk, Max: 2 * smallChunk})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close()) }()
	y, err := s.Publish("y", r, PublishOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, y.Close()) }()
	since := func() (at time.Time) {
		y.mu.Lock()
		defer y.mu.Unlock()
		for a := range y.attachments {
			at = a.chunksClock.since
		}
		return at
	}

	e := rawConn(t, s.Path())
	e.hello()
	o := e.attach("y")
	require.NoError(t, r.Append(pattern(0, smallChunk)))
	f, _ := e.read()
	require.Equal(t, wire.TypeChunks, f.Type)
	require.NoError(t, e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 1}.Append(nil)))
	soon(t, "all of y is acknowledged", func() bool { return since().IsZero() })

	// For the owner, two frames of chunks may lie unread now: it cannot know whether the
	// first of them has been read.
	require.NoError(t, e.send(wire.TypeAttach, wire.Attach{Access: wire.AccessRead, Name: "x"}.Append(nil)))
	soon(t, "chunks of x are sent", func() bool { return s.Stats().Frames == 2 })
	require.NoError(t, r.Append(pattern(smallChunk, smallChunk)))
	soon(t, "y waits for them", func() bool { return !since().IsZero() })
	begun := time.Now()
	for range 2 { // OBJECT and CHUNKS
		_, ok := e.read()
		require.True(t, ok)
	}
	soon(t, "the chunk of y is sent", func() bool { return s.Stats().Frames == 3 })
	require.True(t, since().After(begun))
}

// TestSendIsBounded: a receiver cannot keep Send waiting by what it says.
func TestSendIsBounded(t *testing.T) {
	t.Parallel()
	const limit = 200 * time.Millisecond
	_, _, g := smallOwnerOf(t, 200, Options{})
	type receiver struct {
		*wire.Conn
		object uint64
		chunks chan uint64     // the last chunk of each frame
		ended  <-chan struct{} // closed when nothing more is sent
	}
	ack := func(r receiver, chunk uint64) error {
		return r.Write(wire.TypeAck, 0, 0, wire.Ack{Object: r.object, Chunk: chunk}.Append(nil))
	}
	resync := func(r receiver) error { return r.Write(wire.TypeResync, 0, 0, again(r.object)) }
	for name, c := range map[string]struct {
		works  bool
		unread bool
		each   func(r receiver, i int) error
	}{
		"RESYNC and an old ACK": {each: func(r receiver, _ int) error {
			if err := resync(r); err != nil {
				return err
			}
			return ack(r, 64)
		}},
		"RESYNC, all acknowledged": {works: true, each: func(r receiver, _ int) error {
			for last := uint64(0); last < 200; {
				select {
				case last = <-r.chunks:
				case <-r.ended:
					return nil
				}
				if err := ack(r, last); err != nil {
					return err
				}
			}
			return resync(r)
		}},
		"DETACH and LIST": {each: func(r receiver, i int) error {
			if i == 0 {
				return r.Write(wire.TypeDetach, 3, 0, wire.Detach{Object: r.object}.Append(nil))
			}
			return r.Write(wire.TypeList, uint32(4+i), 0, wire.List{}.Append(nil))
		}},
		"LIST": {each: func(r receiver, i int) error {
			return r.Write(wire.TypeList, uint32(4+i), 0, wire.List{}.Append(nil))
		}},
		"nothing is read": {unread: true, each: func(r receiver, i int) error {
			return ack(r, min(64*uint64(1+i%2), 128))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, b := pair(t)
			conn, err := wire.NewConn(b)
			require.NoError(t, err)
			ended := make(chan struct{})
			r := receiver{Conn: conn, chunks: make(chan uint64, 1000), ended: ended}
			ctx, cancel := context.WithTimeout(t.Context(), inTime)
			defer cancel()
			o := Options{AckTimeout: limit}
			if c.works {
				o.AckTimeout = inTime
			}
			go func() {
				defer close(ended)
				err = send(ctx, a, g, o)
			}()
			require.NoError(t, r.Write(wire.TypeHello, 0, 0, wire.Hello{Backend: 1}.Append(nil)))
			for _, of := range []wire.Type{wire.TypeHello, wire.TypeObject} {
				f, err := r.Read()
				require.NoError(t, err)
				require.Equal(t, of, f.Type)
				if of == wire.TypeObject {
					o, err := wire.DecodeObject(f.Payload)
					require.NoError(t, err)
					r.object = o.ID
				}
				require.NoError(t, f.Close())
			}
			reads := make(chan struct{})
			go func() {
				defer close(reads)
				for !c.unread {
					f, err := r.Read()
					if err != nil {
						return
					}
					if m, err := wire.DecodeChunks(f.Payload); f.Type == wire.TypeChunks && err == nil {
						select {
						case r.chunks <- m.Records[len(m.Records)-1].ID:
						default: // it reads on all the same
						}
					}
					_ = f.Close()
				}
			}()
			<-time.After(limit / 4) // what can be sent at once is
			for i, done := 0, false; !done; i++ {
				_ = c.each(r, i)
				select {
				case <-ended:
					done = true
				case <-time.After(limit / 4):
				}
			}
			if c.works {
				require.NoError(t, err)
			} else {
				require.Error(t, err)
				require.NotErrorIs(t, err, context.DeadlineExceeded)
			}
			require.NoError(t, a.Close())
			require.NoError(t, r.Close())
			<-reads
		})
	}
}

// TestNothingAfterDone: no frame of the object follows the reply to DETACH, also if
// chunks were being exported meanwhile.
func TestNothingAfterDone(t *testing.T) {
	t.Parallel()
	exports, goOn := make(chan struct{}, 100), make(chan struct{})
	s, _, g := hookedOwner(t, Options{KeepFDs: -1}, vmm.ShareFD, func(*vmm.Range) error {
		exports <- struct{}{}
		<-goOn
		return nil
	})
	require.NoError(t, g.Append(pattern(0, 5<<20)))
	e := rawConn(t, s.Path())
	e.hello()
	require.NoError(t, e.send(wire.TypeAttach, wire.Attach{Access: wire.AccessRead, Name: "x"}.Append(nil)))
	f, _ := e.read()
	require.Equal(t, wire.TypeObject, f.Type)
	o, err := wire.DecodeObject(f.Payload)
	require.NoError(t, err)
	<-exports
	require.NoError(t, e.send(wire.TypeDetach, wire.Detach{Object: o.ID}.Append(nil)))
	f, _ = e.read()
	require.Equal(t, wire.TypeDone, f.Type)
	close(goOn)
	soon(t, "the export has ended", func() bool { return s.Stats().KeptFDs == 0 })
	require.NoError(t, e.send(wire.TypeList, wire.List{}.Append(nil)))
	f, _ = e.read()
	require.Equal(t, wire.TypeListed, f.Type)
}

// TestPauseOfTheOwner: a pause of the owner, as of all processes, takes a reader nothing of its time.
func TestPauseOfTheOwner(t *testing.T) {
	t.Parallel()
	const limit = 2 * time.Second // to read, to write and to acknowledge, beside other tests
	path := socketAt(t)
	owner := spawn(t, "owner", path, limit.String())
	owner.expect("ready")
	e := rawConn(t, path)
	e.hello()
	o := e.attach("x")
	owner.tell("append", 1)
	owner.expect("published")
	f, _ := e.read()
	require.Equal(t, wire.TypeChunks, f.Type)
	require.NoError(t, syscall.Kill(owner.cmd.Process.Pid, syscall.SIGSTOP))
	<-time.After(limit * 5 / 4)
	require.NoError(t, syscall.Kill(owner.cmd.Process.Pid, syscall.SIGCONT))
	owner.tell("append", 1) // it runs again
	owner.expect("published")
	require.NoError(t, e.send(wire.TypeAck, wire.Ack{Object: o.ID, Chunk: 1}.Append(nil)))
	require.NoError(t, e.send(wire.TypeDetach, wire.Detach{Object: o.ID}.Append(nil)))
	f, _ = e.read()
	require.Equal(t, wire.TypeDone, f.Type)
}
