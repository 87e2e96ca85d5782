package wire

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"syscall"
	"time"
)

// Errors of a connection.
var (
	// ErrNotPacket answers a socket that does not keep packets apart.
	ErrNotPacket = errors.New("not a SOCK_SEQPACKET socket")

	// ErrTruncated answers a frame whose fds do not all fit below this process's
	// limit. The connection goes on; none of the fds is left open.
	ErrTruncated = errors.New("no room for all file descriptors of a frame")
)

// Frame is what one packet brought. The caller must Close it, or each of FDs.
type Frame struct {
	Header
	Payload []byte // until the next Read
	FDs     []*FD
}

// Close closes those FDs that nobody took.
func (f *Frame) Close() error {
	var first error
	for _, fd := range f.FDs {
		if err := fd.Close(); first == nil {
			first = err
		}
	}
	return first
}

// Cred is who made the other end of a connection.
type Cred struct {
	PID      int32
	UID, GID uint32
}

// Conn carries frames. One goroutine reads; any may call the other methods.
type Conn struct {
	c *net.UnixConn

	in, control []byte
	received    uint64
	reset       bool
	onSkip      func() error

	writing sync.Mutex // guards what follows
	out     []byte
	sent    uint64

	once sync.Once
	err  error
}

// NewConn takes over c, unless it answers an error: ErrNotPacket if c is not a
// SOCK_SEQPACKET socket. The caller must Close it.
func NewConn(c *net.UnixConn) (*Conn, error) {
	if c == nil {
		return nil, ErrNotPacket
	}
	packets, err := keepsPackets(c)
	if err != nil {
		return nil, err
	}
	if !packets {
		return nil, ErrNotPacket
	}
	return &Conn{c: c, in: make([]byte, MaxFrame), control: make([]byte, controlSize)}, nil
}

// Read waits for the next frame of a type known here. What it answers beside an
// error has no fds. After io.EOF, a ProtocolError or whatever the socket says,
// there is nothing more to read. After ErrTruncated there is, and the frame is
// answered without its fds; so it is after an exceeded deadline.
//
// An empty packet, which is no frame, looks like the end if it has no fds.
func (c *Conn) Read() (Frame, error) {
	for {
		f, err := c.readPacket()
		if (err == nil || errors.Is(err, ErrTruncated)) && f.Type.name() == "" {
			_ = f.Close()
			if c.onSkip != nil {
				if err := c.onSkip(); err != nil {
					return Frame{}, err
				}
			}
			continue
		}
		return f, err
	}
}

// OnSkip has Read call f for each frame of an unknown type, and answer its error.
// It is to be called before Read is.
func (c *Conn) OnSkip(f func() error) { c.onSkip = f }

func (c *Conn) readPacket() (Frame, error) {
	n, oobn, flags, _, err := c.c.ReadMsgUnix(c.in, c.control)
	if errors.Is(err, syscall.ECONNRESET) && !c.reset {
		// A peer closed before it had read everything. The system tells that
		// first, and only then what it had sent.
		c.reset = true
		n, oobn, flags, _, err = c.c.ReadMsgUnix(c.in, c.control)
	}
	// A packet can bring fds where Go sees the end of the stream.
	fds, bad := receive(c.control[:max(oobn, 0)], flags, closeFD)
	f, err := c.checkPacket(c.in[:max(n, 0)], flags, fds, bad, err)
	if err != nil {
		closeAll(fds, closeFD)
		return f, err
	}
	for _, fd := range fds {
		f.FDs = append(f.FDs, NewFD(fd))
	}
	return f, nil
}

// frame checks a packet that came with fds, or with bad instead of them, and
// with what the socket answered.
func (c *Conn) checkPacket(packet []byte, flags int, fds []int, bad, err error) (Frame, error) {
	switch {
	case err != nil && (len(fds) > 0 || bad != nil) && errors.Is(err, io.EOF):
		return Frame{}, protocolf("fds in an empty packet")
	case err != nil:
		return Frame{}, err
	case truncated(flags):
		return Frame{}, protocolf("frame of more than %d bytes", MaxFrame)
	}
	h, err := DecodeHeader(packet)
	if err != nil {
		return Frame{Header: h}, err
	}
	if h.Sequence != c.received+1 {
		return Frame{}, protocolf("%v is number %d after %d", h.Type, h.Sequence, c.received)
	}
	if bad == nil && int(h.FDs) != len(fds) {
		return Frame{}, protocolf("%v says %d fds and has %d", h.Type, h.FDs, len(fds))
	}
	c.received = h.Sequence
	return Frame{Header: h, Payload: packet[HeaderSize:]}, bad
}

func closeAll(fds []int, closeFD func(int) error) {
	for _, fd := range fds {
		_ = closeFD(fd)
	}
}

// Write sends a frame in one packet. The fds stay the caller's. An error leaves
// nothing sent: after an exceeded deadline the frame may be written again.
func (c *Conn) Write(t Type, request, flags uint32, payload []byte, fds ...int) error {
	if len(payload) > MaxPayload || len(fds) > MaxFDs {
		return fmt.Errorf("%v with %d bytes and %d fds, over %d or %d", t, len(payload), len(fds), MaxPayload, MaxFDs)
	}
	var control []byte
	if len(fds) > 0 {
		control = rights(fds)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	h := Header{
		Major: Major, Minor: Minor, Type: t, Flags: flags, FDs: uint16(len(fds)),
		Len: uint32(len(payload)), Request: request, Sequence: c.sent + 1,
	}
	c.out = append(h.Append(c.out[:0]), payload...)
	if _, _, err := c.c.WriteMsgUnix(c.out, control, nil); err != nil {
		return err
	}
	c.sent++
	return nil
}

// SetReadDeadline ends a Read at t with os.ErrDeadlineExceeded.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline ends a Write at t with os.ErrDeadlineExceeded.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// SetSendBuffer asks the kernel for n bytes of room for unread frames.
func (c *Conn) SetSendBuffer(n int) error { return c.c.SetWriteBuffer(n) }

// Cred is who made the other end, as the kernel remembers it.
func (c *Conn) Cred() (Cred, error) { return peerCred(c.c) }

// Queued is how much memory the kernel holds for what the peer has not read. It
// is more than the bytes of the frames.
func (c *Conn) Queued() (int, error) { return queued(c.c) }

// Close closes the connection and ends a Read or Write that waits. Further
// calls answer what the first did.
func (c *Conn) Close() error {
	c.once.Do(func() { c.err = c.c.Close() })
	return c.err
}
