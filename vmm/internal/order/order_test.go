package order

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// device is a driver's device of which a test runs the work, piece by piece.
type device struct {
	driver.Device

	mu       sync.Mutex
	queues   map[driver.Stream][]func() bool // pieces of work; false: it cannot run yet
	events   map[driver.Event]*reached       // their last record
	captures map[driver.Stream]uint64
	made     driver.Event
	freed    int
	ids      uint64
	fails    map[string]error // the next call of that name returns it
	asked    int              // calls of Capturing
}

// reached is one record of an event.
type reached struct{ done, captured bool }

func newDevice() *device {
	return &device{queues: map[driver.Stream][]func() bool{}, events: map[driver.Event]*reached{}, captures: map[driver.Stream]uint64{}, fails: map[string]error{}}
}

func (d *device) failing(name string) error {
	err := d.fails[name]
	delete(d.fails, name)
	return err
}

func (d *device) queue(s driver.Stream, f func() bool) { d.queues[s] = append(d.queues[s], f) }

// run runs the first piece of work of a stream.
func (d *device) run(s driver.Stream) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queues[s]) == 0 || !d.queues[s][0]() {
		return false
	}
	d.queues[s] = d.queues[s][1:]
	return true
}

// runAll runs what can run.
func (d *device) runAll(streams ...*Stream) {
	for ran := true; ran; {
		ran = false
		for _, s := range streams {
			ran = d.run(s.Queue) || ran
		}
	}
}

func (d *device) NewEvent(driver.EventFlags) (driver.Event, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.made++
	return d.made, nil
}

func (d *device) FreeEvent(driver.Event) error {
	d.freed++
	return nil
}

func (d *device) Close() error { return nil }

func (d *device) Record(e driver.Event, s driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failing("Record"); err != nil {
		return err
	}
	r := &reached{captured: d.captures[s] != 0}
	d.events[e] = r
	if !r.captured {
		d.queue(s, func() bool {
			r.done = true
			return true
		})
	}
	return nil
}

func (d *device) Wait(s driver.Stream, e driver.Event) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if r := d.events[e]; r != nil {
		d.queue(s, func() bool { return r.done })
	}
	return nil
}

func (d *device) Done(e driver.Event) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.events[e].captured {
		return false, driver.ErrInvalid
	}
	return d.events[e].done, nil
}

func (d *device) Capturing(s driver.Stream) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	return d.captures[s] != 0, nil
}

func (d *device) StreamDone(s driver.Stream) (bool, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queues[s]) == 0, nil
}

func (d *device) FreeStream(driver.Stream) error { return d.failing("FreeStream") }

// grapher is a device with graphs.
type grapher struct {
	*device
	driver.Grapher
}

func (d grapher) BeginCapture(s driver.Stream, _ driver.CaptureMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ids++
	d.captures[s] = d.ids
	return nil
}

func (d grapher) CaptureID(s driver.Stream) (uint64, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.captures[s], d.failing("CaptureID")
}

func (d grapher) EndCapture(s driver.Stream) (driver.Graph, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.failing("EndCapture"); err != nil {
		return 0, err
	}
	delete(d.captures, s)
	return 1, nil
}

func (d grapher) FreeGraph(driver.Graph) error { return nil }

// opened is a Device with n Streams.
func opened(raw driver.Device, n int) (*Device, []*Stream) {
	gate := NewWorld().NewGate(0)
	d := NewDevice(raw, gate, func() error { return nil }, func(func() error) {})
	var all []*Stream
	for i := range n {
		s := &Stream{Queue: driver.Stream(i + 1)} //nolint:gosec // a few
		s.Init(gate, i)
		all = append(all, s)
	}
	return d, all
}

// TestWhatIsKnownIsTrue: whatever the streams wait for, work that is known to have ended has
// ended, and work that is known to come after other work does.
func TestWhatIsKnownIsTrue(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := newDevice()
		d, streams := opened(raw, 3)
		work := map[*Stream][]*bool{}           // in the order of each stream
		covered := map[*Stream]map[uint64]int{} // how many pieces come before an event, by its number
		var fences []Fence
		pick := rapid.SampledFrom(streams)
		for _, s := range streams {
			covered[s] = map[uint64]int{}
		}
		ended := func(s *Stream, number uint64) bool {
			n, recorded := covered[s][number]
			require.True(t, recorded || number == 0, "an event that is not there yet")
			return !slices.ContainsFunc(work[s][:n], func(done *bool) bool { return !*done })
		}
		t.Repeat(map[string]func(*rapid.T){
			"work": func(t *rapid.T) {
				s, done := pick.Draw(t, "stream"), new(bool)
				work[s] = append(work[s], done)
				// What is known now of what comes before it.
				type before struct {
					s *Stream
					n uint64
				}
				var all []before
				for _, o := range streams {
					if o != s {
						ended(o, s.After(o)) // an event that is there
						all = append(all, before{o, s.After(o)})
					}
				}
				raw.queue(s.Queue, func() bool {
					for _, b := range all {
						require.True(t, ended(b.s, b.n), "it runs before what it comes after")
					}
					*done = true
					return true
				})
			},
			"fence": func(t *rapid.T) {
				s := pick.Draw(t, "stream")
				f, err := d.Fence(s)
				require.NoError(t, err)
				covered[s][s.Point()] = len(work[s])
				fences = append(fences, f)
			},
			"wait": func(t *rapid.T) {
				if len(fences) > 0 {
					require.NoError(t, d.WaitFence(pick.Draw(t, "stream"), rapid.SampledFrom(fences).Draw(t, "fence")))
				}
			},
			"ask": func(t *rapid.T) {
				if len(fences) > 0 {
					_, err := rapid.SampledFrom(fences).Draw(t, "fence").Done()
					require.NoError(t, err)
				}
			},
			"free": func(t *rapid.T) {
				if len(fences) > 0 {
					i := rapid.IntRange(0, len(fences)-1).Draw(t, "fence")
					fences[i].Free()
					fences = slices.Delete(fences, i, i+1)
				}
			},
			"run": func(t *rapid.T) { raw.run(pick.Draw(t, "stream").Queue) },
			"ask the stream": func(t *rapid.T) {
				s := pick.Draw(t, "stream")
				_, err := d.StreamDone(s)
				require.NoError(t, err)
				if _, known := covered[s][s.Point()]; !known {
					covered[s][s.Point()] = len(work[s])
				}
			},
			"": func(t *rapid.T) {
				for _, s := range streams {
					require.True(t, ended(s, s.Finished()))
				}
			},
		})
		for _, f := range fences {
			f.Free()
		}
		require.NoError(t, d.Close())
		require.EqualValues(t, raw.made, raw.freed)
	})
}

// TestLateFence: a fence of a stream that is being captured has its event when the capture ends,
// also where it is freed before; and says so if that cannot be recorded.
func TestLateFence(t *testing.T) {
	raw := newDevice()
	d, streams := opened(grapher{device: raw}, 1)
	s := streams[0]
	err := d.Begin(s)
	require.NoError(t, err)
	_, err = d.Fence(s)
	require.ErrorIs(t, err, driver.ErrCapturing)
	f, err := d.LateFence(s)
	require.NoError(t, err)
	freed, err := d.LateFence(s)
	require.NoError(t, err)
	freed.Free()
	done, err := f.Done()
	require.NoError(t, err)
	require.False(t, done)
	_, goesOn, err := d.End(s)
	require.NoError(t, err)
	require.False(t, goesOn)
	done, err = f.Done()
	require.NoError(t, err)
	require.False(t, done, "its event is behind work that has not run")
	raw.runAll(s)
	done, err = f.Done()
	require.NoError(t, err)
	require.True(t, done)
	f.Free()

	err = d.Begin(s)
	require.NoError(t, err)
	f, err = d.LateFence(s)
	require.NoError(t, err)
	raw.fails["Record"] = driver.ErrInvalid
	_, _, err = d.End(s)
	require.NoError(t, err)
	_, err = f.Done()
	require.ErrorIs(t, err, driver.ErrInvalid)
	f.Free()
	require.NoError(t, d.Close())
	require.EqualValues(t, raw.made, raw.freed)
}

// TestBegin: a capture that cannot be named is ended, or goes on and can be ended; one that cannot
// be ended goes on.
func TestBegin(t *testing.T) {
	errName, errEnd := errors.New("no number"), errors.New("no end")
	for _, stays := range []bool{false, true} {
		raw := newDevice()
		d, streams := opened(grapher{device: raw}, 1)
		s := streams[0]
		raw.fails["CaptureID"] = errName
		if stays {
			raw.fails["EndCapture"] = errEnd
		}
		err := d.Begin(s)
		require.ErrorIs(t, err, errName)
		require.Equal(t, stays, errors.Is(err, errEnd))
		require.Equal(t, stays, s.Began())
		require.Equal(t, stays, s.gate.world.Capturing())
		if stays {
			_, _, err := d.End(s)
			require.NoError(t, err)
		}
		err = d.Begin(s)
		require.NoError(t, err)
		raw.fails["EndCapture"] = errEnd
		_, goesOn, err := d.End(s)
		require.ErrorIs(t, err, errEnd)
		require.True(t, goesOn)
		require.NoError(t, d.Free(s), "its capture was lost")
		require.False(t, s.gate.world.Capturing())
	}
}

// TestQuietIsShort: what needs a context without captures neither waits for one that goes on, nor
// keeps others from beginning.
func TestQuietIsShort(t *testing.T) {
	d, streams := opened(grapher{device: newDevice()}, 2)
	err := d.Begin(streams[0])
	require.NoError(t, err)
	release := d.gate.Quiet() // returns, while the capture goes on
	err = d.Begin(streams[1])
	require.NoError(t, err)
	release()
	require.ErrorIs(t, d.NoneCaptured(), driver.ErrCapturing)
	for _, s := range streams {
		_, _, err := d.End(s)
		require.NoError(t, err)
	}
	require.NoError(t, d.NoneCaptured())
}

// TestAskedStreams: before a call that a capture does not allow the driver is asked about the
// streams that others may capture, and about no others.
func TestAskedStreams(t *testing.T) {
	raw := newDevice()
	d, streams := opened(grapher{device: raw}, 1000)
	asks := func() int {
		raw.asked = 0
		require.NoError(t, d.NoneCaptured())
		return raw.asked - 1 // the legacy stream is one
	}
	require.Zero(t, asks())
	for range 2 {
		streams[1].Show()
		streams[2].Show()
	}
	require.Equal(t, 2, asks())
	raw.captures[streams[2].Queue] = 7 // by another library
	require.ErrorIs(t, d.NoneCaptured(), driver.ErrCapturing)
	// What joins that capture by a wait is asked about, too.
	e, err := raw.NewEvent(0)
	require.NoError(t, err)
	raw.captures[streams[3].Queue] = 7
	_, err = d.Wait(streams[3], e, d.gate, func() Point { return Point{} }, true)
	require.NoError(t, err)
	delete(raw.captures, streams[2].Queue)
	require.ErrorIs(t, d.NoneCaptured(), driver.ErrCapturing)
	delete(raw.captures, streams[3].Queue)
	require.Equal(t, 3, asks())

	errFree := errors.New("not freed")
	raw.fails["FreeStream"] = errFree
	require.ErrorIs(t, d.Free(streams[1]), errFree)
	require.Equal(t, 3, asks())
	for _, s := range streams[1:4] {
		require.NoError(t, d.Free(s))
		s.Show()
	}
	require.Zero(t, asks(), "of streams that are freed")
}
