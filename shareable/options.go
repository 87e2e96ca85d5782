package shareable

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// Options is how a Server serves; its zero value is the default.
type Options struct {
	// UIDs are the users who may connect; nil is the server's own. It is
	// looked at before the first byte is read.
	UIDs []uint32
	// Token is what who connects has to know, up to 32 bytes; nil is nothing.
	Token []byte
	// MaxConns and MaxConnsPerUID bound the connections, in all and of one user; 0 is
	// 128 and 32.
	MaxConns, MaxConnsPerUID int
	// Objects bounds what is published at a time; 0 is 4096.
	MaxObjects int
	// BytesPerUID bounds the memory that readers of one user have handles of, all
	// their views together; 0 is no bound.
	MaxBytesPerUID uint64
	// Rate bounds the requests of a connection in a second; 0 is 1000.
	Rate int
	// HandshakeTimeout, RequestTimeout and AckTimeout are how long a reader may take to say who it is,
	// to take a frame (and, with nothing attached, to ask for something), and to
	// map or unmap what it was told of; 0 is 2 s, 5 s and 10 s. Who takes longer
	// is disconnected.
	HandshakeTimeout, RequestTimeout, AckTimeout time.Duration
	// KeepFDs is how many descriptors of exported chunks stay open, those used
	// longest ago being closed first; 0 is a quarter of RLIMIT_NOFILE, less than
	// 0 none.
	KeepFDs int
	// Logger gets a line for each connection that is refused or cut off; nil
	// is silence.
	Logger *slog.Logger
}

// tokenSize is what HELLO has room for.
const tokenSize = 32

func errToken(token []byte) error {
	return fmt.Errorf("%w: a token of %d bytes, and it has at most %d", vmm.ErrInvalid, len(token), tokenSize)
}

func (o Options) resolve() (Options, error) {
	if len(o.Token) > tokenSize {
		return o, errToken(o.Token)
	}
	if o.UIDs == nil {
		o.UIDs = []uint32{uint32(os.Getuid())}
	}
	o.UIDs, o.Token = slices.Clone(o.UIDs), slices.Clone(o.Token)
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
	o.KeepFDs = max(o.KeepFDs, 0)
	if o.MaxBytesPerUID == 0 {
		o.MaxBytesPerUID = math.MaxUint64
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// PublishOptions is how a range is published; its zero value is the default.
type PublishOptions struct {
	// Write lets readers ask for memory that they can write. Without it only a
	// range of the host that is made with vmm.ShareReadOnly is safe from a reader
	// that does not ask. A descriptor of any other range lets whoever has it
	// write, and on CUDA none carries rights, so there it is an agreement among
	// processes that trust each other.
	Write bool
	// Layout is what readers are told of the bytes; the zero Layout says nothing.
	Layout vmm.Layout
	// Meta is what readers get to know beside the memory, up to 32 KiB.
	Meta []byte
}
