package store

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
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

// Tests here start this binary once more, as processes that are killed. The environment
// variable partVar says what such a process is. With VMM_TEST_DRIVER=cuda they run on a GPU.
const partVar = "STORE_TEST_PART"

var withCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// testDevice is a device of the driver that the tests of this file run on.
func testDevice(t *testing.T) *vmm.Device {
	t.Helper()
	if withCUDA {
		return vmmtest.Drivers()[1].Device(t)
	}
	return vmmtest.Device(t)
}

// child is another process. It gets commands, and says what it has done, in lines.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	err   bytes.Buffer // its stderr, once it has ended
	end   sync.Once
}

// spawn starts a process. It is killed when the test ends, and by the system when this
// process does.
func spawn(t *testing.T, role string, args ...string) *child {
	t.Helper()
	return spawnWith(t, "", role, args...)
}

// spawnWith is spawn with a variable more, as in "NAME=value", in the environment.
func spawnWith(t *testing.T, variable, role string, args ...string) *child {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	c := &child{t: t, cmd: exec.Command(self, args...), lines: make(chan string, 4096)}
	c.cmd.Env = append(os.Environ(), partVar+"="+role, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE")) // else it takes a second to end
	if variable != "" {
		c.cmd.Env = append(c.cmd.Env, variable)
	}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	c.cmd.Stderr = &c.err
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
		if t.Failed() && c.err.Len() > 0 {
			t.Logf("%s %v wrote:\n%s", role, args, c.err.String())
		}
	})
	return c
}

// kill ends the process by SIGKILL, and returns when it has gone. Any goroutine may call
// it, also twice.
func (c *child) kill() {
	c.end.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
		_ = c.in.Close()
	})
}

// wait waits until the process ends by itself.
func (c *child) wait() {
	c.t.Helper()
	c.end.Do(func() {
		_ = c.in.Close()
		err := c.cmd.Wait()
		require.NoError(c.t, err, c.err.String())
	})
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// tell sends a command.
func (c *child) tell(words ...any) {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, words...)
	require.NoError(c.t, err)
}

// expect is what follows the word in the next line, which must begin with it.
func (c *child) expect(word string) string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.kill()
			c.t.Fatalf("no %q: the process has ended: %s", word, c.err.String())
		}
		rest, ok := strings.CutPrefix(line, word)
		require.True(c.t, ok, "%q instead of %q", line, word)
		return strings.TrimSpace(rest)
	case <-time.After(3 * inTime):
		c.t.Fatalf("no %q for %v", word, 3*inTime)
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

// ask sends a command and returns the reply, which begins with the command.
func (c *child) ask(word string, args ...any) string {
	c.t.Helper()
	c.tell(append([]any{word}, args...)...)
	return c.expect(word)
}

// part is the other end: what the process of a child has.
type part struct {
	args []string
	in   *bufio.Scanner
	out  sync.Mutex
	drv  driver.Driver // that of the last device, without its hook
}

// play does what a process is for, and does not return.
func play(role string) {
	p := &part{args: os.Args[1:], in: bufio.NewScanner(os.Stdin)}
	roles := map[string]func(*part){
		"daemon": playDaemon, "writer": playWriter, "readers": playReaders, "memory": playMemory,
		"holder": playHolder, "clients": playClients, "storm": playStorm, "keeper": playKeeper, "kept": playKept, "requests": playRequests, "good": playGood, "bad": playBad, "keeps": playKeeps, "old": playOld,
		"paused": playPaused, "appender": playAppender, "member": playMember, "thief": playThief,
	}
	act, ok := roles[role]
	if !ok {
		p.must(fmt.Errorf("no role %q", role))
	}
	act(p)
	os.Exit(0)
}

func (p *part) say(words ...any) {
	p.out.Lock()
	defer p.out.Unlock()
	fmt.Println(words...)
}

// must ends the process for an error.
func (p *part) must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

func (p *part) check(ok bool, format string, args ...any) {
	if !ok {
		p.must(fmt.Errorf(format, args...))
	}
}

// next is the next command. The process ends when there are no more.
func (p *part) next() (word string, n uint64) {
	if !p.in.Scan() {
		os.Exit(0)
	}
	words := append(strings.Fields(p.in.Text()), "", "")
	n, _ = strconv.ParseUint(words[1], 10, 64)
	return words[0], n
}

// device opens the device that the tests of this run are for. The hook sees every call.
func (p *part) device(hook func(drivertest.Call) error) *vmm.Device {
	var drv driver.Driver = host.New(host.Config{})
	if withCUDA {
		d, err := vmm.Open("cuda:0")
		p.must(err)
		drv = d.Driver()
		p.must(d.Close())
	}
	p.drv = drv
	if hook != nil {
		drv = drivertest.Inject(drv, hook)
	}
	d, err := vmm.OpenDriver(drv, 0)
	p.must(err)
	return d
}

// socketAt is a place for a socket whose path is short, whatever the test's name.
func socketAt(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "store") //nolint:usetesting // that one's path may be too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "s")
}

// playMemory says how much memory of the device is free, as a process sees it that has
// nothing else to do with it.
func playMemory(p *part) {
	dev := p.device(nil)
	free, _, err := dev.MemInfo()
	p.must(err)
	p.say("free", free)
}

// freeMemory is the memory that is free as a fresh process sees it.
func freeMemory(t *testing.T) uint64 {
	t.Helper()
	c := spawn(t, "memory")
	defer c.wait()
	return c.count("free")
}

// inode is a file in memory.
type inode struct{ dev, ino uint64 }

// memoryOf is the memory that a process of the host driver keeps: the files behind its
// descriptors. Those of control pages, which have another name, are among them.
func memoryOf(t *testing.T, pid int) map[inode]uint64 {
	t.Helper()
	all := map[inode]uint64{}
	require.NoError(t, addMemory(pid, all, nil))
	return all
}

// addMemory adds the files in memory that a process has open to all, with their bytes; only
// those of only, if that is not nil.
func addMemory(pid int, all, only map[inode]uint64) error {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range list {
		path := dir + "/" + e.Name()
		link, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(link, "/memfd:cuvmm") {
			continue // it has been closed
		}
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		i := inode{st.Dev, st.Ino}
		if _, known := only[i]; only == nil || known {
			all[i] = uint64(st.Blocks) * 512
		}
	}
	return addMapped(pid, all, only)
}

// addMapped is addMemory for the files that a process has mapped: their whole size counts, as
// there is no descriptor to ask.
func addMapped(pid int, all, only map[inode]uint64) error {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 6 || !strings.HasPrefix(f[5], "/memfd:cuvmm") {
			continue
		}
		var major, minor uint32
		ino, err := strconv.ParseUint(f[4], 10, 64)
		if _, bad := fmt.Sscanf(f[3], "%x:%x", &major, &minor); err != nil || bad != nil {
			return fmt.Errorf("line of maps %q", line)
		}
		i := inode{unix.Mkdev(major, minor), ino}
		if _, known := only[i]; only == nil || known {
			if _, has := all[i]; !has {
				all[i] = only[i]
			}
		}
	}
	return nil
}

// stillThere is which of these files any process of the system has open or mapped.
func stillThere(t *testing.T, files map[inode]uint64) map[inode]uint64 {
	t.Helper()
	list, err := os.ReadDir("/proc")
	require.NoError(t, err)
	all := map[inode]uint64{}
	for _, e := range list {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		err = addMemory(pid, all, files)
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ESRCH) && !errors.Is(err, fs.ErrPermission) { // other users cannot have it
			require.NoError(t, err)
		}
	}
	return all
}

func bytesIn(files map[inode]uint64) (n uint64) {
	for _, size := range files {
		n += size
	}
	return n
}

// accounts is how much memory there was before something began.
type accounts struct {
	t    *testing.T
	free uint64 // of a GPU
	was  map[inode]uint64
}

// openAccounts notes how much memory is free.
func openAccounts(t *testing.T) *accounts {
	t.Helper()
	a := &accounts{t: t}
	if withCUDA {
		a.free = freeMemory(t)
	}
	return a
}

// note notes what a process has, which is to be gone later, and returns how many bytes that
// is.
func (a *accounts) note(pid int) uint64 {
	a.t.Helper()
	if withCUDA {
		return a.free - freeMemory(a.t)
	}
	a.was = memoryOf(a.t, pid)
	require.Equal(a.t, a.was, stillThere(a.t, a.was), "what is there is seen")
	return bytesIn(a.was)
}

// even waits until all of it is back.
func (a *accounts) even() {
	a.t.Helper()
	if withCUDA {
		require.Eventually(a.t, func() bool { return freeMemory(a.t) == a.free }, inTime, 100*time.Millisecond)
		return
	}
	require.Eventually(a.t, func() bool { return len(stillThere(a.t, a.was)) == 0 }, inTime, 10*time.Millisecond,
		"%d bytes of memory are left", bytesIn(stillThere(a.t, a.was)))
}
