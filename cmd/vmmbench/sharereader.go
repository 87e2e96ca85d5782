package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/verify"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
)

// Requests to a reader, the values of Do.
const (
	doAttach = "attach" // maps the memory; the reply has how long that took
	doLeave  = "leave"  // unmaps it
	doCheck  = "check"  // compares the bytes with the pattern
	doWait   = "wait"   // replies, waits for Len bytes, and replies again
	doByte   = "byte"   // replies, reads an empty line, and replies again
)

// readerRequest is what share asks a process that reads: one line of JSON on its stdin.
type readerRequest struct {
	Do     string      `json:"do"`
	Name   string      `json:"name"`             // of the memory
	Legacy *ipc.Handle `json:"legacy,omitempty"` // how it is attached to, if it is not published by that name
	Token  *ipc.Token  `json:"token,omitempty"`
	Len    uint64      `json:"len"`
	Mode   verify.Mode `json:"mode,omitempty"`
	Seed   uint64      `json:"seed,omitempty"`
	Chunks []uint64    `json:"chunks,omitempty"`
}

// readerReply is the reply, on its stdout. NS is a time of the clock of monotonic, or how
// long something took.
type readerReply struct {
	NS    int64          `json:"ns"`
	Check *verify.Result `json:"check,omitempty"`
	Error string         `json:"error,omitempty"`
}

// readerCommand is the name of the hidden command that a reader runs.
const readerCommand = "share-reader"

// shareReader is the command of a process that reads.
func (a *app) shareReader() *cobra.Command {
	c := command(&cobra.Command{Use: readerCommand + " DEVICE SOCKET", Hidden: true, Short: "Read what share has published"})
	c.Args = cobra.ExactArgs(2)
	c.RunE = func(c *cobra.Command, args []string) (err error) {
		r := &shareReader{socket: args[1], in: bufio.NewScanner(os.Stdin), out: json.NewEncoder(a.stdout), mapped: map[string]*mapped{}}
		r.in.Buffer(nil, math.MaxInt) // a request has all chunks
		if r.dev, err = openDevice(a.settings, args[0]); err != nil {
			err = r.out.Encode(readerReply{Error: err.Error()})
			r.in.Scan() // what is in the pipe is lost when this process ends
			return err
		}
		defer func() { err = errors.Join(err, r.dev.Close()) }()
		if err := r.out.Encode(readerReply{}); err != nil {
			return err
		}
		// Signals are for the process that has asked: it ends this one.
		return r.serve(context.WithoutCancel(c.Context()))
	}
	return c
}

// shareReader replies to requests. What it has mapped, requests unmap again.
type shareReader struct {
	dev    device
	socket string
	in     *bufio.Scanner // a line for each request
	out    *json.Encoder
	mapped map[string]*mapped
}

// mapped is memory that the reader has mapped.
type mapped struct {
	undo
	ptr  vmm.Ptr
	view *shareable.View // nil if it is shared in another way
}

func (r *shareReader) serve(ctx context.Context) error {
	for r.in.Scan() {
		var q readerRequest
		if err := json.Unmarshal(r.in.Bytes(), &q); err != nil {
			return err
		}
		reply, err := r.reply(ctx, q)
		if err != nil {
			reply.Error = err.Error()
		}
		if err := r.out.Encode(reply); err != nil {
			return err
		}
	}
	return r.in.Err()
}

// readerTimeout is how long a reader waits for what a request is about.
const readerTimeout = 30 * time.Second

func (r *shareReader) reply(ctx context.Context, q readerRequest) (reply readerReply, err error) {
	ctx, cancel := context.WithTimeout(ctx, readerTimeout)
	defer cancel()
	m := r.mapped[q.Name]
	if q.Do == doWait || q.Do == doByte { // the first reply says that this process is about to wait
		if err := r.out.Encode(reply); err != nil {
			return reply, err
		}
	}
	switch q.Do {
	case doAttach:
		m = &mapped{}
		r.mapped[q.Name] = m
		begun := monotonic()
		err = r.attach(ctx, q, m)
		return readerReply{NS: monotonic() - begun}, err
	case doLeave:
		err = m.close()
	case doCheck:
		b := &buffer{dev: r.dev, ptr: m.ptr, size: q.Len}
		result, err := b.check(ctx, verify.Pattern{Seed: q.Seed}, q.Mode, q.Chunks)
		return readerReply{Check: &result}, err
	case doWait:
		err = m.view.Wait(ctx, q.Len)
	case doByte:
		r.in.Scan()
	}
	return readerReply{NS: monotonic()}, err
}

// poolFile is the descriptor of the pool that the reader was given.
const poolFile = 3

// attach maps the memory of a request. Of a range it waits until Len bytes are there.
func (r *shareReader) attach(ctx context.Context, q readerRequest, m *mapped) (err error) {
	switch {
	case q.Legacy != nil:
		x, err := ipc.Open(r.dev.Device, *q.Legacy)
		m.add(x.Close)
		m.ptr = x.Ptr()
		return err
	case q.Token != nil:
		p, err := ipc.ImportPool(r.dev.Device, poolFile)
		if err != nil {
			return err
		}
		m.add(p.Close)
		b, err := p.Import(*q.Token)
		if err != nil {
			return err
		}
		m.add(b.FreeNow)
		m.ptr = b.Ptr()
		return nil
	}
	m.view, err = shareable.Attach(ctx, r.socket, q.Name, r.dev.Device, shareable.AttachOptions{})
	m.add(m.view.Close)
	m.ptr = m.view.Ptr()
	return cmp.Or(err, m.view.Wait(ctx, q.Len))
}
