package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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
	doAttach = "attach" // attaches, waits for Len bytes and detaches; the reply has the time
	doFollow = "follow" // attaches and keeps the view
	doLeave  = "leave"  // closes that view
	doWait   = "wait"   // replies, waits for Len bytes, and replies again
	doByte   = "byte"   // replies, reads a byte of stdin, and replies again
	doCheck  = "check"  // compares the bytes with the pattern
)

// readerRequest is what share asks a process that reads: one line of JSON on its stdin.
type readerRequest struct {
	Do     string      `json:"do"`
	How    string      `json:"how,omitempty"`
	Handle string      `json:"handle,omitempty"`
	Name   string      `json:"name"`
	Len    uint64      `json:"len"`
	Mode   verify.Mode `json:"mode,omitempty"`
	Seed   uint64      `json:"seed,omitempty"`
	Chunks []uint64    `json:"chunks,omitempty"`
}

// readerReply is the reply, on its stdout. NS is a time of the clock of monotonic, or how
// long something took.
type readerReply struct {
	NS    int64          `json:"ns"`
	FDs   int            `json:"fds"`
	Check *verify.Result `json:"check,omitempty"`
	Error string         `json:"error,omitempty"`
}

// readerCommand is the name of the hidden command that a reader runs.
const readerCommand = "share-reader"

// shareReader is the command of a process that reads.
func (a *app) shareReader() *cobra.Command {
	c := command(&cobra.Command{Use: readerCommand, Hidden: true, Short: "Read what share has published"})
	device := c.Flags().String("device", "", "the device")
	socket := c.Flags().String("socket", "", "the server")
	c.RunE = func(c *cobra.Command, _ []string) (err error) {
		dev, err := openDevice(a.settings, *device)
		out := json.NewEncoder(a.stdout)
		if err != nil {
			return out.Encode(readerReply{Error: err.Error()})
		}
		r := &shareReader{dev: dev, socket: *socket, in: bufio.NewReader(os.Stdin), out: out, views: map[string]*shareable.View{}}
		defer func() { err = errors.Join(err, r.close()) }()
		if err := out.Encode(readerReply{}); err != nil {
			return err
		}
		// Signals are for the process that has asked: it ends this one.
		return r.serve(context.WithoutCancel(c.Context()))
	}
	return c
}

// shareReader replies to requests.
type shareReader struct {
	dev    device
	socket string
	in     *bufio.Reader
	out    *json.Encoder
	views  map[string]*shareable.View
}

func (r *shareReader) close() error {
	var err error
	for _, v := range r.views {
		err = errors.Join(err, v.Close())
	}
	return errors.Join(err, r.dev.Close())
}

func (r *shareReader) serve(ctx context.Context) error {
	for {
		line, err := r.in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		var q readerRequest
		if err == nil {
			err = json.Unmarshal(line, &q)
		}
		if err != nil {
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
}

// readerTimeout is how long a reader waits for what a request is about.
const readerTimeout = 30 * time.Second

func (r *shareReader) reply(ctx context.Context, q readerRequest) (readerReply, error) {
	ctx, cancel := context.WithTimeout(ctx, readerTimeout)
	defer cancel()
	v := r.views[q.Name]
	switch q.Do {
	case doAttach:
		return r.attachOnce(ctx, q)
	case doFollow:
		v, err := r.attach(ctx, q)
		r.views[q.Name] = v
		return readerReply{}, err
	case doLeave:
		delete(r.views, q.Name)
		return readerReply{}, v.Close()
	case doWait:
		// The first reply says that this process is about to wait.
		if err := r.out.Encode(readerReply{}); err != nil {
			return readerReply{}, err
		}
		err := v.Wait(ctx, q.Len)
		return readerReply{NS: monotonic()}, err
	case doByte:
		if err := r.out.Encode(readerReply{}); err != nil {
			return readerReply{}, err
		}
		_, err := r.in.ReadByte()
		return readerReply{NS: monotonic()}, err
	case doCheck:
		return r.check(ctx, q)
	}
	return readerReply{}, fmt.Errorf("request %q is unknown", q.Do)
}

// attach returns a view once q.Len bytes are mapped.
func (r *shareReader) attach(ctx context.Context, q readerRequest) (*shareable.View, error) {
	v, err := shareable.Attach(ctx, r.socket, q.Name, r.dev.Device, shareable.AttachOptions{})
	if err != nil {
		return nil, err
	}
	if err := v.Wait(ctx, q.Len); err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return v, nil
}

// shared is memory that the reader has mapped.
type shared struct {
	ptr    vmm.Ptr
	readAt func(dst []byte, off int64) (int, error)
	close  func() error
}

func sharedView(v *shareable.View) shared {
	return shared{ptr: v.Ptr(), readAt: v.ReadAt, close: v.Close}
}

// poolFile is the descriptor of the pool that the reader was given.
const poolFile = 3

// mapMemory maps the memory of a request.
func (r *shareReader) mapMemory(ctx context.Context, q readerRequest) (shared, error) {
	switch q.How {
	case howLegacy:
		var h ipc.Handle
		if err := h.UnmarshalText([]byte(q.Handle)); err != nil {
			return shared{}, err
		}
		m, err := ipc.Open(r.dev.Device, h)
		if err != nil {
			return shared{}, err
		}
		return shared{ptr: m.Ptr(), readAt: m.ReadAt, close: m.Close}, nil
	case howPool:
		var token ipc.Token
		if err := token.UnmarshalText([]byte(q.Handle)); err != nil {
			return shared{}, err
		}
		p, err := ipc.ImportPool(r.dev.Device, poolFile)
		if err != nil {
			return shared{}, err
		}
		b, err := p.Import(token)
		if err != nil {
			return shared{}, errors.Join(err, p.Close())
		}
		readAt := func(dst []byte, off int64) (int, error) {
			return len(dst), r.dev.CopyOut(dst, b.Ptr()+vmm.Ptr(off))
		}
		return shared{ptr: b.Ptr(), readAt: readAt, close: func() error { return errors.Join(b.FreeNow(), p.Close()) }}, nil
	}
	v, err := r.attach(ctx, q)
	if err != nil {
		return shared{}, err
	}
	return sharedView(v), nil
}

// attachOnce times attaching, and counts the descriptors that the mapping holds.
func (r *shareReader) attachOnce(ctx context.Context, q readerRequest) (readerReply, error) {
	before, begun := openFiles(), monotonic()
	m, err := r.mapMemory(ctx, q)
	reply := readerReply{NS: monotonic() - begun, FDs: openFiles() - before}
	if err != nil {
		return reply, err
	}
	return reply, m.close()
}

// check compares the bytes, in a view of its own if this process has none.
func (r *shareReader) check(ctx context.Context, q readerRequest) (reply readerReply, err error) {
	var m shared
	if v := r.views[q.Name]; v != nil {
		m = sharedView(v)
	} else {
		if m, err = r.mapMemory(ctx, q); err != nil {
			return reply, err
		}
		defer func() { err = errors.Join(err, m.close()) }()
	}
	k, err := r.dev.ownKernels()
	if err != nil {
		return reply, err
	}
	result, err := k.check(ctx, verify.Pattern{Seed: q.Seed}, q.Mode, q.Len, q.Chunks, m.ptr, func(scratch []byte, off, n uint64) ([]byte, error) {
		_, err := m.readAt(scratch[:n], int64(off))
		return scratch[:n], err
	})
	reply.Check = &result
	return reply, err
}

// openFiles is the number of this process's descriptors, 0 if it cannot be found out.
func openFiles() int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(list)
}
