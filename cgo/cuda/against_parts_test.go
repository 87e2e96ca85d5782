//go:build cgo && linux

package cuda_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// timedDriver notes how many microseconds each call takes, while it is on. One goroutine uses
// it at a time.
type timedDriver struct {
	driver.Driver
	on      bool
	took    map[string][]float64
	imports time.Time // when the first import began
	ended   time.Time // when the last call ended
}

func (d *timedDriver) note(call string, begun time.Time) {
	if !d.on {
		return
	}
	d.took[call] = append(d.took[call], float64(time.Since(begun))/1e3)
	d.ended = time.Now()
	if call == "import" && d.imports.IsZero() {
		d.imports = begun
	}
}

func (d *timedDriver) Reserve(size, align uint64) (driver.Ptr, error) {
	defer d.note("reserve", time.Now())
	return d.Driver.Reserve(size, align)
}

func (d *timedDriver) Create(size uint64, p driver.Prop) (driver.Handle, error) {
	defer d.note("create", time.Now())
	return d.Driver.Create(size, p)
}

func (d *timedDriver) Import(fd int, size uint64, p driver.Prop) (driver.Handle, error) {
	defer d.note("import", time.Now())
	return d.Driver.Import(fd, size, p)
}

func (d *timedDriver) Properties(h driver.Handle) (driver.Prop, error) {
	defer d.note("properties", time.Now())
	return d.Driver.Properties(h)
}

func (d *timedDriver) Map(p driver.Ptr, size uint64, h driver.Handle) error {
	defer d.note("map", time.Now())
	return d.Driver.Map(p, size, h)
}

func (d *timedDriver) SetAccess(p driver.Ptr, size uint64, grants []driver.Grant) error {
	defer d.note("set access", time.Now())
	return d.Driver.SetAccess(p, size, grants)
}

// during is how long f takes, and how long the driver's calls in it, in microseconds.
func (d *timedDriver) during(f func() time.Duration) (all, inside float64) {
	d.on, d.took, d.imports = true, map[string][]float64{}, time.Time{}
	all = float64(f()) / 1e3
	d.on = false
	for _, calls := range d.took {
		for _, us := range calls {
			inside += us
		}
	}
	return all, inside
}

// String is the calls of the last during.
func (d *timedDriver) String() string {
	var text []string
	for _, call := range slices.Sorted(maps.Keys(d.took)) {
		text = append(text, fmt.Sprintf("%s %d times %.1f us", call, len(d.took[call]), versus.Median(d.took[call])))
	}
	return strings.Join(text, ", ")
}

// withTimes is v with a device of its own, whose calls are timed.
func (v *rivals) withTimes() (*rivals, *timedDriver) {
	v.Helper()
	d := &timedDriver{Driver: v.dev.Driver()}
	dev, err := vmm.OpenDriver(d, 0)
	require.NoError(v, err)
	v.Cleanup(func() { require.NoError(v, dev.Close()) })
	w := *v
	w.dev = dev
	return &w, d
}

// keptParts says what of a growth from kept memory is the heap profile's, and what the driver's.
func (v *rivals) keptParts(rounds int) {
	v.Helper()
	w := v.kept(v.doublings()...)
	unsampled := func() time.Duration {
		defer memsample.SetRate(memsample.SetRate(0))
		return w.ours()
	}
	r := v.compete(rounds, job{name: "kept", ways: []func() time.Duration{w.ours, unsampled, w.c}, prepare: func() {}, undo: w.undo, apart: true})
	low, high := versus.Interval(r.took[0], r.took[2])
	bareLow, bareHigh := versus.Interval(r.took[1], r.took[2])
	v.Logf("kept, doubling: ours %.1f us, without a heap profile %.1f, C %.1f: %.3f to %.3f, without %.3f to %.3f", versus.Median(r.took[0]),
		versus.Median(r.took[1]), versus.Median(r.took[2]), low, high, bareLow, bareHigh)
	x, d := v.withTimes()
	w = x.kept(x.doublings()...)
	all, inside := d.during(w.ours)
	w.undo()
	v.Logf("one of them: %.1f us, of which the driver's calls %.1f: %v", all, inside, d)
}

// ladderParts says how much of filling the device is outside of the driver's calls.
func (v *rivals) ladderParts(rounds int) {
	v.Helper()
	x, d := v.withTimes()
	w := x.growth(vmm.RangeOptions{}, x.stepped(256*mib, min(x.free()/100*90, 120*gib))...)
	var outside []float64
	for range rounds {
		w.prepare()
		all, inside := d.during(w.ours)
		outside = append(outside, (all-inside)/inside)
		w.undo()
		time.Sleep(2 * clearing(w.total)) //nolint:forbidigo // the driver clears released memory in the background
	}
	v.Logf("%s: outside of the driver's calls over inside: median %.4f of %.4f", bySteps(w.sizes), versus.Median(outside), outside)
}

// attachParts says what of attaching to a published range has passed when Attach returns, before the
// first import and after the last call of the driver, and what these calls take.
func (v *rivals) attachParts(path string, size uint64, rounds int) {
	v.Helper()
	x, d := v.withTimes()
	var attached, before, after, all, inside []float64
	for range rounds {
		var view *shareable.View
		begun := time.Now()
		a, i := d.during(func() time.Duration {
			var err error
			view, err = shareable.Attach(v.Context(), path, "x", x.dev, shareable.AttachOptions{})
			require.NoError(v, err)
			attached = append(attached, float64(time.Since(begun))/1e3)
			require.NoError(v, view.Wait(v.Context(), size))
			return time.Since(begun)
		})
		all, inside = append(all, a), append(inside, i)
		before, after = append(before, float64(d.imports.Sub(begun))/1e3), append(after, a-float64(d.ended.Sub(begun))/1e3)
		require.NoError(v, view.Close())
	}
	v.Logf("attach to %s: %.1f us, %.1f until Attach returns, %.1f until the first import, %.1f after the last call; the driver's calls %.1f: %v",
		mibs(size), versus.Median(all), versus.Median(attached), versus.Median(before), versus.Median(after), versus.Median(inside), d)
}

// TestAgainstCParts names the parts of what costs more than C.
func TestAgainstCParts(t *testing.T) {
	v := newRivals(t, device(t), "libcuda.so.1")
	v.keptParts(200)
	v.ladderParts(12)
	for _, each := range []uint64{0, 64 * mib} {
		size := min(16*gib, v.free()/6) / max(each, v.gran) * max(each, v.gran)
		v.attachParts(v.elsewhere(size, each, true), size, 60)
	}
}

func TestAgainstCPartsOnFake(t *testing.T) {
	v, _ := rivalsOnFake(t)
	v.keptParts(3)
	v.ladderParts(2)
	size := 16 * v.gran
	v.attachParts(published(t, v.dev, size, v.gran, false), size, 3)
}
