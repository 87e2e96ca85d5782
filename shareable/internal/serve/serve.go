// Package serve is the seam between package shareable, which has the connections and what
// readers attach to, and package store, which says what the objects are.
package serve

import (
	"context"
	"net"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Sharing is the door of package shareable, for package store: see package door. The type parameters are types of
// shareable: *Server, *View, Options and AttachOptions.
type Sharing[S, V, O, A any] interface {
	// Check is the error that NewStore and Restore would return for the options.
	Check(o O) error
	// NewStore makes a server, as NewServer does, whose requests h handles beside those of readers.
	NewStore(dev *vmm.Device, o O, h Handler) (S, Server, error)
	// Restore makes a server of what Record described, without a socket, and takes the
	// descriptors. Objects come in the order of those; one that cannot be made is nil. nextID is
	// the highest id so far.
	Restore(dev *vmm.Device, o O, h Handler, instance [16]byte, nextID uint64, all []Recorded) (S, Server, []Object, error)

	// Dial connects to the store at path. DialConn does so over an existing connection, which it
	// takes over, and does not connect again. The errors are those of Attach.
	Dial(ctx context.Context, path string, dev *vmm.Device, o A, on Notified) (Client, error)
	DialConn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o A, on Notified) (Client, error)
	// DialSpare connects to the server at path and exchanges HELLO, DialSpareConn over an existing
	// connection. The errors are those of Attach. The caller must Attach or Close the Spare.
	DialSpare(ctx context.Context, path string, dev *vmm.Device, o A) (Spare[V], error)
	DialSpareConn(ctx context.Context, conn *net.UnixConn, dev *vmm.Device, o A) (Spare[V], error)
	// SetName sets what a View returns as its name, before anyone else has it.
	SetName(view V, name string)
	// Ping exchanges HELLO with the store at path and asks for its counts. If the server ends meanwhile, it asks
	// the next one. It and Keeper end with the context alone.
	Ping(ctx context.Context, path string, token []byte, uids []uint32) error
	// Keeper returns the process that has made the socket at path, 0 if it cannot be seen from here.
	Keeper(ctx context.Context, path string, uids []uint32) (pid int, err error)
	// OpenWriterPage maps the control page that a store sends to the writer of an object. It does
	// not take fd.
	OpenWriterPage(fd int, instance [16]byte, object uint64) (WriterPage, error)
}

// Joining is the door of package budget, for package store. The type parameter is *budget.Member.
type Joining[M any] interface {
	// Join is budget.Join of the process that has the broker, over connections that dial makes. All that the process
	// has created is its lease at once, whatever others have. Once ctx has ended the Member asks for nothing more.
	Join(ctx context.Context, dev *vmm.Device, name string, dial func(Notified) Client) (M, error)
	// End is Close also while memory is there, which counts no more. Nil is fine.
	End(m M) error
}

// Spare is a connection made ahead of the Attach that will use it.
type Spare[V any] interface {
	// Attach is as shareable.Attach, with AttachOptions.Unsealed and Write as given. If it returns
	// ErrOwnerGone, a new connection may do better. It ends the Spare.
	Attach(ctx context.Context, name string, unsealed, write bool) (V, error)
	// Close ends the connection. It never waits.
	Close()
}

// Handler handles what the clients of a store request. Each connection has a goroutine of
// its own that calls both, one after the other.
type Handler interface {
	// Request handles a frame that the server does not handle itself: any but LIST, STAT,
	// ATTACH, RESYNC, DETACH and ACK. An error ends the connection; a request that fails is
	// refused by Conn.Refuse instead. f is valid until Request returns.
	Request(c Conn, f wire.Frame) error
	// End is called once after the last Request, also if there was none.
	End(c Conn)
	// Idle reports whether a connection has nothing that lasts beyond a request.
	Idle(c Conn) bool
	// Find returns the object of a name, nil if there is none.
	Find(name string) Object
	// Readers is called after a reader was attached to an object, or has gone. It may be
	// called by several goroutines at a time, with no lock held.
	Readers(o Object)
}

// Conn is a connection of a client. Its methods are safe for concurrent use.
type Conn interface {
	// Cred is the process at the other end, as the kernel recorded it.
	Cred() wire.Cred
	// PeerPIDFD is a pidfd of that process, which the caller closes.
	PeerPIDFD() (int, error)
	// Reply sends a frame; request 0 is an event. It can wait as long as the server's time
	// limits allow, for a client that does not read. It does not take the fds. An error ends
	// the connection.
	Reply(t wire.Type, request uint32, payload []byte, fds ...int) error
	// Refuse sends ERROR for an error of package vmm or shareable.
	Refuse(request uint32, err error) error
	// Close ends the connection, for the reason err.
	Close(err error)
}

// Server is a shareable.Server for a store.
type Server interface {
	// NewObject makes an object without memory. Handler.Find decides who finds it.
	NewObject(Spec) Object
	// Listed adds an object to those that LIST returns, until Object.Close, or changes its
	// name there.
	Listed(o Object, name string)
	// Listen makes the server's socket, as shareable.Listen does.
	Listen(path string) error
	// Adopt has the server accept connections at a listener that another process keeps, and takes
	// both descriptors; lock is -1 without a lock file. Close leaves the socket to that process.
	// Adopt calls serves before it accepts the first connection, and accepts none if that returns an
	// error.
	Adopt(path string, listener, lock int, serves func() error) error
	// Health returns what checks a server that has adopted a listener: it returns once the accept
	// loop has turned, which it wakes, and a session has replied to COUNT over the two ends of a
	// connection, which Health does not take. The error is what the reply was instead. If the server
	// hangs it does not return before Close. It shows no credentials, and counts against no limit.
	// One goroutine at a time may call it.
	Health(near, far *net.UnixConn) (check func() error, err error)
	// Users is how many connections each user has.
	Users() map[uint32]int
	// FileLimit is how many descriptors this process may have.
	FileLimit() int
}

// Spec is what an object is made with.
type Spec struct {
	Max    uint64 // bytes of addresses that readers reserve
	Layout vmm.Layout
	Meta   []byte
}

// Object is what readers attach to. Its methods are safe for concurrent use.
type Object interface {
	ID() uint64
	// State is one of wire's states. Len is the bytes that readers see, Cap those of memory.
	// Readers is the connections that have it attached.
	State() (state uint32, length, capacity uint64, readers int)

	// Chunks is how many chunks the memory is in, and the id of the last that there was.
	Chunks() (n int, last uint64)
	// Record describes the object, under a name, for another process that serves once this one has
	// ended. Of the chunks it has those after an id. With seal it is what it will be after Seal,
	// which would succeed. The caller calls release once the descriptors are sent.
	Record(after uint64, name string, seal *Seal) (r Record, release func(), err error)

	// AddChunk adds memory at the end and takes its descriptor, also if it fails.
	AddChunk(size uint64, fd int) error
	// Show has readers get the chunks up to an id.
	Show(last uint64)
	// ReplyChunks sends the chunks after an id to the writer, as the reply to a request.
	ReplyChunks(c Conn, request uint32, after uint64) error

	// LeasePage makes the control page of a new writer and returns a descriptor with which
	// that maps it. The caller closes fd. Readers keep the page that they have.
	LeasePage() (fd int, err error)
	// StartLease has the page that LeasePage made sealed, so that only the writer can write
	// to it, and readers get it. If that is impossible, because the writer has tampered with
	// it, it returns wire.ProtocolError.
	StartLease() error
	// EndLease makes what the writer has on its page the length. A page that was not started
	// counts for nothing.
	EndLease()
	// Beat changes each time that the writer shows that it runs.
	Beat() uint64
	// Wrote has the readers woken.
	Wrote()

	// Seal ends the lease and makes the length final. It must not be below Len, nor above
	// Cap. Memory that holds no byte below it is retired.
	Seal(Seal) error
	// Describe sends OBJECT with these descriptors, under a name and with an access.
	Describe(c Conn, request uint32, name string, access uint32, fds ...int) error
	// Retire has all readers unmap all memory. It returns when they have, or are
	// disconnected, or ctx has ended; those that are left are disconnected then.
	Retire(ctx context.Context)
	// Close ends the object. Readers keep what they have mapped. Twice is fine.
	Close() error
}

// Seal is how an object is sealed.
type Seal struct {
	Length uint64
	Digest *[32]byte // nil: none was computed
	Told   bool      // Record has checked the length: what the writer stores on its page since does not count
}

// Record is an object as it can be made again.
type Record struct {
	State  []byte   // for Restore
	Chunks []uint64 // the ids of the chunks whose descriptors FDs has
	FDs    []int    // after them one of the page that a writer has, if Page is set
	Page   bool
	Last   uint64 // the id of the last chunk that State has; 0 without any
	Seen   uint64 // the id of the last chunk that there was
}

// Recorded is what Record described, with the descriptors of all its chunks by their ids, and that
// of the page, or -1.
type Recorded struct {
	State  []byte
	Chunks map[uint64]int
	Page   int
}

// WriterPage is the control page of an object in the process that writes to it. Its
// methods, apart from Close, are safe for concurrent use.
type WriterPage interface {
	// Queued stores how many bytes are being written, and Publish how many are: readers see
	// those at once. Neither goes back.
	Queued(n uint64)
	Publish(n uint64)
	// Beat shows that the writer runs.
	Beat()
	// Close unmaps the page. Nothing may use it any more.
	Close() error
}

// Notified is what a Client tells, in the goroutine that reads, or in one of its own.
type Notified struct {
	// Event is called for each frame that no request asked for. Its error ends the connection.
	Event func(wire.Frame) error
	// Again, if not nil, is called once the Client has connected again, in a goroutine of its own.
	Again func()
}

// Client is a client's end of its connections to a store, one after the other: if a server ends
// that another replaces, it connects again, and requests that have no reply are sent
// again. Its methods are safe for concurrent use.
type Client interface {
	// Call sends a request, and calls done with its reply in the goroutine that reads the
	// connection; done must not make calls. It returns done's error, and the owner's if the
	// reply is ERROR. done may close descriptors that it knows to be memory; the rest are
	// closed later. Once Call has returned, done is not called any more; ctx does not end
	// one that runs.
	Call(ctx context.Context, t wire.Type, payload []byte, reply wire.Type, done func(wire.Frame) error) error
	// Send sends a frame that has no reply. It may be lost if the server ends.
	Send(t wire.Type, payload []byte) error
	// Hello is the owner's.
	Hello() wire.Hello
	// Times is how often it has connected again.
	Times() int
	// Ended is closed when no connection comes any more; Err says why then.
	Ended() <-chan struct{}
	Err() error
	// Close ends the connection. It never waits.
	Close()
}
