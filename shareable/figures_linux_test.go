package shareable

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/exp/stats"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/internal/testing/versus"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// deviceNumber is a device of the driver that the tests are to run on, opened as a
// program would.
func deviceNumber(t *testing.T, n int) *vmm.Device {
	t.Helper()
	name := os.Getenv("VMM_TEST_DRIVER")
	if name == "" {
		name = "host"
	}
	dev, err := vmm.Open(name + ":" + strconv.Itoa(n))
	what := "cuda"
	if n > 0 {
		what = "p2p"
	}
	if name == "cuda" {
		testgate.Require(t, what, err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// follower is a reader in a process of its own, told what to do line by line.
type follower struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

const followerEnv = "SHAREABLE_TEST_FOLLOWER"

// follow starts a follower of "x" on device n.
func follow(t *testing.T, path string, n int) *follower {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(context.Background(), self, "-test.run=^TestFollower$", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), followerEnv+"="+path, followerEnv+"_DEVICE="+strconv.Itoa(n))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	f := &follower{t, in, bufio.NewReader(out)}
	t.Cleanup(func() {
		_ = in.Close() // the follower ends
		require.NoError(t, cmd.Wait())
	})
	require.Equal(t, "ready", f.line())
	return f
}

func (f *follower) line() string {
	f.t.Helper()
	for {
		s, err := f.out.ReadString('\n')
		require.NoError(f.t, err)
		if s = strings.TrimSpace(s); strings.HasPrefix(s, "> ") {
			return s[2:]
		}
	}
}

// ask sends a command and gives the answer.
func (f *follower) ask(format string, args ...any) string {
	f.t.Helper()
	f.tell(format, args...)
	return f.line()
}

func (f *follower) tell(format string, args ...any) {
	f.t.Helper()
	_, err := fmt.Fprintf(f.in, format+"\n", args...)
	require.NoError(f.t, err)
}

func (f *follower) number(format string, args ...any) int64 {
	f.t.Helper()
	n, err := strconv.ParseInt(f.ask(format, args...), 10, 64)
	require.NoError(f.t, err)
	return n
}

// TestFollower is a follower's process, and nothing in any other.
func TestFollower(t *testing.T) {
	path := os.Getenv(followerEnv)
	if path == "" {
		t.Skip("is run by other tests")
	}
	n, err := strconv.Atoi(os.Getenv(followerEnv + "_DEVICE"))
	require.NoError(t, err)
	dev := deviceNumber(t, n)
	v, err := Attach(t.Context(), path, "x", dev, AttachOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, v.Close()) }()
	say := func(format string, args ...any) { fmt.Fprintf(os.Stdout, "> "+format+"\n", args...) }
	say("ready")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		var a, b uint64
		verb, _, _ := strings.Cut(lines.Text(), " ")
		_, err := fmt.Sscanf(lines.Text(), verb+" %d %d", &a, &b)
		require.NoError(t, err, lines.Text())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		switch verb {
		case "wait": // b times, for a more each time: when it could be read
			base := v.Len() // before the producer goes on
			say("waiting")
			at := make([]int64, b)
			for i := range at {
				require.NoError(t, v.Wait(ctx, base+uint64(i+1)*a))
				at[i] = monotonic(t)
			}
			say("%s", strings.Trim(fmt.Sprint(at), "[]"))
		case "streams": // as wait, for a stream that waits: when it has gone on
			base := v.Len() // before the producer goes on
			say("waiting")
			at := make([]int64, b)
			s, err := dev.NewStream()
			require.NoError(t, err)
			for i := range at {
				require.NoError(t, v.WaitOn(s, base+uint64(i+1)*a))
				require.NoError(t, s.Sync())
				at[i] = monotonic(t)
			}
			require.NoError(t, s.Close())
			say("%s", strings.Trim(fmt.Sprint(at), "[]"))
		case "lines": // b of them: when each was read
			say("reading")
			at := make([]int64, b)
			for i := range at {
				require.True(t, lines.Scan())
				at[i] = monotonic(t)
			}
			say("%s", strings.Trim(fmt.Sprint(at), "[]"))
		case "copy": // a bytes, b times: nanoseconds
			say("%d", copied(t, dev, v.Ptr(), a, int(b)))
		case "sum": // the first a bytes, as they should be from b on
			require.NoError(t, v.Wait(ctx, a))
			got := read(t, v, int(a))
			want := pattern(int(b), int(a))
			bad := 0
			for i := range got {
				if got[i] != want[i] {
					bad++
				}
			}
			say("%d", bad)
		}
		cancel()
	}
}

func monotonic(t *testing.T) int64 {
	t.Helper()
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts))
	return ts.Nano()
}

// copied is how long it takes the device to copy n bytes from src to memory of
// this process, times in a row, by the device's clock.
func copied(t *testing.T, dev *vmm.Device, src vmm.Ptr, n uint64, times int) time.Duration {
	t.Helper()
	raw, err := dev.Raw()
	require.NoError(t, err)
	dst, err := dev.NewRange(vmm.RangeOptions{Max: n, Chunk: min(n, 64<<20)})
	require.NoError(t, err)
	require.NoError(t, dst.Grow(n))
	s, err := dev.NewStream()
	require.NoError(t, err)
	var e [2]driver.Event
	for i := range e {
		e[i], err = raw.NewEvent(driver.EventTiming)
		require.NoError(t, err)
	}
	require.NoError(t, s.Copy(dst.Ptr(), src, n))
	require.NoError(t, raw.Record(e[0], s.Raw()))
	for range times {
		require.NoError(t, s.Copy(dst.Ptr(), src, n))
	}
	require.NoError(t, raw.Record(e[1], s.Raw()))
	require.NoError(t, s.Sync())
	took, err := raw.Elapsed(e[0], e[1])
	require.NoError(t, err)
	for i := range e {
		require.NoError(t, raw.FreeEvent(e[i]))
	}
	require.NoError(t, s.Close())
	require.NoError(t, dst.Close())
	return took
}

// published is a range of a device of the machine's, published as "x".
func published(t *testing.T, o vmm.RangeOptions) (*Server, *Publication, *vmm.Range) {
	t.Helper()
	dev := deviceNumber(t, 0)
	o.Share = vmm.ShareFD
	g, err := dev.NewRange(o)
	require.NoError(t, err)
	s, err := Listen(dev, filepath.Join(t.TempDir(), "s"), Options{})
	require.NoError(t, err)
	p, err := s.Publish("x", g, PublishOptions{})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, g.Close())
	})
	return s, p, g
}

// gpu is size on a GPU, and less where the same runs on the host.
func gpu(size, host uint64) uint64 {
	if os.Getenv("VMM_TEST_DRIVER") == "cuda" {
		return size
	}
	return host
}

// since is how many us after each from the next of the times in the follower's answer is.
func (f *follower) since(from []int64) []float64 {
	f.t.Helper()
	took := make([]float64, len(from))
	for i, at := range strings.Fields(f.line()) {
		to, err := strconv.ParseInt(at, 10, 64)
		require.NoError(f.t, err)
		took[i] = float64(to-from[i]) / 1e3
	}
	return took
}

// TestPublishedUntilReadable measures how long it takes from the owner's SetLen
// over a border between chunks until another process can read there, and beside it how
// long a line takes that the same process reads from a pipe: what it costs to wake it.
func TestPublishedUntilReadable(t *testing.T) {
	for _, ahead := range []bool{true, false} {
		name := "as it is appended"
		if ahead {
			name = "with growth ahead"
		}
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			chunk, rounds := gpu(64<<20, 2<<20), int(gpu(200, testgate.Effort[uint64](5, 20, 20)))
			o := vmm.RangeOptions{Max: chunk * uint64(rounds+8), Chunk: chunk}
			if ahead {
				o.GrowAhead = 4 * chunk
			}
			s, _, g := published(t, o)
			f := follow(t, s.Path(), 0)
			require.Equal(t, "waiting", f.ask("wait %d %d", chunk, rounds))
			from := make([]int64, rounds)
			for i := range from {
				// A row of appends is what it comes from: there is time between.
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // the pace of a producer
				require.NoError(t, g.Grow(chunk))
				from[i] = monotonic(t)
				require.NoError(t, g.SetLen(g.Len()+chunk))
			}
			took := f.since(from)
			require.Equal(t, "reading", f.ask("lines 0 %d", rounds))
			for i := range from {
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // as above
				from[i] = monotonic(t)
				f.tell("line")
			}
			bare := stats.Quantiles(f.since(from), 0.5)[0]
			q := stats.Quantiles(took, 0.5, 0.99)
			t.Logf("published to readable in another process, %s: p50 %.1f us, p99 %.1f us, %d times, chunks of %d MiB; a line through a pipe p50 %.1f us", name, q[0], q[1], rounds, chunk>>20, bare)
		})
	}
}

// TestPublishedInARow measures the same for lengths that come one soon after the other, in memory
// that is mapped: by a call and by a stream that waits, and by Flush.
func TestPublishedInARow(t *testing.T) {
	const pace, step = 500 * time.Microsecond, 64
	rounds := testgate.Effort(20, 200, 2000)
	for _, way := range []struct {
		waits string
		flush bool // in the producer's goroutine, else by the publication's own
	}{{"wait", false}, {"wait", true}, {"streams", false}} {
		waits := way.waits
		t.Run(fmt.Sprintf("%s/flush=%t", waits, way.flush), func(t *testing.T) {
			s, p, g := published(t, vmm.RangeOptions{Max: 2 << 20, Chunk: 2 << 20})
			require.NoError(t, g.Grow(2<<20))
			f := follow(t, s.Path(), 0)
			require.NoError(t, g.SetLen(step))
			f.number("sum %d %d", step, 0) // the chunk is mapped
			measure := func(verb string, show func()) float64 {
				f.tell("%s %d %d", verb, step, rounds)
				f.line()
				from := make([]int64, rounds)
				for i := range from {
					time.Sleep(pace) //nolint:forbidigo // the pace of a producer
					from[i] = monotonic(t)
					show()
				}
				return stats.Quantiles(f.since(from), 0.5)[0]
			}
			took := measure(waits, func() {
				require.NoError(t, g.SetLen(g.Len()+step))
				if way.flush {
					require.NoError(t, p.Flush(t.Context()))
				}
			})
			bare := measure("lines", func() { f.tell("line") })
			t.Logf("published to readable in another process, %s, flush %t, one each %v: p50 %.1f us of %d; a line through a pipe p50 %.1f us", waits, way.flush, pace, took, rounds, bare)
		})
	}
}

// TestReadersBandwidth measures copies by a reader beside those by the owner of
// the same memory, by turns.
func TestReadersBandwidth(t *testing.T) {
	size, loops := gpu(1<<30, testgate.Effort[uint64](2<<20, 8<<20, 8<<20)), int(gpu(16, 1))
	s, _, g := published(t, vmm.RangeOptions{Max: size, Chunk: gpu(64<<20, 2<<20)})
	require.NoError(t, g.Grow(size))
	require.NoError(t, g.SetLen(size))
	f := follow(t, s.Path(), 0)
	f.number("sum %d %d", uint64(1), 0) // waits until something is mapped
	pairs := testgate.Effort(5, 20, 20)
	var ours, theirs []float64
	for i := range pairs + 1 {
		theirs = append(theirs, float64(copied(t, g.Device(), g.Ptr(), size, loops)))
		ours = append(ours, float64(f.number("copy %d %d", size, loops)))
		if i == 0 { // does not count
			ours, theirs = nil, nil
		}
	}
	low, high := versus.Interval(ours, theirs)
	bytes := float64(size) * float64(loops)
	t.Logf("device to device by the reader over by the owner, times: %.4f to %.4f, %d pairs; medians %.1f and %.1f GB/s; target 0.99 to 1.01",
		low, high, pairs, bytes/stats.Quantiles(ours, 0.5)[0], bytes/stats.Quantiles(theirs, 0.5)[0])
}

// TestReaderOnAnotherDevice: every chunk that comes is open to the reader's
// device, which is not the owner's.
func TestReaderOnAnotherDevice(t *testing.T) {
	deviceNumber(t, 1)
	s, _, g := published(t, vmm.RangeOptions{Max: 64 << 20, Chunk: 2 << 20})
	f := follow(t, s.Path(), 1)
	size := testgate.Effort(10<<20, 20<<20, 20<<20)
	for n := 0; n < size; n += 3 << 20 {
		require.NoError(t, g.Append(pattern(n, 3<<20)))
		require.Zero(t, f.number("sum %d %d", n+3<<20, 0))
	}
	require.Positive(t, f.number("copy %d %d", size-2<<20, 2))
}
