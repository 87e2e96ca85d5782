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

// self is the connection of a member in the process of the Service: a frame is a call. So it needs no descriptor and
// no user who may connect, and nothing that clients do holds it up.
type self struct {
	s     *Service
	on    serve.Notified
	ended chan struct{}

	mu  sync.Mutex
	err error // why it has ended
}

// selfConn is its other end.
type selfConn struct{ *self }

var (
	_ serve.Client = (*self)(nil)
	_ serve.Conn   = selfConn{}
)

// Connect makes a connection for the process itself, which may be one member of each device.
func (s *Service) Connect(on serve.Notified) serve.Client {
	return &self{s: s, on: on, ended: make(chan struct{})}
}

// Send handles a frame.
func (c *self) Send(t wire.Type, payload []byte) error {
	if err := c.Err(); err != nil {
		return err
	}
	err := c.s.Request(selfConn{c}, wire.Frame{Header: wire.Header{Type: t}, Payload: payload})
	if err != nil {
		c.end(err)
	}
	return err
}

// Call is Send: the one request of a member is LEAVE, whose reply says nothing.
func (c *self) Call(_ context.Context, t wire.Type, payload []byte, _ wire.Type, _ func(wire.Frame) error) error {
	return c.Send(t, payload)
}

func (c *self) Hello() wire.Hello      { return wire.Hello{} }
func (c *self) Times() int             { return 0 }
func (c *self) Ended() <-chan struct{} { return c.ended }
func (c *self) Close()                 { c.end(vmm.ErrClosed) }

func (c *self) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

func (c *self) end(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.ended)
	}
	c.mu.Unlock()
	if first {
		c.s.End(selfConn{c})
	}
}

func (c selfConn) Cred() wire.Cred {
	return wire.Cred{PID: int32(os.Getpid()), UID: uint32(os.Getuid())}
}

func (c selfConn) PeerPIDFD() (int, error) {
	return processes.PIDFD(os.Getpid(), processes.StartOf(os.Getpid()))
}

func (c selfConn) Reply(t wire.Type, _ uint32, payload []byte, _ ...int) error {
	return c.on.Event(wire.Frame{Header: wire.Header{Type: t}, Payload: payload})
}

func (c selfConn) Refuse(_ uint32, err error) error { c.end(err); return nil }
func (c selfConn) Close(err error)                  { c.end(err) }
