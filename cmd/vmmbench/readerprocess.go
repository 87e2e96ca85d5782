package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
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

	// ctx is done when the process takes no requests any more. Its cause says why: it is the first
	// that end was given, or that of the run's context.
	ctx context.Context
	end context.CancelCauseFunc
}

// startReader starts a process that reads what a server on path has published. It is killed
// when ctx is done.
func startReader(ctx context.Context, set *settings, device, path string, files ...*os.File) (*readerProcess, error) {
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
	p := &readerProcess{settings: set, in: in, out: out, decode: json.NewDecoder(out), exited: make(chan struct{})}
	p.ctx, p.end = context.WithCancelCause(ctx)
	argv, env := set.ownArgs(readerCommand, "--device", device, "--socket", path)
	p.cmd = exec.CommandContext(p.ctx, self, argv...)
	p.cmd.Env, p.cmd.Stdin, p.cmd.Stdout, p.cmd.Stderr = append(os.Environ(), env...), stdin, stdout, os.Stderr
	p.cmd.ExtraFiles = files
	endWithParent(p.cmd)
	// The process alone keeps its ends of the pipes, so the pipes end with it. A device can hold up the
	// end of a process that is killed: then requests end because the other ends are closed.
	context.AfterFunc(p.ctx, func() { _, _ = in.Close(), out.Close() })
	err = errors.Join(p.cmd.Start(), stdin.Close(), stdout.Close())
	if err != nil {
		p.end(err)
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait() // the state says the same
		close(p.exited)
	}()
	if _, err := p.receive(); err != nil { // its first reply comes when it has opened the device
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// lost returns why there are no requests any more, nil as long as there may be.
func (p *readerProcess) lost() error { return context.Cause(p.ctx) }

// hasExited waits until the process has ended, and no longer than endTimeout.
func (p *readerProcess) hasExited() bool {
	select {
	case <-p.exited:
		return true
	case <-time.After(endTimeout):
		return false
	}
}

// exitError says how the process has ended.
func (p *readerProcess) exitError() error {
	return fmt.Errorf("a process that reads has ended: %v", p.cmd.ProcessState)
}

// try does what needs the process: it writes to its stdin or reads from its stdout.
func (p *readerProcess) try(do func() error) error {
	if err := p.lost(); err != nil {
		return err
	}
	stop := p.settings.afterReplyTimeout(p, func() {
		p.end(fmt.Errorf("a process that reads does not reply: nothing came for %v", replyTimeout))
	})
	err := do()
	stop()
	switch {
	case err == nil:
		return nil
	case p.lost() == nil && p.hasExited(): // a pipe that is closed says that the process ends, but not why
		p.end(p.exitError())
	default:
		p.end(fmt.Errorf("a process that reads takes no requests: %w", err))
	}
	return p.lost()
}

func (p *readerProcess) send(q readerRequest) error {
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
	err = p.try(func() error { return p.decode.Decode(&r) })
	if r.Error != "" {
		err = fmt.Errorf("a process that reads: %s", r.Error)
	}
	return r, err
}

// close ends the process: it reads its stdin to the end. If it does not end in time, it
// is killed. It is no error that an interrupt has killed it.
func (p *readerProcess) close() error {
	_ = p.in.Close()
	if !p.hasExited() {
		p.end(fmt.Errorf("a process that reads does not end: it was given %v", endTimeout))
		p.hasExited()
	} else if !p.cmd.ProcessState.Success() {
		p.end(p.exitError())
	}
	err := p.lost()
	p.end(nil)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
