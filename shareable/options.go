package shareable

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/loglimit"
	"github.com/cuvmm/cuvmm/shareable/internal/serve"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// Options configures a Server; its zero value is the default.
type Options struct {
	// UIDs are the users who may connect; nil is the server's own user. They are checked before the
	// first byte is read. In a user namespace that does not map all users, the unmapped ones look
	// like one, the overflow user. A server that runs as the overflow user needs UIDs or a Token,
	// else it is refused with vmm.ErrInvalid.
	UIDs []uint32
	// Token is a shared secret of up to 32 bytes that readers must send; nil
	// asks for none.
	Token []byte
	// MaxConns and MaxConnsPerUID limit the connections, in all and of one user; 0 is 128 and 32. A
	// connection counts until it is closed, which takes long if its peer has sent descriptors that
	// take long to close.
	MaxConns, MaxConnsPerUID int
	// MaxObjects limits how many publications there are at a time; 0 is 4096.
	MaxObjects int
	// MaxBytesPerUID limits the bytes of memory that all readers of one user have together. 0 is no
	// limit. A reader that would exceed it is disconnected.
	//
	// Published memory counts once for each connection over which it was sent. For example, two
	// readers of a user that each map a range of 1 GiB count 2 GiB.
	//
	// Memory that was sent and is no longer published counts until it is free. It does not count if
	// the driver, such as CUDA's, cannot tell when memory is free.
	MaxBytesPerUID uint64
	// Rate limits the frames per second from a connection, except those that acknowledge something
	// new; 0 is 1000.
	Rate int
	// HandshakeTimeout is how long a reader may take to send HELLO; 0 is 2 s. RequestTimeout is how
	// long it may take to receive a frame (never longer than AckTimeout) and, with nothing
	// attached, to send its next request; 0 is 5 s. AckTimeout is how long it may take to map or
	// unmap chunks, to an eighth more, not counting time in which this process did not run; 0 is 10 s. A
	// reader that takes longer is disconnected. So is one for which the owner cannot export chunks for
	// AckTimeout.
	HandshakeTimeout, RequestTimeout, AckTimeout time.Duration
	// KeepFDs is how many descriptors of exported chunks stay open; the least
	// recently used are closed first. 0 is a quarter of RLIMIT_NOFILE; below 0
	// none stays open.
	KeepFDs int
	// Logger gets a line for each connection that is refused or cut off, or for
	// some of them if there are many; nil logs nothing.
	Logger *slog.Logger

	hooks hooks
}

// hooks are for NewStore and for tests.
type hooks struct {
	handler serve.Handler // of NewStore
	takeFDs bool          // the kernel does not refuse descriptors from readers, as before Linux 6.16

	readTwice bool // negative control: the length at a lease's end is read again after it was shown
}

// tokenSize is the size of HELLO's token field.
const tokenSize = 32

func checkToken(token []byte) error {
	if len(token) > tokenSize {
		return fmt.Errorf("%w: a token of %d bytes, over %d", vmm.ErrInvalid, len(token), tokenSize)
	}
	return nil
}

// resolve checks the options and fills in the defaults.
func (o Options) resolve() (Options, error) {
	if err := checkToken(o.Token); err != nil {
		return o, err
	}
	if o.UIDs == nil {
		own := uint32(os.Getuid())
		if !wire.IsOwn(own) && len(o.Token) == 0 {
			return o, fmt.Errorf("%w: users that this namespace does not map look like the server's own, %d: name the users who may connect, or a token", vmm.ErrInvalid, own)
		}
		o.UIDs = []uint32{own}
	}
	o.UIDs, o.Token = slices.Clone(o.UIDs), slices.Clone(o.Token)
	// Each default goes in where the field is zero, so that a caller sets only
	// the fields it cares about.
	for _, n := range []struct {
		v    *int
		dflt int
	}{{&o.MaxConns, 128}, {&o.MaxConnsPerUID, 32}, {&o.MaxObjects, 4096}, {&o.Rate, 1000}, {&o.KeepFDs, fileLimit() / 4}} {
		if *n.v == 0 {
			*n.v = n.dflt
		}
	}
	for _, d := range []struct {
		v    *time.Duration
		dflt time.Duration
	}{{&o.HandshakeTimeout, 2 * time.Second}, {&o.RequestTimeout, 5 * time.Second}, {&o.AckTimeout, 10 * time.Second}} {
		if *d.v == 0 {
			*d.v = d.dflt
		}
		if *d.v < 0 {
			return o, fmt.Errorf("%w: a time limit of %v", vmm.ErrInvalid, *d.v)
		}
	}
	if o.MaxConns < 0 || o.MaxConnsPerUID < 0 || o.MaxObjects < 0 || o.Rate < 0 {
		return o, fmt.Errorf("%w: a limit below 0", vmm.ErrInvalid)
	}
	// KeepFDs is the one limit that may be below 0: that keeps none.
	o.KeepFDs = max(o.KeepFDs, 0)
	if o.MaxBytesPerUID == 0 {
		o.MaxBytesPerUID = math.MaxUint64
	}
	o.Logger = loglimit.New(o.Logger)
	return o, nil
}

// PublishOptions configures a Publication; its zero value is the default.
type PublishOptions struct {
	// Write lets readers ask for writable memory. Without it they are refused write access. That
	// protects only a host range made with vmm.ShareReadOnly: any process that has a descriptor of
	// other memory can write all the same. On CUDA no descriptor carries rights, so there Write is
	// an agreement among processes that trust each other.
	Write bool
	// Layout describes the bytes to readers; the zero Layout describes nothing.
	Layout vmm.Layout
	// Meta is sent to readers with the object's description, up to 32 KiB.
	Meta []byte
}

// resolve checks what is published under a name, and copies what the caller may change.
func (o PublishOptions) resolve(name string) (PublishOptions, error) {
	if len(o.Meta) > wire.MaxMeta {
		return o, fmt.Errorf("%w: %d bytes of metadata, over %d", vmm.ErrInvalid, len(o.Meta), wire.MaxMeta)
	}
	if err := wire.CheckName(name); err != nil {
		return o, fmt.Errorf("%w: %w", vmm.ErrInvalid, err)
	}
	if !o.Layout.Equal(vmm.Layout{}) {
		if err := o.Layout.Validate(); err != nil {
			return o, err
		}
	}
	o.Layout.Shape, o.Meta = slices.Clone(o.Layout.Shape), slices.Clone(o.Meta)
	return o, nil
}
