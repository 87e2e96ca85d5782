package lending

import (
	"context"
	"os"
	"sync"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// own is the connection of a member in the process of the Service: a frame is a call. So it needs no descriptor and
// no user who may connect, and nothing that clients do holds it up.
type own struct {
	s     *Service
	on    serve.Notified
	ended chan struct{}

	mu  sync.Mutex
	err error // why it has ended
}

// ownConn is its other end.
type ownConn struct{ *own }

var (
	_ serve.Client = (*own)(nil)
	_ serve.Conn   = ownConn{}
)

// Connect makes a connection for the process itself, which may be one member of each device.
func (s *Service) Connect(on serve.Notified) serve.Client {
	return &own{s: s, on: on, ended: make(chan struct{})}
}

// Send handles a frame.
func (o *own) Send(t wire.Type, payload []byte) error {
	if err := o.Err(); err != nil {
		return err
	}
	err := o.s.Request(ownConn{o}, wire.Frame{Header: wire.Header{Type: t}, Payload: payload})
	if err != nil {
		o.end(err)
	}
	return err
}

// Call is Send: the one request of a member is LEAVE, whose reply says nothing.
func (o *own) Call(_ context.Context, t wire.Type, payload []byte, _ wire.Type, _ func(wire.Frame) error) error {
	return o.Send(t, payload)
}

func (o *own) Hello() wire.Hello      { return wire.Hello{} }
func (o *own) Times() int             { return 0 }
func (o *own) Ended() <-chan struct{} { return o.ended }
func (o *own) Close()                 { o.end(vmm.ErrClosed) }

func (o *own) Err() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

func (o *own) end(err error) {
	o.mu.Lock()
	first := o.err == nil
	if first {
		o.err = err
		close(o.ended)
	}
	o.mu.Unlock()
	if first {
		o.s.End(ownConn{o})
	}
}

func (c ownConn) Cred() wire.Cred {
	return wire.Cred{PID: int32(os.Getpid()), UID: uint32(os.Getuid())}
}

func (c ownConn) PeerPIDFD() (int, error) {
	return processes.PIDFD(os.Getpid(), processes.StartOf(os.Getpid()))
}

func (c ownConn) Reply(t wire.Type, _ uint32, payload []byte, _ ...int) error {
	return c.on.Event(wire.Frame{Header: wire.Header{Type: t}, Payload: payload})
}

func (c ownConn) Refuse(_ uint32, err error) error { c.end(err); return nil }
func (c ownConn) Close(err error)                  { c.end(err) }
