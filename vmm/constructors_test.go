package vmm_test

import (
	"errors"
	"io"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// constructors make something of a device that has a stream and a range of two pages.
func constructors(w *world, s *vmm.Stream, g *vmm.Range) map[string]func() (io.Closer, error) {
	d := w.devs[0]
	return map[string]func() (io.Closer, error){
		"Create":      func() (io.Closer, error) { return d.Create(page, vmm.Prop{}) },
		"Reserve":     func() (io.Closer, error) { return d.Reserve(page, vmm.ReserveOptions{}) },
		"NewRange":    func() (io.Closer, error) { return d.NewRange(vmm.RangeOptions{Max: page}) },
		"Alloc":       func() (io.Closer, error) { return d.Alloc(3 * page) },
		"NewStream":   func() (io.Closer, error) { return d.NewStream() },
		"NewEvent":    func() (io.Closer, error) { return d.NewEvent(0) },
		"Record":      func() (io.Closer, error) { return s.Record() },
		"NewMirror":   func() (io.Closer, error) { return d.NewMirror(g.Ptr(), page, vmm.MirrorOptions{Init: true}) },
		"AllocPinned": func() (io.Closer, error) { return d.AllocPinned(page) },
		"LoadModule": func() (io.Closer, error) {
			m, _, err := d.LoadModule(addCode())
			return m, err
		},
		"Instantiate": func() (io.Closer, error) {
			if err := s.BeginCapture(); err != nil {
				return nil, err
			}
			err := s.Fill(g.Ptr(), 1, 1, page)
			graph, ended := s.EndCapture()
			if err = errors.Join(err, ended); err != nil {
				return graph, err
			}
			x, err := graph.Instantiate()
			return both{x, graph}, err
		},
		"LoadBuiltins": func() (io.Closer, error) { return kernel.LoadBuiltins(d) },
		"Vector": func() (io.Closer, error) {
			v, err := growable.New[int32](d, growable.Options{MaxLen: 100})
			if err == nil {
				err = v.Append(1, 2, 3)
			}
			return v, err
		},
		"Pool": func() (io.Closer, error) {
			p, err := pool.New(d, pool.Options{})
			if err != nil {
				return p, err
			}
			b, err := p.Alloc(s, page)
			if err == nil {
				err = p.Free(s, b)
			}
			return p, err
		},
		"DriverPool": func() (io.Closer, error) { return pool.NewDriver(d, pool.Options{}) },
	}
}

// both closes two things.
type both struct{ first, second io.Closer }

func (b both) Close() error { return errors.Join(b.first.Close(), b.second.Close()) }

// TestConstructorsThatFail fails each call and each two calls of constructors, of closing what they
// made and of closing the device; and all calls of a constructor from each one on. What a caller
// has got it closes until that succeeds; nothing else is needed for the device to close, and
// nothing is left.
func TestConstructorsThatFail(t *testing.T) {
	names := newWorld(t, 1)
	keep := stream(t, names.devs[0]) // the context stays, which takes long to make
	for name := range constructors(names, nil, nil) {
		t.Run(name, func(t *testing.T) {
			if !onCUDA {
				t.Parallel()
			}
			all := make([]int, 500)
			for i := range all {
				all[i] = i + 1
			}
			faults(t, func(t *testing.T, at ...int) []string {
				if len(at) == 1 {
					constructAndClose(t, name, true, all[at[0]-1:])
				}
				return constructAndClose(t, name, false, at)
			})
		})
	}
	if !onCUDA {
		return // its subtests are still to run
	}
	require.NoError(t, keep.Close())
	names.end()
}

// constructAndClose has the calls with the numbers of at fail; until says that they do so only
// until the constructor returns.
func constructAndClose(t *testing.T, name string, until bool, at []int) (calls []string) {
	w := newWorld(t, 1)
	d, s := w.devs[0], stream(t, w.devs[0])
	g := ranged(t, w, 2*page)
	construct := constructors(w, s, g)[name]
	w.arm(at...)
	x, err := construct()
	if until {
		w.disarm()
	}
	closes := func(what string, c io.Closer) {
		var refused error
		for range 4 {
			if refused = c.Close(); refused == nil {
				return
			}
		}
		t.Errorf("calls from %v on fail, and the constructor with %v: closing %s: %v", at[:min(2, len(at))], err, what, refused)
	}
	for range 4 { // an EndCapture that failed may have left a capture
		if graph, err := s.EndCapture(); err == nil {
			closes("the graph", graph)
		}
	}
	if x != nil && !reflect.ValueOf(x).IsZero() {
		closes("what was made", x)
	}
	closes("the stream", s)
	closes("the range", g)
	closes("the device", d)
	calls = w.disarm()
	w.end()
	return calls
}
