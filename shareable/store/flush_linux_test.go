package store

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// endUnheard ends the lease of an object at what is published, and its writer does not hear of that.
func endUnheard(s *Server, name string) {
	s.mu.Lock()
	e := s.byName[name]
	conn := e.lease
	s.mu.Unlock()
	s.endLease(e, conn, leaseEnd{runs: &process{}})
}

// Neither Flush nor Close of a Writer returns nil for bytes that do not count, where nothing has told it
// that its lease has ended. The negative control does not ask the server.
func TestFlushAsks(t *testing.T) {
	t.Parallel()
	for _, control := range []bool{false, true} {
		for _, flush := range []bool{false, true} {
			t.Run(fmt.Sprintf("control=%v flush=%v", control, flush), func(t *testing.T) {
				s := listening(t, Options{})
				c := clientOf(t, s)
				mine, err := Connect(t.Context(), s.Path(), vmmtest.Device(t), ClientOptions{unasked: control})
				require.NoError(t, err)
				defer func() { require.NoError(t, mine.Close()) }()
				w, err := mine.Create(t.Context(), "x", CreateOptions{Size: 1 << 20, Durable: true})
				require.NoError(t, err)
				require.NoError(t, w.Append([]byte("hello")))
				require.NoError(t, w.Flush(within(t)))
				endUnheard(s, "x")
				require.NoError(t, w.Append([]byte(" lost")))
				switch {
				case control:
					require.NoError(t, w.Flush(within(t)))
				case flush:
					require.ErrorIs(t, w.Flush(within(t)), shareable.ErrOwnerGone)
					require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
					require.Error(t, w.Append([]byte("x")))
				}
				require.Error(t, w.Close())
				require.NoError(t, w.Close()) // nothing is left to be done
				next, err := c.OpenAppend(t.Context(), "x", CreateOptions{Size: 1 << 20})
				require.NoError(t, err)
				require.EqualValues(t, 5, next.Len())
				require.NoError(t, next.Close())
			})
		}
	}
}

// A Writer that has lost its lease, and has written nothing since a Flush, has lost nothing.
func TestCloseOfWhatCounts(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	w := writer(t, clientOf(t, s), "x", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Append([]byte("hello")))
	require.NoError(t, w.Flush(within(t)))
	endUnheard(s, "x")
	require.ErrorIs(t, w.Flush(within(t)), shareable.ErrOwnerGone)
	require.NoError(t, w.Close())
}

// A Flush whose question comes after a Seal has what it asks for, if it is in what was sealed.
func TestFlushBesideSeal(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	w := writer(t, clientOf(t, s), "x", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Append([]byte("hello")))
	n, err := w.publish(within(t))
	require.NoError(t, err)
	require.NoError(t, w.Seal(within(t), shareable.SealOptions{}))
	require.NoError(t, w.confirm(within(t), n))
	require.ErrorIs(t, w.confirm(within(t), n+1), shareable.ErrSealed)
	require.ErrorIs(t, w.Flush(within(t)), shareable.ErrSealed)
}

// A lease that is taken away while its Writer appends and flushes: what a Flush has returned for is the next
// Writer's, no object is refused to it, and a View shows no more than that, or says so.
func TestRevokedWhileItFlushes(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	c := clientOf(t, s)
	rounds := testgate.Effort(8, 40, 400)
	for i := range rounds {
		name := fmt.Sprint(i)
		w, err := clientOf(t, s).Create(t.Context(), name, CreateOptions{Size: 8 << 20, Durable: true})
		require.NoError(t, err)
		require.NoError(t, w.Append(make([]byte, 8)))
		require.NoError(t, w.Flush(within(t)))
		v := got(t, c, name, GetOptions{Unsafe: true})
		var flushed atomic.Uint64
		running := make(chan struct{})
		var tasks sync.WaitGroup
		tasks.Go(func() {
			for n := uint64(2); ; n++ {
				if w.Append(binary.LittleEndian.AppendUint64(nil, n)) != nil {
					return
				}
				if n%16 == 0 {
					if w.Flush(t.Context()) != nil {
						return
					}
					flushed.Store(8 * n)
					if n == uint64(16*(i%8+1)) {
						close(running)
					}
				}
			}
		})
		<-running
		require.NoError(t, c.Revoke(t.Context(), name))
		tasks.Wait()
		require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
		next, err := c.OpenAppend(t.Context(), name, CreateOptions{Size: 8 << 20})
		require.NoError(t, err)
		require.GreaterOrEqual(t, next.Len(), flushed.Load())
		<-endOf(v)
		require.LessOrEqual(t, v.Len(), next.Len())
		require.NoError(t, next.Close())
		_ = w.Close() // which may have lost something
	}
}

// endOf is closed once the View follows no longer.
func endOf(v *shareable.View) <-chan struct{} {
	over := make(chan struct{})
	go func() {
		defer close(over)
		for v.Err() == nil {
			<-v.Changed()
		}
	}()
	return over
}

// The server says how many bytes of an object count that is not written to any more, and not the page that a
// client gets.
func TestCopyHasWhatTheServerSays(t *testing.T) {
	t.Parallel()
	s := listening(t, Options{})
	w := writer(t, clientOf(t, s), "x", CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, w.Append([]byte("hello, and more")))
	require.NoError(t, w.Flush(within(t)))
	endUnheard(s, "x")
	var once sync.Once
	p := &tap{s: s, edit: func(frame []byte) {
		if h, err := wire.DecodeHeader(frame); err == nil && h.Type == wire.TypeObject { // the lease's is the first
			once.Do(func() { binary.LittleEndian.PutUint64(frame[wire.HeaderSize+24:], 1000) })
		}
	}}
	defer p.close()
	c, err := newClient(t.Context(), "", p.dial, vmmtest.Device(t), ClientOptions{})
	require.NoError(t, err)
	next, err := c.Append(t.Context(), "x", AppendOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1000, next.Len())
	require.NoError(t, next.Close())
	require.NoError(t, c.Close())
}
