package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// replyTimeout is how long a request may take, and a process to start. It is more than a
// reader waits by itself.
const replyTimeout = readerTimeout + 10*time.Second

// endTimeout is how long a process may take to end.
const endTimeout = 10 * time.Second

// readers are processes that read. If one of them ends, or does not reply, all are killed: the
// others may be at an earlier request. All requests then fail at once with the same error.
type readers struct {
	settings *settings
	procs    []*readerProcess

	// ctx is done when the processes take no requests any more. Its cause says why: it is the first
	// that end was given, or that of the run's context.
	ctx context.Context
	end context.CancelCauseFunc
}

// readerProcess is one of them.
type readerProcess struct {
	cmd    *exec.Cmd
	in     io.WriteCloser // its stdin
	decode *json.Decoder  // of its stdout
	exited chan struct{}  // closed when it has ended
}

// startReaders starts n processes that read what a server on path has published. They are killed
// when ctx is done. The caller must close the readers, also after an error.
func startReaders(ctx context.Context, set *settings, n int, device, path string, files ...*os.File) (*readers, error) {
	r := &readers{settings: set}
	r.ctx, r.end = context.WithCancelCause(ctx)
	for range n {
		if err := r.start(device, path, files); err != nil {
			return r, err
		}
	}
	_, err := r.replies() // the first one comes when it has opened the device
	return r, err
}

func (r *readers) start(device, path string, files []*os.File) error {
	argv, env := r.settings.ownArgs(readerCommand, device, path)
	cmd := exec.CommandContext(r.ctx, "/proc/self/exe", argv...)
	cmd.Env, cmd.Stderr, cmd.ExtraFiles = append(os.Environ(), env...), os.Stderr, files
	endWithParent(cmd)
	in, err := cmd.StdinPipe()
	out, failed := cmd.StdoutPipe()
	if err := cmp.Or(err, failed); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	// A device can hold up the end of a process that is killed: then requests end because the other
	// ends of the pipes are closed.
	context.AfterFunc(r.ctx, func() { _, _ = in.Close(), out.Close() })
	p := &readerProcess{cmd: cmd, in: in, decode: json.NewDecoder(out), exited: make(chan struct{})}
	r.procs = append(r.procs, p)
	go func() {
		if err := cmd.Wait(); err != nil {
			r.end(fmt.Errorf("a process that reads has ended: %v", cmd.ProcessState))
		}
		close(p.exited)
	}()
	return nil
}

// lost returns why there are no requests any more, nil as long as there may be.
func (r *readers) lost() error { return context.Cause(r.ctx) }

// each does what needs a process for all: it writes to their stdin or reads from their stdout.
func (r *readers) each(do func(*readerProcess) error) error {
	for _, p := range r.procs {
		if err := r.lost(); err != nil {
			return err
		}
		stop := r.settings.afterReplyTimeout(p, func() {
			r.end(fmt.Errorf("a process that reads does not reply: nothing came for %v", replyTimeout))
		})
		err := do(p)
		stop()
		if err == nil {
			continue
		}
		select { // a pipe that is closed says that the process ends, but not why
		case <-r.ctx.Done():
		case <-time.After(endTimeout):
			r.end(fmt.Errorf("a process that reads takes no requests: %w", err))
		}
	}
	return r.lost()
}

// ask makes the same request to all readers and returns the replies.
func (r *readers) ask(q readerRequest) ([]readerReply, error) {
	err := r.each(func(p *readerProcess) error { return json.NewEncoder(p.in).Encode(q) })
	if err != nil {
		return nil, err
	}
	return r.replies()
}

// wake writes the empty line, one byte, that the readers wait for after doByte.
func (r *readers) wake() error {
	return r.each(func(p *readerProcess) error {
		_, err := p.in.Write([]byte("\n"))
		return err
	})
}

// replies returns one reply of each reader.
func (r *readers) replies() (list []readerReply, err error) {
	lost := r.each(func(p *readerProcess) error {
		var reply readerReply
		if err := p.decode.Decode(&reply); err != nil {
			return err
		}
		if reply.Error != "" {
			err = errors.Join(err, fmt.Errorf("a process that reads: %s", reply.Error))
		}
		list = append(list, reply)
		return nil
	})
	return list, cmp.Or(lost, err)
}

// close ends the processes: they read their stdin to the end. If one does not end in time, all
// are killed. It returns why they were lost, unless it was an interrupt: then each case says so.
func (r *readers) close() error {
	for _, p := range r.procs {
		_ = p.in.Close()
	}
	for _, p := range r.procs {
		select {
		case <-p.exited:
		case <-time.After(endTimeout):
			r.end(fmt.Errorf("a process that reads does not end: it was given %v", endTimeout))
		}
	}
	err := r.lost()
	r.end(nil)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
