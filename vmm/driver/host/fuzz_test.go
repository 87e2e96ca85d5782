//go:build linux

package host

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/stretchr/testify/require"
)

// world is the model with which FuzzCalls compares the driver: the state of one
// reservation after some calls.
type world struct {
	alive  [3]bool          // by handle
	at     [8]int           // by page: which handle is mapped there, -1 for none
	access [8]driver.Access // by page, of device 0
	bytes  [3][]byte        // by handle
	h      [3]driver.Handle // what Create returned last
}

// mapped reports whether pages [i, j) are all mapped, with that access at least.
func (w *world) mapped(i, j int, need driver.Access) bool {
	for k := i; k < j; k++ {
		if w.at[k] < 0 || w.access[k] < need {
			return false
		}
	}
	return true
}

// FuzzCalls makes calls, right and wrong ones, and compares each result and the
// bytes with a model. At the end everything can be freed and nothing is
// left. Three bytes are one call: which, and two arguments.
func FuzzCalls(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x02\x00\x00\x04\x00\x12\x05\x00\x07\x06\x00\x01\x03\x00\x01\x01\x00\x00"))
	f.Add([]byte("\x00\x01\x00\x02\x01\x01\x02\x02\x01\x02\x03\x01\x04\x01\x23\x05\x01\x09\x01\x01\x00\x06\x03\x01\x03\x01\x03"))
	f.Add([]byte("\x00\x02\x00\x02\x07\x02\x04\x07\x11\x04\x07\x10\x05\x07\x01\x02\x07\x02\x03\x07\x02\x01\x02\x00\x01\x02\x00"))
	f.Fuzz(func(t *testing.T, calls []byte) {
		d := New(Config{Memory: 16 * mib, Granularity: 4096})
		v, err := d.Open(0)
		require.NoError(t, err)
		page := d.granularity
		var w world
		p := reserved(t, d, uint64(len(w.at))*page)
		addr := func(i int) driver.Ptr { return p + driver.Ptr(uint64(i)*page) }
		for i := range w.at {
			w.at[i] = -1
		}
		for n := 0; len(calls) >= 3 && n < 200; n++ {
			which, a, b := calls[0]%7, int(calls[1]), int(calls[2])
			calls = calls[3:]
			h, i := a%len(w.h), a%len(w.at)
			j := min(i+1+b%3, len(w.at)) // of a span of pages
			var ok bool
			var err error
			switch which {
			case 0: // create
				if ok = !w.alive[h] && !slices.Contains(w.at[:], h); !ok {
					continue
				}
				w.h[h], err = d.Create(page, home)
				w.alive[h], w.bytes[h] = true, make([]byte, page)
			case 1: // release
				ok, err = w.alive[h], d.Release(w.h[h])
				w.alive[h] = false
			case 2: // map
				h = b % len(w.h)
				ok, err = w.alive[h] && w.at[i] < 0, d.Map(addr(i), page, w.h[h])
				if ok {
					w.at[i], w.access[i] = h, driver.AccessNone
				}
			case 3: // unmap
				ok, err = w.mapped(i, j, driver.AccessNone), d.Unmap(addr(i), uint64(j-i)*page)
				for k := i; ok && k < j; k++ {
					w.at[k] = -1
				}
			case 4: // set access
				level := driver.Access(b >> 4 % 3)
				ok, err = w.mapped(i, j, driver.AccessNone), d.SetAccess(addr(i), uint64(j-i)*page, grant(0, level))
				for k := i; ok && k < j; k++ {
					w.access[k] = level
				}
			case 5: // write across two pages, if there is a second one
				src := bytes.Repeat([]byte{byte(b)}, int(page))
				half := int(page / 2)
				j = min(i+2, len(w.at))
				ok = i+2 <= len(w.at) && w.mapped(i, j, driver.AccessReadWrite)
				err = v.CopyIn(addr(i)+driver.Ptr(half), src)
				if ok {
					copy(w.bytes[w.at[i]][half:], src)
					copy(w.bytes[w.at[i+1]][:half], src)
				}
			case 6: // read
				got := make([]byte, page)
				ok, err = w.mapped(i, i+1, driver.AccessRead), v.CopyOut(got, addr(i))
				if ok {
					require.True(t, bytes.Equal(w.bytes[w.at[i]], got), "page %d", i)
				}
			}
			if ok {
				require.NoError(t, err, "call %d of %d, %d", which, a, b)
			} else {
				var call *driver.CallError
				require.True(t, errors.As(err, &call), "call %d of %d, %d: %v", which, a, b, err)
				require.ErrorIs(t, err, driver.ErrInvalid)
			}
		}
		require.Equal(t, inside(t, p, uint64(len(w.at))*page), d.mappings)
		for i := range w.at {
			if w.at[i] >= 0 {
				require.NoError(t, d.Unmap(addr(i), page))
			}
		}
		for h := range w.h {
			if w.alive[h] {
				require.NoError(t, d.Release(w.h[h]))
			}
		}
		require.NoError(t, d.Free(p, uint64(len(w.at))*page))
		require.NoError(t, v.Close())
		require.Zero(t, d.mappings)
		require.Zero(t, d.states[0].used)
		require.Empty(t, d.created)
	})
}
