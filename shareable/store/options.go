package store

import (
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/internal/loglimit"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/budget"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// defaultName is the name of the socket of a server that is given no path.
const defaultName = "store"

// Options configures a Server; its zero value is the default.
type Options struct {
	// UIDs are the users who may connect beside the server's own and root; nil is the server's own
	// alone, or vmm.ErrInvalid as for shareable.Options.
	UIDs []uint32
	// Token is a shared secret of up to 32 bytes that clients must send; nil asks for none.
	Token []byte
	// MaxConns and MaxConnsPerUID limit the connections, in all and of one user. A client
	// has one, and for a moment after each Get a second; each Writer and each View has
	// another. 0 is an eighth of RLIMIT_NOFILE, of one user that over the number of UIDs.
	MaxConns, MaxConnsPerUID int
	// MaxObjects limits the objects; 0 is 4096. MaxRecordBytes limits the server's own memory
	// for them: names, metadata, labels, requests that wait, and Watch; 0 is 256 MiB. Of both,
	// and of the descriptors that objects use, which are half of RLIMIT_NOFILE at most, each of
	// the UIDs has an equal part.
	MaxObjects     int
	MaxRecordBytes uint64
	// MaxBytes limits the memory of all objects, and MaxBytesPerUID that of the objects that
	// clients of one user have made. Memory counts until its last reader has gone. 0 is no
	// limit.
	MaxBytes, MaxBytesPerUID uint64
	// Evict has the store delete sealed objects that no reader has when memory or a limit runs
	// out: those of the user who needs room, the least recently used first, then those of users
	// who have more than an equal part. A request that is refused because of a limit evicts none.
	Evict bool
	// Rate limits the requests of a connection per second; 0 is 100,000.
	Rate int
	// Timeout limits each wait for a client; 0 is 10 s. A client that takes longer is
	// disconnected.
	Timeout time.Duration
	// Logger gets a line for what is refused or cut off, or for some if there are many; nil logs nothing.
	Logger *slog.Logger

	// LeaseTime is how long a Writer's process may show no sign of life, if another one waits for
	// the object: then that gets it. A Writer shows one each second. Time in which the server did
	// not run does not count. 0 is 30 s.
	LeaseTime time.Duration

	// Budgets has the server divide the memory of devices among the processes that budget.Join: one for each
	// device, of the server's driver. Of the budget of its own device the server is a member itself, named "store",
	// and the program must not be another one. The memory of the process counts, and that of objects that a server
	// before it has created. Another process that needs memory gets what Evict can delete.
	Budgets []budget.Budget

	hooks hooks
}

// hooks are for tests only.
type hooks struct {
	step     func()        // called at each step of each request, where a server may die
	deadline time.Duration // of demands on members of a budget, and of the wait for them; soft ones have a third

	// Negative controls.
	keepPage bool // readers keep the page of a writer whose lease has ended
	unfenced bool // memory of a writer that may run is the next one's
	forget   bool // what a server before this one has done is not known
	blind    bool // it says that it does not hang, without a look
	pauses   bool // looks that the server missed because it did not run count
	alone    bool // the server is no member of the budget of its device
}

// resolve checks the options and fills in the defaults.
func (o Options) resolve() (Options, error) {
	if o.MaxObjects < 0 || o.Timeout < 0 || o.LeaseTime < 0 {
		return o, fmt.Errorf("%w: a limit below 0", vmm.ErrInvalid)
	}
	o.MaxObjects = cmp.Or(o.MaxObjects, 4096)
	o.MaxRecordBytes = cmp.Or(o.MaxRecordBytes, 256<<20)
	o.MaxBytes = cmp.Or(o.MaxBytes, math.MaxUint64)
	o.MaxBytesPerUID = cmp.Or(o.MaxBytesPerUID, math.MaxUint64)
	o.Timeout = cmp.Or(o.Timeout, 10*time.Second)
	o.LeaseTime = cmp.Or(o.LeaseTime, 30*time.Second)
	o.Logger = loglimit.New(o.Logger)
	// Checked here: when the server that a Keeper starts makes its connections, the old one has gone.
	return o, sharing.Check(o.server())
}

// server are the options of the connections. The server's own user and root look after it, whoever
// else may connect.
func (o Options) server() shareable.Options {
	uids := o.UIDs
	if uids != nil {
		uids = append(slices.Clone(uids), 0)
		if own := uint32(os.Getuid()); wire.IsOwn(own) {
			uids = append(uids, own)
		}
		slices.Sort(uids)
		uids = slices.Compact(uids)
	}
	return shareable.Options{
		UIDs: uids, Token: o.Token, MaxConns: o.MaxConns, MaxConnsPerUID: o.MaxConnsPerUID, Rate: o.Rate,
		RequestTimeout: o.Timeout, AckTimeout: o.Timeout, Logger: o.Logger,
	}
}

// CreateOptions configures Client.Create; its zero value is the default.
type CreateOptions struct {
	// Size is the object's size in bytes. With Growable it is the most that it can grow to; 0
	// is then the device's memory.
	Size uint64
	// Growable has memory added as the Writer appends. Without it all memory is there at
	// once.
	Growable bool
	// Durable has the object, and what was published of it, outlive its Writer: another one
	// continues with Client.Append. Without it an object goes with its writer unless it is
	// sealed.
	Durable bool
	// Wait has Client.OpenAppend wait until no other Writer has the object, as long as the
	// context allows; see AppendOptions. Create has nothing to wait for.
	Wait bool
	// Host has the memory on the host, on the NUMA node of that number, instead of on the
	// client's device; nil: on the device. A store on a host device has no other memory:
	// vmm.ErrNotSupported.
	Host *int
	// Layout describes the bytes to readers; the zero Layout describes nothing.
	Layout vmm.Layout
	// Meta is sent to readers, up to 32 KiB.
	Meta []byte
	// Labels are what List can select by: up to 16, keys of 64 bytes and values of 256.
	Labels map[string]string
}

// GetOptions configures Client.Get; its zero value is the default.
type GetOptions struct {
	// Wait waits until the object is there and sealed, with Unsafe until it is there, as long as
	// the context allows. An ID that no object has is shareable.ErrNotFound: no other object
	// gets it.
	Wait bool
	// Unsafe returns an object that is not sealed, too: it may grow, and its bytes may change.
	Unsafe bool
	// Write asks for memory that can be written, of an object that is not sealed. It needs
	// Unsafe.
	Write bool
}

// DeleteOptions configures Client.Delete; its zero value is the default.
type DeleteOptions struct {
	// Force has readers unmap the object, instead of keeping its memory until the last one
	// closes it: the Len of their Views falls to 0. A reader that takes longer than Timeout is
	// disconnected; 0 is 5 s, and more than a minute counts as a minute.
	Force   bool
	Timeout time.Duration
}
