package ipc_test

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// Tests here start this binary once more, as the process at the other end. The environment
// variable roleVar says what that does.
const roleVar = "IPC_TEST_ROLE"

const (
	patience = 30 * time.Second // for anything that has to happen
	mib      = 1 << 20
)

// testDriver is what those tests run on that do so once, as VMM_TEST_DRIVER says.
var testDriver = vmmtest.Drivers()[slices.IndexFunc(vmmtest.Drivers(), func(d vmmtest.Driver) bool {
	return d.Name == cmp.Or(os.Getenv("VMM_TEST_DRIVER"), "host")
})]

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVar); role != "" {
		play(role)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// child is another process, which is told what to do in lines.
type child struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	words bytes.Buffer // what it says on stderr, once it has ended
	end   sync.Once
}

// spawn starts a process that plays a role on a device, device 0 if only the driver is named. It
// is killed when the test ends, and by the system when this process does: a stream that waits for
// an event of a process that is gone may do so for ever. The files are its descriptors from 3 on.
func spawn(t *testing.T, role, device string, files ...*os.File) *child {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(self, device)
	cmd.Env = append(os.Environ(), roleVar+"="+role)
	return run(t, cmd, files...)
}

// run starts any program as a child.
func run(t *testing.T, cmd *exec.Cmd, files ...*os.File) *child {
	t.Helper()
	c := &child{t: t, cmd: cmd, lines: make(chan string, 16)}
	c.cmd.ExtraFiles = files
	c.cmd.Stderr = &c.words
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.cmd.Start())
	go func() {
		defer close(c.lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	t.Cleanup(func() {
		c.kill()
		if t.Failed() && c.words.Len() > 0 {
			t.Logf("%v said:\n%s", cmd.Args, c.words.String())
		}
	})
	return c
}

// kill ends the process as nothing in it can prevent, and returns when it is gone.
func (c *child) kill() {
	c.end.Do(func() {
		_ = c.cmd.Process.Kill()
		for range c.lines { // until it says nothing more, as Wait needs
		}
		_ = c.cmd.Wait()
	})
}

// does has the process do something, and returns what it says of it.
func (c *child) does(words ...any) string {
	c.t.Helper()
	_, err := fmt.Fprintln(c.in, words...)
	require.NoError(c.t, err)
	return c.says()
}

func (c *child) says() string {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok {
			c.kill()
			c.t.Fatalf("the process has ended: %s", c.words.String())
		}
		return line
	case <-time.After(patience):
		c.t.Fatalf("the process says nothing for %v", patience)
	}
	return ""
}

// ends waits for the process to end well.
func (c *child) ends() {
	c.t.Helper()
	c.end.Do(func() {
		for range c.lines { // until it says nothing more, as Wait needs
		}
		require.NoError(c.t, c.cmd.Wait(), "%s", &c.words)
	})
}

// part is the other end: what the process of a child knows.
type part struct {
	dev *vmm.Device
	in  *bufio.Scanner
}

// play does what a role does.
func play(role string) {
	p := &part{in: bufio.NewScanner(os.Stdin)}
	p.in.Buffer(nil, mib)
	driver, number, _ := strings.Cut(os.Args[1], ":")
	n, err := strconv.Atoi(cmp.Or(number, "0"))
	must(err)
	if driver == "host" {
		p.dev, err = vmm.OpenDriver(host.New(host.Config{Devices: 2}), n)
	} else {
		p.dev, err = vmm.Open(fmt.Sprint("cuda:", n))
	}
	must(err)
	map[string]func(*part){
		"memory": (*part).memory, "opener": (*part).opener, "pool": (*part).pool, "importer": (*part).importer, "reader": (*part).reader,
	}[role](p)
	must(p.dev.Close())
}

// must ends the process for an error.
func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
}

// next is the next command, in words; false where there are no more.
func (p *part) next() (words []string, ok bool) {
	if !p.in.Scan() {
		return nil, false
	}
	return strings.Fields(p.in.Text()), true
}

// quoted is a text in one line.
func quoted(text interface{ MarshalText() ([]byte, error) }) string {
	b, err := text.MarshalText()
	must(err)
	return fmt.Sprintf("%q", b)
}

// unquoted undoes quoted.
func unquoted(line string, into interface{ UnmarshalText([]byte) error }) {
	var text string
	_, err := fmt.Sscanf(line, "%q", &text)
	must(err)
	must(into.UnmarshalText([]byte(text)))
}

// memory allocates, says the handle of the memory and that of an event, and does as told.
func (p *part) memory() {
	m, err := ipc.Alloc(p.dev, mib)
	must(err)
	s, err := p.dev.NewStream()
	must(err)
	e, err := p.dev.NewEvent(vmm.EventInterprocess)
	must(err)
	must(s.Fill(m.Ptr(), 7, 1, mib))
	must(e.Record(s))
	must(s.Sync())
	h, err := m.Handle()
	must(err)
	fmt.Println(quoted(h))
	h, err = ipc.EventHandle(e)
	must(err)
	fmt.Println(quoted(h))
	for {
		words, ok := p.next()
		if !ok {
			break
		}
		switch words[0] {
		case "wait": // for what the other process has recorded
			must(s.Wait(e))
			fallthrough
		case "read":
			b := make([]byte, 2)
			must(s.CopyOut(b, m.Ptr()))
			fmt.Println(b)
		case "close":
			must(m.Close())
			fmt.Println("closed")
		}
	}
	must(e.Close())
	must(s.Close())
	must(m.Close())
}

// opener opens the handle that it is told, and says what it reads.
func (p *part) opener() {
	for p.in.Scan() {
		var h ipc.Handle
		unquoted(p.in.Text(), &h)
		m, err := ipc.Open(p.dev, h)
		must(err)
		b := make([]byte, 1)
		_, err = m.ReadAt(b, 0)
		must(err)
		must(m.Close())
		fmt.Println(b[0])
	}
}
