package drivertest

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"strings"
)

// process is the other process of a rule, or for that one the process of the rule. What
// goes between them is pieces of 64 bytes: handles and tokens are that.
type process struct {
	c       *check
	in      io.Reader
	out     io.Writer
	command *exec.Cmd // nil in the other process
	said    bytes.Buffer
}

// Descriptors of the other process. What the rule hands to it comes behind them.
const (
	peerIn = 3 + iota
	peerOut
	peerFiles
)

// startPeer runs the rule's other half in another process, which gets the files.
func (c *check) startPeer(files ...*os.File) *process {
	c.Helper()
	self, err := os.Executable()
	c.must(err, "find the test binary")
	in, theirOut, err := os.Pipe()
	c.must(err, "make a pipe")
	theirIn, out, err := os.Pipe()
	c.must(err, "make a pipe")
	for _, f := range []*os.File{in, out, theirIn, theirOut} {
		c.later(f)
	}
	p := &process{c: c, in: in, out: out}
	p.command = childCommand(c, self)
	p.command.ExtraFiles = append([]*os.File{theirIn, theirOut}, files...)
	p.command.Stdout, p.command.Stderr = &p.said, &p.said
	c.must(p.command.Start(), "start another process")
	c.Cleanup(p.kill)
	c.close(theirIn)
	c.close(theirOut)
	return p
}

// starter is the rule's process, for the other one.
func (c *check) starter() *process {
	return &process{c: c, in: c.later(os.NewFile(peerIn, "in")), out: c.later(os.NewFile(peerOut, "out"))}
}

// file is the i-th file that the other process was given.
func (c *check) file(i int) *os.File { return c.later(os.NewFile(uintptr(peerFiles+i), "given")) }

func (p *process) send(b [64]byte) {
	p.c.Helper()
	if _, err := p.out.Write(b[:]); err != nil {
		p.c.Fatalf("send to the other process: %v\n%s", err, p.end())
	}
}

func (p *process) receive() (b [64]byte) {
	p.c.Helper()
	err := p.c.returns("hear of the other process", func() error { _, err := io.ReadFull(p.in, b[:]); return err })
	if err != nil {
		p.c.Fatalf("hear of the other process: %v\n%s", err, p.end())
	}
	return b
}

// finish waits until the other process has ended, and fails the case if that has found a
// fault.
func (p *process) finish() {
	p.c.Helper()
	err := p.c.returns("wait for the other process", p.command.Wait)
	if err != nil || !strings.Contains(p.said.String(), "--- PASS: "+p.c.Name()) {
		p.c.Fatalf("the other process: %v\n%s", err, p.said.String())
	}
}

// kill ends the other process at once.
func (p *process) kill() {
	if p.command.ProcessState == nil {
		_ = p.command.Process.Kill()
		_ = p.command.Wait()
	}
}

// end is what the other process has said, once it is gone.
func (p *process) end() string {
	if p.command == nil {
		return ""
	}
	p.kill()
	return p.said.String()
}
