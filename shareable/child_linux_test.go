package shareable

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// Tests here start this binary once more, as a process to be killed. The
// environment variable roleVar says what that process is; TestMain asks it.
const roleVar = "SHAREABLE_TEST_ROLE"

const patience = 30 * time.Second // for anything that has to happen

var withCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// child is another process that is told what to do in lines.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	words bytes.Buffer // what it says on stderr, once it has ended
	end   sync.Once
}

// spawn starts a process that plays a role. It is killed when the test ends,
// and by the system when this process does. What it has to say is heard later.
func spawn(t *testing.T, role string, args ...string) *child {
	t.Helper()
	return spawnWith(t, nil, role, args...)
}

// spawnWith is spawn with more in its environment.
func spawnWith(t *testing.T, env []string, role string, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := &child{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 256)}
	c.cmd.Env = append(append(os.Environ(), roleVar+"="+role), env...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = &c.words
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, w, err := os.Pipe()
	require.NoError(t, err)
	c.cmd.Stdout = w
	err = c.cmd.Start()
	require.NoError(t, w.Close())
	require.NoError(t, err)
	go func() {
		defer close(c.lines)
		defer out.Close()
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		c.kill()
		for range c.lines { // until its reader has gone
		}
		if t.Failed() && c.words.Len() > 0 {
			t.Logf("%s %v said:\n%s", role, args, c.words.String())
		}
	})
	return c
}

// kill ends the process as nothing in it can prevent, and returns when it is
// gone. Any goroutine may call it, twice too.
func (c *child) kill() {
	c.end.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		_ = c.in.Close()
	})
}

// stop has the process stand still, and returns when it does.
func (c *child) stop() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGSTOP))
	soon(c.t, "the process stands still", func() bool {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		require.NoError(c.t, err)
		rest := b[bytes.LastIndexByte(b, ')')+1:]
		return bytes.HasPrefix(rest, []byte(" T"))
	})
}

func (c *child) cont() {
	c.t.Helper()
	require.NoError(c.t, c.cmd.Process.Signal(syscall.SIGCONT))
}

// tell gives a command and waits for nothing.
func (c *child) tell(words ...any) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, words...)
	require.NoError(c.t, err)
}

// expect returns what follows the word in the next line, which must begin with it.
func (c *child) expect(word string) string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.kill()
			c.t.Fatalf("no %q: the process has ended: %s", word, c.words.String())
		}
		rest, ok := strings.CutPrefix(line, word)
		require.True(c.t, ok, "%q instead of %q", line, word)
		return strings.TrimSpace(rest)
	case <-time.After(patience):
		c.t.Fatalf("no %q for %v", word, patience)
	}
	return ""
}

// count is expect for a number.
func (c *child) count(word string) uint64 {
	c.t.Helper()
	n, err := strconv.ParseUint(c.expect(word), 10, 64)
	require.NoError(c.t, err)
	return n
}

// part is the other end: what the process of a child knows.
type part struct {
	args []string
	in   *bufio.Scanner
}

// play does what a role does, and never returns.
func play(role string) {
	p := &part{args: os.Args[1:], in: bufio.NewScanner(os.Stdin)}
	roles := map[string]func(*part){
		"owner": playOwner, "reader": playReader, "crowd": playReaders, "storm": playConnections,
		"passer": playPasser, "waiters": playWaiters, "vandal": playVandal, "adder": playAdder, "trader": playTrader,
	}
	act, ok := roles[role]
	if !ok {
		p.must(fmt.Errorf("no role %q", role))
	}
	act(p)
	os.Exit(0)
}

func (p *part) say(words ...any) { fmt.Fprintln(os.Stdout, words...) }

// must ends the process for an error.
func (p *part) must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// next is the next command, in words; where there are no more, the process ends.
func (p *part) next() (verb string, n uint64) {
	if !p.in.Scan() {
		os.Exit(0)
	}
	words := append(strings.Fields(p.in.Text()), "", "")
	n, _ = strconv.ParseUint(words[1], 10, 64)
	return words[0], n
}

// device opens what the tests of this run are for. Each hook sees every call.
func (p *part) device(c host.Config, hooks ...func(drivertest.Call) error) *vmm.Device {
	var drv driver.Driver = host.New(c)
	if withCUDA {
		d, err := vmm.Open("cuda:0")
		p.must(err)
		drv = d.Driver()
		p.must(d.Close())
	}
	for _, h := range hooks {
		drv = drivertest.Inject(drv, h)
	}
	d, err := vmm.OpenDriver(drv, 0)
	p.must(err)
	return d
}

// crashDevice is a device for what runs on GPUs too.
func crashDevice(t *testing.T) *vmm.Device {
	t.Helper()
	if withCUDA {
		return vmmtest.Drivers()[1].Device(t)
	}
	return vmmtest.Device(t)
}

// socketAt is a place for a socket whose path is short, whatever the test's name.
func socketAt(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "shareable") //nolint:usetesting // that one's path may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "s")
}

// soon waits for something that has to happen. It asks on this goroutine: what counts goroutines
// would count that of require.Eventually, too.
func soon(t *testing.T, what string, so func() bool, args ...any) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); <-time.After(200 * time.Microsecond) {
		require.True(t, time.Now().Before(end), append([]any{what}, args...)...)
	}
}

// exits is a test that ends its process when it fails.
type exits struct{}

func (exits) Errorf(format string, args ...any) { fmt.Fprintf(os.Stderr, format, args...) }
func (exits) FailNow()                          { os.Exit(1) }

// eventually is soon in a process of a test's own.
func (p *part) eventually(what string, so func() bool) {
	if !so() {
		require.Eventually(exits{}, so, patience, 200*time.Microsecond, what)
	}
}

// wavePeriod has nothing in common with the size of any chunk, so that two
// places of an object that could be mistaken for one another differ.
const wavePeriod = 1<<20 + 7

var waveTable = sync.OnceValue(func() []byte { return append(makePattern(0, wavePeriod), makePattern(0, wavePeriod)...) })

// wave is what stands at from, up to wavePeriod bytes of it, by a seed that
// owner and readers know.
func wave(seed, from, n uint64) []byte {
	at := (from + seed*54321) % wavePeriod
	return waveTable()[at : at+min(n, wavePeriod)]
}

// appendWave makes a range n bytes longer.
func appendWave(g *vmm.Range, seed, n uint64) error {
	for n > 0 {
		b := wave(seed, g.Len(), n)
		if err := g.Append(b); err != nil {
			return err
		}
		n -= uint64(len(b))
	}
	return nil
}

// sound reads all that a view shows and says how much of it is as it should be.
func sound(v *View, seed uint64) (uint64, error) {
	n := v.Len()
	b := make([]byte, min(n, wavePeriod))
	for off := uint64(0); off < n; {
		want := wave(seed, off, n-off)
		got := b[:len(want)]
		if _, err := v.ReadAt(got, int64(off)); err != nil {
			return off, err
		}
		if !bytes.Equal(got, want) {
			i := 0
			for got[i] == want[i] {
				i++
			}
			return off, fmt.Errorf("byte %d of %d is %#x, not %#x (generation %d)", off+uint64(i), n, got[i], want[i], v.Generation())
		}
		off += uint64(len(want))
	}
	return n, nil
}

// whole is sound for a test.
func whole(t *testing.T, v *View) uint64 {
	t.Helper()
	n, err := sound(v, 0)
	require.NoError(t, err)
	return n
}

// joined is a view of "x".
func joined(t *testing.T, path string, dev *vmm.Device, o AttachOptions) *View {
	t.Helper()
	v, err := Attach(t.Context(), path, "x", dev, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

// orphaned waits until a view knows that its owner is gone.
func orphaned(t *testing.T, v *View) {
	t.Helper()
	soon(t, "the view knows that its owner is gone", func() bool { return v.Err() != nil })
	require.ErrorIs(t, v.Err(), ErrOwnerGone)
}

// waitFor is View.Wait, but not for ever.
func waitFor(v *View, n uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return v.Wait(ctx, n)
}

// processFDs counts this process's descriptors, so a test that calls it is not parallel.
func processFDs() (int, error) {
	l, err := os.ReadDir("/proc/self/fd")
	return len(l), err
}

// fewLeft lowers the limit on descriptors so that n more can be opened, and
// gives the function that sets it back.
func fewLeft(n int) (restore func() error, err error) {
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		return nil, err
	}
	var spare []int
	top := -1
	for range n + 1 { // the first that must fail is the one after
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		spare, top = append(spare, fd), max(top, fd)
	}
	for _, fd := range spare {
		err = errors.Join(err, unix.Close(fd))
	}
	few := was
	few.Cur = uint64(top)
	return func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &was) },
		errors.Join(err, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
}

// oneMore raises that limit by one.
func oneMore() error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = min(l.Cur+1, l.Max)
	return unix.Setrlimit(unix.RLIMIT_NOFILE, &l)
}
