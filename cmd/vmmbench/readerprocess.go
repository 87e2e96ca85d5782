package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// replyTimeout is how long a request may take, and a process to start. It is more than a
// reader waits by itself.
const replyTimeout = readerTimeout + 10*time.Second

// endTimeout is how long a process may take to end.
const endTimeout = 10 * time.Second

// readerProcess is a process that reads. Once it has ended, or was killed because it does
// not reply, all requests to it fail at once with the same error.
type readerProcess struct {
	settings *settings
	cmd      *exec.Cmd
	in       *os.File // its stdin
	out      *os.File // its stdout
	decode   *json.Decoder
	exited   chan struct{} // closed when it has ended
	stop     func() bool   // stops the watch over the context of the run

	mu  sync.Mutex
	err error // why it takes no requests any more; guarded by mu
}

// startReader starts a process that reads what a server on path has published. It is killed
// when ctx is done.
func startReader(ctx context.Context, set *settings, device, path string, files ...*os.File) (p *readerProcess, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, stdout, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), in.Close())
	}
	argv, env := set.ownArgs(readerCommand, "--device", device, "--socket", path)
	p = &readerProcess{
		settings: set, cmd: exec.CommandContext(context.WithoutCancel(ctx), self, argv...), in: in, out: out,
		decode: json.NewDecoder(out), exited: make(chan struct{}),
	}
	p.cmd.Env, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = append(os.Environ(), env...), stdin, stdout, os.Stderr
	p.cmd.ExtraFiles = files
	endWithParent(p.cmd)
	// Its ends of the pipes are then open in the process only, so the pipes end with it.
	err = p.cmd.Start()
	if err = errors.Join(err, stdin.Close(), stdout.Close()); err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	p.stop = context.AfterFunc(ctx, func() { p.end(ctx.Err()) })
	go p.wait()
	if _, err := p.receive(); err != nil { // its first reply comes when it has opened the device
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// past is a deadline that is over.
var past = time.Unix(1, 0)

// wait waits until the process has ended. What it has replied before can still be read.
func (p *readerProcess) wait() {
	_ = p.cmd.Wait() // the state says the same
	p.setLost(fmt.Errorf("a process that reads has ended: %v", p.cmd.ProcessState))
	_ = p.in.SetWriteDeadline(past)
	close(p.exited)
}

// end kills the process, and ends what waits for it: a device can hold up its end.
func (p *readerProcess) end(cause error) {
	p.setLost(cause)
	_ = p.cmd.Process.Kill()
	_ = p.in.SetWriteDeadline(past)
	_ = p.out.SetReadDeadline(past)
}

// setLost sets why there are no requests any more. The first reason stays.
func (p *readerProcess) setLost(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = cause
	}
}

// lost returns why there are no requests any more, nil as long as there may be.
func (p *readerProcess) lost() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// hasExited waits until the process has ended, and no longer than endTimeout.
func (p *readerProcess) hasExited() bool {
	timer := time.NewTimer(endTimeout)
	defer timer.Stop()
	select {
	case <-p.exited:
		return true
	case <-timer.C:
		return false
	}
}

// try does what needs the process: it writes to its stdin or reads from its stdout.
func (p *readerProcess) try(do func() error) error {
	stop := p.settings.afterReplyTimeout(p, func() {
		p.end(fmt.Errorf("a process that reads does not reply: nothing came for %v", replyTimeout))
	})
	err := do()
	stop()
	if err == nil {
		return nil
	}
	// A pipe that is closed says that the process ends, but not why.
	if errors.As(err, new(*json.SyntaxError)) {
		p.end(fmt.Errorf("a process that reads sent what is no reply: %w", err))
	}
	if p.lost() == nil && !p.hasExited() {
		p.end(fmt.Errorf("a process that reads takes no requests: %w", err))
	}
	return p.lost()
}

func (p *readerProcess) send(q readerRequest) error {
	if err := p.lost(); err != nil {
		return err
	}
	return p.try(func() error { return json.NewEncoder(p.in).Encode(q) })
}

// wake writes the byte that a reader waits for after doByte.
func (p *readerProcess) wake() error {
	return p.try(func() error {
		_, err := p.in.Write([]byte("\n"))
		return err
	})
}

func (p *readerProcess) receive() (r readerReply, err error) {
	if err := p.try(func() error { return p.decode.Decode(&r) }); err != nil {
		return r, err
	}
	if r.Error != "" {
		err = fmt.Errorf("a process that reads: %s", r.Error)
	}
	return r, err
}

// close ends the process: it reads its stdin to the end. If it does not end in time, it
// is killed. It is no error that an interrupt has killed it.
func (p *readerProcess) close() error {
	before := p.lost()
	_ = p.in.Close()
	ended := p.hasExited()
	if !ended {
		p.end(fmt.Errorf("a process that reads does not end: it was given %v", endTimeout))
		p.hasExited()
	}
	p.stop()
	_ = p.out.Close()
	switch err := p.lost(); {
	case errors.Is(err, context.Canceled):
		return nil
	case before == nil && ended && p.cmd.ProcessState.Success():
		return nil
	default:
		return err
	}
}
