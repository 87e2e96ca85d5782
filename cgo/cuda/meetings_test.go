//go:build cgo && linux

package cuda_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/cuda"
	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// TestFakeSeesCallsMeet: the fake driver is as strict as a card, on which the process dies, about
// what runs beside a begin or an end of a capture. Each begin and end is held back while the other
// call runs. On another stream it may. The binding itself refuses to free a stream that a call
// uses, and to query one that is being captured.
func TestFakeSeesCallsMeet(t *testing.T) {
	const begin, end = "cuStreamBeginCapture_v2", "cuStreamEndCapture"
	type call func(v *cuda.Device, s driver.Stream, e driver.Event) error
	record := func(v *cuda.Device, s driver.Stream, e driver.Event) error { return v.Record(e, s) }
	query := func(v *cuda.Device, s driver.Stream, _ driver.Event) error {
		_, err := v.StreamDone(s)
		return err
	}
	wait := func(v *cuda.Device, _ driver.Stream, _ driver.Event) error { return v.Sync() }
	recordContext := func(v *cuda.Device, _ driver.Stream, e driver.Event) error { return v.RecordContext(e) }
	path := fakecuda.Build(t)
	fake := fakecuda.Open(t, path)
	for name, with := range map[string]struct {
		changes   string
		call      call
		same, met bool // of the same stream
	}{
		"record beside begin":        {begin, record, true, true},
		"record beside end":          {end, record, true, true},
		"query beside begin":         {begin, query, true, true},
		"wait beside begin":          {begin, wait, false, true},
		"wait beside end":            {end, wait, false, true},
		"context event beside begin": {begin, recordContext, false, true},
		"context event beside end":   {end, recordContext, false, true},
		"record elsewhere, of begin": {begin, record, false, false},
		"record elsewhere, of end":   {end, record, false, false},
		"query elsewhere, of begin":  {begin, query, false, false},
		"query elsewhere, of end":    {end, query, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			fake.Reset()
			d, err := cuda.Loaded(path)
			require.NoError(t, err)
			opened, err := d.Open(0)
			require.NoError(t, err)
			v := opened.(*cuda.Device)
			captured, err := v.NewStream()
			require.NoError(t, err)
			s, err := v.NewStream()
			require.NoError(t, err)
			e, err := v.NewEvent(0)
			require.NoError(t, err)
			change := func() error { return v.BeginCapture(captured, driver.CaptureRelaxed) }
			if with.changes == end {
				require.NoError(t, change())
				change = func() error { return endCapture(v, captured) }
			}
			held, resume := pause(t, fake, with.changes)
			changed := make(chan error, 1)
			go func() { changed <- change() }()
			held(1)
			if with.same {
				s = captured
			}
			_ = with.call(v, s, e) // may be refused, too
			resume()
			_ = soon(t, with.changes, changed)
			require.Equal(t, with.met, strings.Contains(fake.Violations(), "must not run beside it"))
		})
	}
	fake.Reset()
}

// TestCapturesOnFake: beside captures package vmm makes none of those calls meet.
func TestCapturesOnFake(t *testing.T) {
	d, _ := onFake(t)
	dev, err := vmm.OpenDriver(d, 0)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), testgate.Effort(200*time.Millisecond, 2*time.Second, 20*time.Second))
	defer cancel()
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() { require.NoError(t, captures(ctx, dev)) })
		all.Go(func() { require.NoError(t, reads(ctx, dev)) })
	}
	all.Wait()
	require.NoError(t, dev.Close())
}

// captures begins and ends captures of a stream that others wait for.
func captures(ctx context.Context, dev *vmm.Device) error {
	for ctx.Err() == nil {
		s, err := dev.NewStream()
		if err != nil {
			return err
		}
		for range 10 {
			if err := s.BeginCapture(); err != nil {
				return err
			}
			graph, err := s.EndCapture()
			if err != nil {
				return err
			}
			if err := graph.Close(); err != nil {
				return err
			}
		}
		if err := s.Close(); err != nil {
			return err
		}
	}
	return nil
}

// reads grows, clips, reads and waits. A capture may refuse a wait.
func reads(ctx context.Context, dev *vmm.Device) error {
	refused := func(err error) error {
		if errors.Is(err, vmm.ErrCapturing) {
			return nil
		}
		return err
	}
	g, err := dev.NewRange(vmm.RangeOptions{Max: 8 * granule, Zero: true})
	if err != nil {
		return err
	}
	for ctx.Err() == nil {
		if err := errors.Join(g.Grow(2*granule), g.SetLen(2*granule)); err != nil {
			return err
		}
		_, err := g.ReadAt(make([]byte, 1), 0)
		if err := errors.Join(refused(err), refused(g.SetLen(1)), refused(g.Clip()), refused(dev.Sync())); err != nil {
			return err
		}
	}
	return retried(g.Close)
}

// retried calls again what a capture refuses.
func retried(f func() error) error {
	for {
		if err := f(); !errors.Is(err, vmm.ErrCapturing) {
			return err
		}
	}
}
