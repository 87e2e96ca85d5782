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
	// ErrNotPacket is for a socket that does not preserve packets.
	ErrNotPacket = errors.New("not a SOCK_SEQPACKET socket")

	// ErrTruncated is for a frame whose fds did not all fit below this process's
	// limit on open files. The connection can be read further.
	ErrTruncated = errors.New("no room for all file descriptors of a frame")
)

// Frame is one received frame. Payload and FDs are valid until the next Read, which
// closes the FDs; so does Conn.Release.
type Frame struct {
	Header
	Payload []byte
	FDs     []*FD
}

// Close closes the FDs that are still open. It is for those who know what they are:
// the close of a file can wait as long as the sender of the file likes.
func (f *Frame) Close() error {
	var first error
	for _, fd := range f.FDs {
		if err := fd.Close(); first == nil {
			first = err
		}
	}
	return first
}

// Cred is the process and user that made the other end of a connection.
type Cred struct {
	PID      int32
	UID, GID uint32
}

// Conn sends and receives frames. One goroutine calls Read, Release and Drain; all may
// call the other methods.
type Conn struct {
	// Immutable.
	c   *net.UnixConn
	raw syscall.RawConn // of NewOwnerConn; else nil

	// Of the goroutine that calls Read.
	in, control []byte       // with raw, in is as long as the last packet needs
	pooled      *[]byte      // what in is of, to go back to buffers
	open        []*FD        // of the last packet, whether it was a good frame or not
	received    uint64       // the sequence number of the last frame
	reset       bool         // ECONNRESET was seen once
	onUnknown   func() error // set before the first Read

	// Guarded by writing.
	writing sync.Mutex
	out     []byte
	sent    uint64 // the sequence number of the last frame

	// Set once, by Close.
	once sync.Once
	err  error
}

// NewConn makes a Conn of c and owns it, unless it returns an error: ErrNotPacket
// if c is not a SOCK_SEQPACKET socket. The caller must Close the Conn.
func NewConn(c *net.UnixConn) (*Conn, error) {
	nc, err := newConn(c)
	if err != nil {
		return nil, err
	}
	nc.pooled, _ = buffers.Get().(*[]byte)
	nc.in, nc.control = *nc.pooled, make([]byte, controlSize)
	return nc, nil
}

// buffers are for connections that take large frames. Many of them live for one object
// alone, and would keep the garbage collector running.
var buffers = sync.Pool{New: func() any {
	b := make([]byte, MaxFrame)
	return &b
}}

// Recycle gives the buffer back in which frames were. It is for the goroutine that calls
// Read, after its last call; the Payload of the last frame is not valid any more.
func (c *Conn) Recycle() {
	if c.pooled != nil {
		buffers.Put(c.pooled)
		c.pooled, c.in = nil, nil
	}
}

func newConn(c *net.UnixConn) (*Conn, error) {
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
	return &Conn{c: c}, nil
}

// NewOwnerConn is NewConn for the owner's side, which takes no fds. A packet with fds
// breaks the protocol and stays unread: when a process drops the last reference to a
// file, the system call in which it does so can take as long as the file's maker likes.
func NewOwnerConn(c *net.UnixConn) (*Conn, error) {
	oc, err := newConn(c) // readMsg makes the buffer that a packet needs
	if err != nil {
		return nil, err
	}
	oc.raw, err = c.SyscallConn()
	return oc, err
}

// Read waits for the next frame of a known type. A frame that is returned with an
// error has no FDs. After ErrTruncated, which comes with the frame, and after an
// exceeded deadline Read can be called again; after any other error it cannot.
//
// Read closes the fds of the frame before, also of one that it refused, and fds for
// which there is no room are closed by the kernel during the call. Both can wait as
// long as the sender of a file likes, so Read can outlast its deadline.
//
// An empty packet without fds cannot be told from the end of the connection.
func (c *Conn) Read() (Frame, error) {
	for {
		c.Release()
		f, err := c.readPacket()
		if (err == nil || errors.Is(err, ErrTruncated)) && f.Type.name() == "" {
			if c.onUnknown != nil {
				if err := c.onUnknown(); err != nil {
					return Frame{}, err
				}
			}
			continue
		}
		return f, err
	}
}

// OnUnknown has Read call f for each frame of an unknown type; an error of f ends
// Read. OnUnknown must be called before the first Read.
func (c *Conn) OnUnknown(f func() error) { c.onUnknown = f }

// readPacket reads one packet and checks it.
func (c *Conn) readPacket() (Frame, error) {
	n, oobn, flags, err := c.readMsg()
	if errors.Is(err, syscall.ECONNRESET) && !c.reset {
		// The peer closed before it had read everything. The kernel reports that
		// once, and then returns the packets that the peer had sent.
		c.reset = true
		n, oobn, flags, err = c.readMsg()
	}
	var broke *ProtocolError
	if errors.As(err, &broke) {
		return Frame{}, err
	}
	// The fds are taken out before anything is checked, so that none stays open. An
	// empty packet can have fds, although Go reports it as the end.
	fds, bad := receive(c.control[:max(oobn, 0)], flags)
	for _, fd := range fds {
		c.open = append(c.open, NewFD(fd))
	}
	f, err := c.checkPacket(c.in[:max(n, 0)], flags, fds, bad, err)
	if err == nil {
		f.FDs = c.open
	}
	return f, err
}

// readMsg reads one packet. For NewOwnerConn it refuses one with fds.
func (c *Conn) readMsg() (n, oobn, flags int, err error) {
	if c.raw != nil {
		size, fds, err := waitForPacket(c.raw)
		if fds {
			err = protocolf("fds from a reader")
		}
		if err != nil {
			return 0, 0, 0, err
		}
		// The buffer becomes as large as the packet needs, up to MaxFrame.
		if n := min(max(size, smallPacket), MaxFrame); len(c.in) < n || n == smallPacket && len(c.in) > n {
			c.in = make([]byte, n)
		}
	}
	n, oobn, flags, _, err = c.c.ReadMsgUnix(c.in, c.control)
	return n, oobn, flags, err
}

// Almost all requests are small, and there are many connections.
const smallPacket = 512

// Release closes the fds of the last frame that are still open.
func (c *Conn) Release() {
	for _, fd := range c.open {
		_ = fd.Close()
	}
	c.open = nil
}

// Drain reads the packets that are queued, once Shutdown has ended the connection, and
// closes their fds. The close of a socket would do the same, in the process that is
// the last to close it.
func (c *Conn) Drain() {
	// With the sender's credentials on each packet, an empty one differs from the end.
	if err := passCred(c.c); err != nil {
		return
	}
	for {
		c.Release()
		_, oobn, flags, _, err := c.c.ReadMsgUnix(c.in, c.control)
		if oobn == 0 || err != nil && !errors.Is(err, io.EOF) {
			return
		}
		fds, _ := receive(c.control[:oobn], flags)
		for _, fd := range fds {
			c.open = append(c.open, NewFD(fd))
		}
	}
}

// checkPacket makes a Frame of a packet. err is that of the socket; bad is what is
// wrong with the fds.
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
	// A truncated frame keeps its place in the sequence: the connection goes on.
	if h.Sequence != c.received+1 {
		return Frame{}, protocolf("%v with sequence number %d after %d", h.Type, h.Sequence, c.received)
	}
	if bad == nil && int(h.FDs) != len(fds) {
		return Frame{}, protocolf("%v with %d fds instead of %d", h.Type, len(fds), h.FDs)
	}
	c.received = h.Sequence
	return Frame{Header: h, Payload: packet[HeaderSize:]}, bad
}

// Write sends a frame in one packet. It does not take the fds. After an error
// nothing was sent: after an exceeded deadline the frame may be written again.
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
	// A sequence number counts only once its frame is sent.
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

// Control calls f with the socket's descriptor.
func (c *Conn) Control(f func(fd int)) error {
	raw, err := c.c.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// SetDeadline is SetReadDeadline and SetWriteDeadline.
func (c *Conn) SetDeadline(t time.Time) error { return c.c.SetDeadline(t) }

// SetReadDeadline ends a Read at t with os.ErrDeadlineExceeded.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.c.SetReadDeadline(t) }

// SetWriteDeadline ends a Write at t with os.ErrDeadlineExceeded.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.c.SetWriteDeadline(t) }

// SetSendBuffer sets the kernel's buffer for frames that the peer has not read.
func (c *Conn) SetSendBuffer(n int) error { return c.c.SetWriteBuffer(n) }

// Cred returns the process that made the other end, as the kernel recorded it.
func (c *Conn) Cred() (Cred, error) { return peerCred(c.c) }

// PeerPIDFD returns a pidfd of that process, whatever namespace it is in. The caller closes it.
// Kernels before Linux 6.5 have none.
func (c *Conn) PeerPIDFD() (int, error) { return peerPIDFD(c.c) }

// Queued is how much memory the kernel holds for frames that the peer has not
// read. It is more than the bytes of the frames.
func (c *Conn) Queued() (int, error) { return queued(c.c) }

// Shutdown ends the connection in both directions: a Read or Write that waits returns,
// and the peer sees the end. It closes nothing and never waits. What the peer sent
// before can still be read.
func (c *Conn) Shutdown() error { return shutdown(c.c) }

// ShutdownWrite is Shutdown for what this side sends.
func (c *Conn) ShutdownWrite() error { return c.c.CloseWrite() }

// AwaitEnd waits, after ShutdownWrite, until the peer's end of the connection is closed or shut
// down, by the end of its last process for one, or until a read deadline passes. It does not wait for
// a peer that sends descriptors, which may be those of its own end, or sends without end. No Read
// may run.
func (c *Conn) AwaitEnd() { awaitEnd(c.c) }

// Discard takes what the peer sent before Shutdown and nothing has read. It returns
// false if there are fds in it: these it leaves, and Close can take long. No Read may
// run or follow.
func (c *Conn) Discard() bool { return discard(c.c) }

// Close closes the connection and ends a Read or Write that waits. It waits for them,
// and for the close of fds that were sent and not read: as long as the sender of a file
// likes. Further calls return the error of the first.
func (c *Conn) Close() error {
	c.once.Do(func() { c.err = c.c.Close() })
	return c.err
}
