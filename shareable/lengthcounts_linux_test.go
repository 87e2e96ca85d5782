package shareable

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/serve"
)

// beyondItsLease ends the lease of an object with one reader at 100 bytes, while its writer runs on and
// shows 300. The reader hears of it once late is called.
func beyondItsLease(t *testing.T, x *storedX, w serve.WriterPage) (late func()) {
	t.Helper()
	ses := sessionOf(t, x.s.srv)
	ses.sending.Lock()
	late = sync.OnceFunc(ses.sending.Unlock)
	t.Cleanup(late)
	x.EndLease()
	require.EqualValues(t, 100, x.length())
	w.Publish(300)
	x.Wrote()
	return late
}

// The server takes the length of a writer that runs on once: it, its readers and the next writer have the
// same one, whenever the writer publishes. The negative control reads the word a second time.
func TestLeaseEndsAtOneLength(t *testing.T) {
	t.Parallel()
	for _, control := range []bool{false, true} {
		for after := range 4 { // loads before the writer publishes
			t.Run(fmt.Sprintf("control=%v after=%d", control, after), func(t *testing.T) {
				o := Options{}
				o.hooks.readTwice = control
				s, x, w, v := written(t, o)
				loads := 0
				x.onLoad(func(at int) {
					if loads++; loads > after {
						w.Publish(100 + 8*uint64(loads))
					}
				})
				of := pageOf(v)
				x.EndLease()
				pageAfter(t, v, of)
				n := x.length()
				w.Publish(200) // which no one sees
				late := s.attach(AttachOptions{Unsealed: true}).Published()
				if control {
					require.Equal(t, 2, loads)
					require.Equal(t, after == 0, late != n)
					return
				}
				require.Equal(t, 1, loads)
				require.EqualValues(t, 100, n)
				require.Equal(t, n, v.Len()) // it may have seen more, and says so then
				require.Equal(t, n, late)
				x.lease()
				require.Equal(t, n, x.length())
				require.Equal(t, n, s.attach(AttachOptions{Unsealed: true}).Published())
			})
		}
	}
}

// A view that has seen bytes which do not count says so, also where the object goes at once: it hears
// what counts before it hears that.
func TestViewSeesTooMuch(t *testing.T) {
	t.Parallel()
	for _, closes := range []bool{false, true} {
		t.Run(fmt.Sprintf("closes=%v", closes), func(t *testing.T) {
			_, x, w, v := written(t, Options{})
			late := beyondItsLease(t, x, w)
			wait(t, v, 300)
			if closes {
				require.NoError(t, x.Close())
			}
			late()
			ctx, cancel := contextIn(t, patience)
			defer cancel()
			require.ErrorIs(t, v.Wait(ctx, v.Max()), ErrRetired)
			require.EqualValues(t, 100, v.Len())
			w.Publish(400)
			require.EqualValues(t, 100, v.Len())
		})
	}
}

// A server that has no descriptor for a page at the end of a lease sends it later. No reader keeps the
// writer's.
func TestLeaseEndsWithoutDescriptors(t *testing.T) {
	_, x, w, v := written(t, Options{})
	endsWithout := func() bool {
		of := pageOf(v)
		restore := sync.OnceFunc(leaveFDs(t, 0))
		defer restore()
		x.EndLease()
		o := x.own()
		o.mu.Lock()
		hasPage := o.page != nil
		o.mu.Unlock()
		restore()
		pageAfter(t, v, of)
		return !hasPage
	}
	for tries := 1; !endsWithout(); tries++ { // a descriptor of before was closed meanwhile: then the page fits
		require.Less(t, tries, 20)
		of := pageOf(v)
		w = x.lease()
		pageAfter(t, v, of)
	}
	w.Publish(200)
	require.EqualValues(t, 100, v.Len())
	require.NoError(t, v.Err())
	v2 := x.s.attach(AttachOptions{Unsealed: true})
	require.EqualValues(t, 100, v2.Published())
	of, of2 := pageOf(v), pageOf(v2)
	x.lease().Publish(200)
	pageAfter(t, v, of)
	pageAfter(t, v2, of2)
	wait(t, v, 200)
	wait(t, v2, 200)
}
