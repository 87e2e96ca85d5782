//go:build cgo && linux

package collective

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/nccloop"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
)

// TestFigureCall measures the time to queue a small call beside the same calls of a C program, by
// turns in the same processes. A missed target is reported.
func TestFigureCall(t *testing.T) {
	needsTwo(t)
	playAll(t, "calls", 5*time.Minute)
}

func playCalls(m *process) (err error) {
	g, err := Join(m.ctx, m.dev, Options{Timeout: time.Minute})
	if err != nil {
		return err
	}
	f := &figures{process: m, g: g, rounds: 100, size: 1 << 20}
	if testShort() {
		f.rounds = 5
	}
	var loops []*nccloop.Loop
	for _, way := range []nccloop.Way{nccloop.Child, nccloop.Blocking, nccloop.Nonblocking} {
		l, err := f.openLoop(way)
		if err != nil {
			return err
		}
		loops = append(loops, l)
	}
	if err := f.open(); err != nil {
		return err
	}
	if err := f.overhead(loops); err != nil {
		return err
	}
	if err := f.parts(); err != nil {
		return err
	}
	for _, l := range loops {
		err = errors.Join(err, l.Close())
	}
	return errors.Join(err, g.Close(), f.src.Close(), f.dst.Close(), f.st.Close())
}

// overhead compares Do with the same calls from C: of the same kind of communicator, of one that
// most programs in C have, and of one that does not block.
func (f *figures) overhead(loops []*nccloop.Loop) (failed error) {
	const n = 200
	a, b := Part(f.dst, 0, 8), Part(f.src, 0, 8)
	if err := f.dst.SetLen(8); err != nil {
		return err
	}
	c := []nccl.Call{{Operation: nccl.AllReduce, Kind: Float32, Src: uint64(f.src.Ptr()), Dst: uint64(f.dst.Ptr()), Count: 2}}
	raw, err := f.dev.Raw()
	if err != nil {
		return err
	}
	do := func() error { return f.g.Do(f.ctx, f.st, AllReduce(a, b, Float32, Sum)) }
	run := func() error { return f.g.e.Run(f.st.Queue(), nil, c) }
	ways := []struct {
		name string
		took func() (time.Duration, error)
	}{
		{"Do", repeated(n, do)},
		{"C, with events around each call", func() (time.Duration, error) {
			loops[0].Watch(true)
			defer loops[0].Watch(false)
			return loops[0].Queue(nccloop.AllReduce, []uint64{8, 8}, n)
		}},
		{"Do without events", func() (time.Duration, error) {
			f.g.opts.hooks.noWatch = true
			defer func() { f.g.opts.hooks.noWatch = false }()
			return repeated(n, do)()
		}},
	}
	for i, name := range []string{"C", "C, a communicator without a parent", "C, one that does not block"} {
		ways = append(ways, struct {
			name string
			took func() (time.Duration, error)
		}{name, func() (time.Duration, error) { return loops[i].Queue(nccloop.AllReduce, []uint64{8, 8}, n) }})
	}
	ways = append(ways, []struct {
		name string
		took func() (time.Duration, error)
	}{
		{"Do on one thread", func() (time.Duration, error) {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			return repeated(n, do)()
		}},
		{"the engine's Run", repeated(n, run)},
		{"Run in a Device.Do", func() (d time.Duration, err error) {
			err = raw.Do(func() (err error) { d, err = repeated(n, run)(); return err })
			return d, err
		}},
	}...)
	all := make([]func() time.Duration, len(ways))
	for i, w := range ways {
		all[i] = func() time.Duration {
			d, err := w.took()
			failed = errors.Join(failed, err, f.g.Sync(f.ctx, f.st))
			_, err = f.g.allGatherWords(f.ctx, 0) // the next begins together
			failed = errors.Join(failed, err)
			return d / n
		}
	}
	took := versus.Rounds(f.rounds, all...)
	if failed != nil || f.g.Rank() != 0 {
		return failed
	}
	// The events must cost no more than in C: Do's ratio to C with events, over that without.
	watched, plain := slices.Clone(took[0]), slices.Clone(took[2])
	for i := range watched {
		watched[i] /= took[1][i]
		plain[i] /= took[3][i]
	}
	low, high := versus.Interval(watched, plain)
	fmt.Printf("Do to C: %.2f with events, %.2f without; %.3f [%.3f, %.3f], target 1: %s\n", versus.Median(watched), versus.Median(plain),
		versus.Median(watched)/versus.Median(plain), low, high, versus.Verdict(high <= 1))
	for i, w := range ways {
		m := versus.Median(took[i])
		low, high := versus.Interval(took[0], took[i])
		verdict := ""
		if i == 1 { // it records the same events
			verdict = ", target 1000: " + versus.Verdict((high-1)*m <= 1000)
		}
		fmt.Printf("%s: %.0f ns; Do takes %+.0f [%+.0f, %+.0f] more%s\n", w.name, m, versus.Median(took[0])-m, (low-1)*m, (high-1)*m, verdict)
	}
	return nil
}

// repeated is n calls.
func repeated(n int, call func() error) func() (time.Duration, error) {
	return func() (time.Duration, error) {
		begun := time.Now()
		for range n {
			if err := call(); err != nil {
				return 0, err
			}
		}
		return time.Since(begun), nil
	}
}

// parts logs what the parts of a call take.
func (f *figures) parts() error {
	raw, err := f.dev.Raw()
	if err != nil {
		return err
	}
	span := vmm.Span{Addr: f.src.Ptr(), Size: 8, Access: vmm.AccessRead}
	small := f.dst.Ptr()
	b := make([]byte, 64)
	text := ""
	call := nccl.Call{Operation: nccl.AllReduce, Kind: Float32, Src: uint64(span.Addr), Dst: uint64(small), Count: 2}
	run := func() error {
		return f.g.call(f.ctx, func() error { return f.g.e.Run(f.st.Queue(), nil, []nccl.Call{call}) })
	}
	event, err := f.dev.NewEvent(vmm.EventBlocking)
	if err != nil {
		return err
	}
	defer event.Close() //nolint:errcheck // of a group that goes
	bare, err := raw.NewEvent(vmm.EventBlocking)
	if err != nil {
		return err
	}
	defer raw.FreeEvent(bare) //nolint:errcheck // as above
	for _, p := range []struct {
		name string
		call func() error
	}{
		{"Event.Record", func() error { return event.Record(f.st) }},
		{"the driver's record", func() error { return raw.Record(bare, f.st.Raw()) }},
		{"LockSpans", func() error {
			unlock, err := f.st.LockSpans(span)
			if err == nil {
				unlock()
			}
			return err
		}},
		{"Hold", func() error {
			_, _, release, err := f.st.Hold()
			if err == nil {
				release()
			}
			return err
		}},
		{"Device.Do", func() error { return raw.Do(func() error { return nil }) }},
		{"Err", f.g.e.Err},
		{"Run", run},
		{"Run in a Device.Do", func() error { return raw.Do(run) }},
		{"CopyIn", func() error { return f.st.CopyIn(small, b) }},
		{"CopyOut", func() error { return f.st.CopyOut(b, small) }},
		{"Stream.Sync", f.st.Sync},
		{"Group.Sync", func() error { return f.g.Sync(f.ctx, f.st) }},
		{"AllReduce and Group.Sync", func() error {
			return errors.Join(f.g.Do(f.ctx, f.st, AllReduce(Part(f.dst, 0, 8), Part(f.src, 0, 8), Float32, Sum)), f.g.Sync(f.ctx, f.st))
		}},
		{"allGatherWords", func() error { _, err := f.g.allGatherWords(f.ctx, 1, 2); return err }},
	} {
		const n = 200
		took := make([]float64, n)
		for i := range n {
			begun := time.Now()
			if err := p.call(); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			took[i] = float64(time.Since(begun))
		}
		sum := 0.0
		for _, x := range took {
			sum += x
		}
		text += fmt.Sprintf("%s %.1f us (mean %.1f), ", p.name, versus.Median(took)/1e3, sum/n/1e3)
	}
	if f.g.Rank() == 0 {
		fmt.Println(text)
	}
	return nil
}
