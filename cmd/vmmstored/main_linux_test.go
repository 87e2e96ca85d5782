package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// asProgram has this binary be the program.
const asProgram = "VMMSTORED_TEST_PROGRAM"

const inTime = 20 * time.Second

// withCUDA has the tests use the card.
var withCUDA = os.Getenv("VMM_TEST_DRIVER") == "cuda"

// deviceFlag is the device of the program.
var deviceFlag = map[bool]string{false: "--device=host:0", true: "--device=cuda:0"}[withCUDA]

// testDevice is the same device in this process.
func testDevice(t *testing.T) *vmm.Device {
	t.Helper()
	if withCUDA {
		return vmmtest.Drivers()[1].Device(t)
	}
	return vmmtest.Device(t)
}

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	if err := flag.Set("test.parallel", "4"); err != nil { // they wait more than they compute
		log.Fatal(err)
	}
	os.Exit(m.Run())
}

// output is what a process writes, which tests read meanwhile.
type output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// program is a process of the program.
type program struct {
	self string   // its file; empty: that of the test
	env  []string // beside that of the test
	cmd  *exec.Cmd
	err  output
	ends chan int // its exit code
}

// started starts the program and waits until it serves.
func started(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{}
	p.start(t, &p.err, args...)
	require.Eventually(t, func() bool { return strings.Contains(p.err.String(), "msg=serving") || len(p.ends) > 0 }, inTime, time.Millisecond)
	return p
}

// start starts the program, which writes its log to stderr.
func (p *program) start(t *testing.T, stderr io.Writer, args ...string) {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	p.cmd, p.ends = exec.Command(cmp.Or(p.self, self), append([]string{deviceFlag}, args...)...), make(chan int, 1)
	p.cmd.Env = append(append(os.Environ(), asProgram+"=1"), p.env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.cmd.Stderr = stderr
	require.NoError(t, p.cmd.Start())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = p.cmd.Wait()
		p.ends <- p.cmd.ProcessState.ExitCode()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-over
	})
}

// ended is the exit code of a process that ends.
func (p *program) ended(t *testing.T) int {
	t.Helper()
	select {
	case code := <-p.ends:
		return code
	case <-time.After(inTime):
		require.Fail(t, "it does not end", p.err.String())
	}
	return -1
}

// clientAt connects to a store.
func clientAt(t *testing.T, path string) *store.Client {
	t.Helper()
	c, err := store.Connect(t.Context(), path, testDevice(t), store.ClientOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// sealed makes an object of 1000 bytes.
func sealed(t *testing.T, c *store.Client, name string, labels map[string]string) {
	t.Helper()
	w, err := c.Create(t.Context(), name, store.CreateOptions{Size: 1000, Labels: labels})
	require.NoError(t, err)
	require.NoError(t, w.Append(make([]byte, 1000)))
	require.NoError(t, w.Seal(t.Context(), shareable.SealOptions{}))
	require.NoError(t, w.Close())
}

// call runs the program in this process.
func call(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{deviceFlag}, args...), &out, &errs)
	return out.String(), errs.String(), code
}

func TestExitCodes(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir()) // where the socket is by default
	t.Setenv(asProgram, "1")                 // of what is started to serve
	none := filepath.Join(t.TempDir(), "none")
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, []byte(" \n"), 0o600))
	fifo, huge := filepath.Join(t.TempDir(), "fifo"), filepath.Join(t.TempDir(), "huge")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	require.NoError(t, os.WriteFile(huge, nil, 0o600))
	require.NoError(t, os.Truncate(huge, 1<<40))
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"--help"}, 0, ""},
		{[]string{"list", "--help"}, 0, ""},
		{[]string{"--nonsense"}, 2, "nonsense"},
		{[]string{"nonsense"}, 2, "no command"},
		{[]string{"stast"}, 2, "did you mean stats"},
		{[]string{"--version"}, 0, ""},
		{[]string{"--mode=9"}, 2, "octal"},
		{[]string{"--mode=0660", "--socket=@x"}, 1, "is no file"},
		{[]string{"--group=no such group"}, 2, "group"},
		{[]string{"--log-format=xml"}, 2, "text or json"},
		{[]string{"--require=cuda", "--device=host:0"}, 1, "the server has not begun"},
		{[]string{"get"}, 2, "get takes 1 arguments"},
		{[]string{"--lease-time=1s"}, 2, "lease-time"},
		{[]string{"stats", "more"}, 2, "more"},
		{[]string{"list", "a", "b"}, 2, "2 prefixes"},
		{[]string{"delete"}, 2, "no name"},
		{[]string{"delete", "a", "--wait=-1s"}, 2, "--wait -1s"},
		{[]string{"health", "--wait=0"}, 2, "--wait 0s"},
		{[]string{"reload", "--wait=0"}, 2, "--wait 0s"},
		{[]string{"reload", "--wait=-5s"}, 2, "--wait -5s"},
		{[]string{"--max-bytes=much"}, 2, "max-bytes"},
		{[]string{"--max-objects=many"}, 2, "max-objects"},
		{[]string{"--user=4294967295"}, 2, "unknown user"},
		{[]string{"--max-objects=-1"}, 1, "below 0"},
		{[]string{"--timeout=-1s"}, 1, "below 0"},
		{[]string{"--device=host:99"}, 1, "host:99"},
		{[]string{"--token-file=" + none}, 1, "no such file"},
		{[]string{"--token-file=" + empty}, 2, "has no secret"},
		{[]string{"stats", "--token-file=" + empty}, 2, "has no secret"},
		{[]string{"--token-file=" + fifo}, 2, "no regular file"},
		{[]string{"stats", "--token-file=/dev/zero"}, 2, "no regular file"},
		{[]string{"--token-file=" + huge}, 2, "more than 4096 bytes"},
		{[]string{"--socket=@"}, 1, "no socket can have the name"},
		{[]string{"put", ""}, 2, "put: the name is empty"},
		{[]string{"delete", "a", ""}, 2, "delete: the name is empty"},
		{[]string{"--socket=" + none, "list"}, 1, "no server listens"},
		{[]string{"--socket=" + none, "stats"}, 1, "no server listens"},
		{[]string{"--socket=" + none, "delete", "x"}, 1, "no server listens"},
		{[]string{"--socket=" + none, "reload"}, 1, "no server listens"},
		{[]string{"--socket=" + filepath.Join(none, "s")}, 1, "no such file"},
	} {
		_, stderr, code := call(t, c.args...)
		require.Equal(t, c.code, code, "%v: %s", c.args, stderr)
		require.Contains(t, stderr, c.says, "%v", c.args)
	}
}

func TestCommands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	token := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(token, []byte("secret\n"), 0o600))
	started(t, "--socket="+path, "--token-file="+token)
	c, err := store.Connect(t.Context(), path, testDevice(t), store.ClientOptions{Token: []byte("secret")})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	sealed(t, c, "a/1", map[string]string{"run": "7"})
	sealed(t, c, "a/2", nil)
	w, err := c.Create(t.Context(), "b", store.CreateOptions{Size: 1000, Durable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	with := func(args ...string) []string {
		return append([]string{"--socket=" + path, "--token-file=" + token}, args...)
	}

	_, stderr, code := call(t, "--socket="+path, "list")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, vmm.ErrPermission.Error(), "the token is missing")
	out, stderr, code := call(t, with("list")...)
	require.Equal(t, 0, code, stderr)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	require.Equal(t, strings.Fields("ID NAME STATE LENGTH MEMORY READERS WAITING OWNER AGE LABELS"), strings.Fields(rows[0]))
	owner := strconv.Itoa(os.Getuid())
	for i, want := range []string{"1 a/1 sealed 1000 2MiB 0 0 " + owner + " AGE run=7", "2 a/2 sealed 1000 2MiB 0 0 " + owner + " AGE", "3 b written durable 0 2MiB 0 0 " + owner + " AGE"} {
		got := strings.Fields(rows[i+1])
		age := slices.Index(strings.Fields(want), "AGE")
		got[age] = "AGE"
		require.Equal(t, strings.Fields(want), got)
	}
	out, _, code = call(t, with("list", "--json", "a/")...)
	require.Equal(t, 0, code)
	var list []store.Info
	require.NoError(t, json.Unmarshal([]byte(out), &list))
	require.Len(t, list, 2)
	_, stderr, code = call(t, with("health")...)
	require.Equal(t, 0, code, stderr)
	_, stderr, code = call(t, "--socket="+path, "health")
	require.Equal(t, 1, code, stderr)
	_, stderr, code = call(t, with("link", "a/1", "a/one")...)
	require.Equal(t, 0, code, stderr)
	out, stderr, code = call(t, with("get", "a/one")...)
	require.Equal(t, 0, code, stderr)
	require.Len(t, out, 1000)
	_, stderr, code = call(t, with("unlink", "a/one")...)
	require.Equal(t, 0, code, stderr)
	_, stderr, code = call(t, with("revoke", "b")...)
	require.Equal(t, 0, code, stderr)
	require.Eventually(t, func() bool { return w.Err() != nil }, inTime, time.Millisecond)
	require.Contains(t, w.Err().Error(), "an operator has revoked it")
	w2, err := c.Append(t.Context(), "b", store.AppendOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w2.Close()) })
	out, _, _ = call(t, with("list", "a/2")...)
	require.Contains(t, out, "a/2")
	require.NotContains(t, out, "a/1")
	out, _, _ = call(t, with("list", "--label=run=7")...)
	require.Contains(t, out, "a/1")
	require.NotContains(t, out, "a/2")
	out, _, code = call(t, with("stats")...)
	require.Equal(t, 0, code)
	require.Regexp(t, `(?m)^objects +3 +of 4096 +of 4096 each user$`, out)
	require.Regexp(t, `(?m)^descriptors +[1-9][0-9]* +of [0-9]+ `, out)
	require.Regexp(t, `(?m)^records +[1-9].* +of [0-9]`, out)
	require.Regexp(t, `(?m)^`+owner+` +3 +[68]MiB `, out)

	_, stderr, code = call(t, with("delete", "a/1", "none", "a/2")...)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, shareable.ErrNotFound.Error())
	b, err := c.Get(t.Context(), "a/2", store.GetOptions{})
	require.NoError(t, err)
	_, stderr, code = call(t, with("delete", "--force", "--wait=10s", "a/2")...)
	require.Equal(t, 0, code, stderr)
	require.Eventually(t, func() bool { return b.Err() != nil }, inTime, time.Millisecond)
	require.NoError(t, b.Close())
	out, _, _ = call(t, with("list")...)
	require.Equal(t, 2, strings.Count(out, "\n"), out)
}

// TestSignal: after SIGTERM the program ends, with clients attached, and takes its socket
// away.
func TestSignal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path)
	c := clientAt(t, path)
	sealed(t, c, "s", nil)
	b, err := c.Get(t.Context(), "s", store.GetOptions{})
	require.NoError(t, err)
	w, err := c.Create(t.Context(), "w", store.CreateOptions{Size: 1000})
	require.NoError(t, err)
	_, stderr, code := call(t, "--socket="+path)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, vmm.ErrBusy.Error(), "a second one on the same socket")

	require.NoError(t, p.cmd.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 0, p.ended(t), p.err.String())
	require.NoFileExists(t, path)
	require.Eventually(t, func() bool { return w.Err() != nil }, inTime, time.Millisecond)
	require.ErrorIs(t, w.Err(), shareable.ErrOwnerGone)
	require.NoError(t, w.Close())
	got := make([]byte, 1000)
	_, err = b.ReadAt(got, 0)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	started(t, "--socket="+path)
	_, err = c.List(t.Context(), store.ListOptions{})
	require.NoError(t, err)
}

// TestListShowsWhatUsersSay: a label neither reaches the terminal as it is nor forges an object.
func TestListShowsWhatUsersSay(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	started(t, "--socket="+path)
	c := clientAt(t, path)
	sealed(t, c, "a", map[string]string{"\x1b[2J": "x\n7  forged  sealed", "b": "c d=e", "plain": "1"})
	out, _, code := call(t, "--socket="+path, "list")
	require.Equal(t, 0, code)
	require.Equal(t, 2, strings.Count(out, "\n"), out)
	require.Contains(t, out, `"\x1b[2J"="x\n7  forged  sealed" b="c d=e" plain=1`)
	_, stderr, code := call(t, "--socket="+path, "\x1b[2J")
	require.Equal(t, 2, code)
	require.NotContains(t, stderr, "\x1b")
}

// server is the process id of the program that serves for p.
func (p *program) server(t *testing.T) int {
	t.Helper()
	return childOf(t, p.cmd.Process.Pid)
}

// childOf is the only child of a process.
func childOf(t *testing.T, pid int) int {
	t.Helper()
	var all []int
	require.Eventually(t, func() bool { all = childrenOf(t, pid); return len(all) == 1 }, inTime, time.Millisecond)
	return all[0]
}

func childrenOf(t *testing.T, pid int) (all []int) {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, children := range threads {
		b, _ := os.ReadFile(children) // the thread may end
		for _, word := range strings.Fields(string(b)) {
			child, err := strconv.Atoi(word)
			require.NoError(t, err)
			all = append(all, child)
		}
	}
	return all
}

// TestReload: another process serves after the command and after the signal; clients go on, and the
// process that was started is the same.
func TestReload(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path)
	c := clientAt(t, path)
	w, err := c.Create(t.Context(), "w", store.CreateOptions{Size: 1 << 20, Durable: true})
	require.NoError(t, err)
	taken := func() uint64 {
		x, err := c.Stats(t.Context())
		require.NoError(t, err)
		return x.Restarts
	}
	for i := range uint64(4) {
		was := p.server(t)
		if i < 3 {
			_, stderr, code := call(t, "--socket="+path, "reload")
			require.Zero(t, code, stderr)
		} else {
			require.NoError(t, p.cmd.Process.Signal(syscall.SIGHUP))
			require.Eventually(t, func() bool { return taken() > i }, inTime, time.Millisecond)
		}
		require.Equal(t, i+1, taken())
		require.NotEqual(t, was, p.server(t))
		require.NoError(t, w.Append([]byte(strconv.FormatUint(i, 10))))
		require.NoError(t, w.Flush(t.Context()))
	}
	require.NoError(t, w.Close())
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 0, p.ended(t), p.err.String())
	_, err = c.List(context.Background(), store.ListOptions{})
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	require.NoFileExists(t, path)
}

// TestServerDies: another process begins at the same socket, with what was sealed, what was
// published of what is durable, and what has a Writer. If the process that keeps the socket dies,
// the one that serves ends.
func TestServerDies(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	p := started(t, "--socket="+path)
	c := clientAt(t, path)
	var ids []store.ID
	for i := range 5 {
		sealed(t, c, fmt.Sprint("s", i), map[string]string{"i": strconv.Itoa(i)})
		info, err := c.Stat(t.Context(), fmt.Sprint("s", i))
		require.NoError(t, err)
		ids = append(ids, info.ID)
	}
	require.NoError(t, c.Link(t.Context(), "s0", "another"))
	require.NoError(t, c.Delete(t.Context(), "s1", store.DeleteOptions{}))
	b, err := c.Get(t.Context(), "s2", store.GetOptions{})
	require.NoError(t, err)
	var all []byte // of d
	highest := uint64(0)
	for round := range 10 {
		create := c.Create
		if round > 0 {
			create = func(ctx context.Context, name string, _ store.CreateOptions) (*store.Writer, error) {
				return c.Append(ctx, name, store.AppendOptions{})
			}
		}
		d, err := create(t.Context(), "d", store.CreateOptions{Size: 64 << 20, Growable: true, Durable: true})
		require.NoError(t, err)
		require.EqualValues(t, len(all), d.Len())
		more := bytes.Repeat([]byte{byte(round + 1)}, 1<<20)
		require.NoError(t, d.Append(more))
		require.NoError(t, d.Flush(t.Context()))
		all = append(all, more...)
		n, err := c.Create(t.Context(), fmt.Sprint("n", round), store.CreateOptions{Size: 1000})
		require.NoError(t, err)
		require.Greater(t, n.ID().Number, highest, "no id comes again")
		highest = n.ID().Number

		was := p.server(t)
		require.NoError(t, syscall.Kill(was, syscall.SIGKILL))
		require.NoError(t, d.Append(more))
		require.NoError(t, d.Flush(t.Context()))
		all = append(all, more...)
		require.NoError(t, n.Append([]byte("also what is not durable has its Writer still")))
		require.NoError(t, n.Seal(t.Context(), shareable.SealOptions{}))
		require.NoError(t, errors.Join(d.Err(), d.Close(), n.Close()))
		require.NoError(t, c.Delete(t.Context(), n.ID().String(), store.DeleteOptions{}))
		var names []string
		list, err := c.List(t.Context(), store.ListOptions{})
		require.NoError(t, err)
		for _, i := range list {
			names = append(names, i.Names...)
		}
		require.Equal(t, []string{"s0", "another", "s2", "s3", "s4", "d"}, names)
		require.NotEqual(t, was, p.server(t))
		for i, id := range ids {
			x, err := c.Get(t.Context(), id.String(), store.GetOptions{})
			if i == 1 {
				require.ErrorIs(t, err, shareable.ErrNotFound)
				continue
			}
			require.NoError(t, err)
			require.EqualValues(t, 1000, x.Len())
			require.NoError(t, x.Close())
		}
		x, err := c.Get(t.Context(), "d", store.GetOptions{Unsafe: true})
		require.NoError(t, err)
		got := make([]byte, x.Len())
		_, err = x.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(all, got), "%d bytes of %d", len(got), len(all))
		require.NoError(t, x.Close())
	}
	_, err = b.ReadAt(make([]byte, 1000), 0)
	require.NoError(t, err)
	require.NoError(t, b.Close())

	_, stderr, code := call(t, "--socket="+path, "reload")
	require.Zero(t, code, stderr)
	require.NoError(t, c.Delete(t.Context(), "s3", store.DeleteOptions{}))
	sealed(t, c, "after", nil)
	require.NoError(t, syscall.Kill(p.server(t), syscall.SIGKILL))
	_, err = c.Stat(t.Context(), "after")
	require.NoError(t, err)
	_, err = c.Stat(t.Context(), "s3")
	require.ErrorIs(t, err, shareable.ErrNotFound)

	server := p.server(t)
	require.NoError(t, p.cmd.Process.Kill())
	p.ended(t)
	require.Eventually(t, func() bool { return syscall.Kill(server, 0) != nil }, inTime, time.Millisecond)
	_, err = c.List(t.Context(), store.ListOptions{})
	require.ErrorIs(t, err, shareable.ErrOwnerGone)
	started(t, "--socket="+path)
	_, err = c.List(t.Context(), store.ListOptions{})
	require.NoError(t, err)
}
