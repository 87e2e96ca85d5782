package collective

import (
	"cmp"
	"fmt"
	"time"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/vmm"
)

// ID is the identity of a group: 128 bytes that one member makes with NewID and sends to the
// others, by any channel.
type ID = nccl.ID

// Kind is the kind of elements that are reduced.
type Kind = nccl.Kind

// Kinds of element.
const (
	Int8       = nccl.Int8
	Uint8      = nccl.Uint8
	Int32      = nccl.Int32
	Uint32     = nccl.Uint32
	Int64      = nccl.Int64
	Uint64     = nccl.Uint64
	Float16    = nccl.Float16
	Float32    = nccl.Float32
	Float64    = nccl.Float64
	BFloat16   = nccl.BFloat16
	Float8E4M3 = nccl.Float8E4M3 // from NCCL 2.24 on
	Float8E5M2 = nccl.Float8E5M2 // from NCCL 2.24 on
)

// Reduction is how the elements that the members have at one index become one.
type Reduction = nccl.Reduction

// Reductions.
const (
	Sum     = nccl.Sum
	Product = nccl.Product
	Max     = nccl.Max
	Min     = nccl.Min
	Mean    = nccl.Mean // the sum divided by the number of members; of integers rounded towards zero
)

// Options configures Join; its zero value takes the group from the environment.
type Options struct {
	// ID is the group's identity, the same for all members, and Size how many there are. Rank
	// is this one's number, from 0 on. With a Size of 0 all three come from the environment:
	// see FromEnvironment.
	ID         ID
	Rank, Size int
	// Timeout limits each wait for the other members, those of Join and Close included, and each
	// call of Do from the moment at which what was queued before it on its stream has run, and the
	// group's call before it; 0 is 10 minutes.
	// When it has passed, the group is aborted with os.ErrDeadlineExceeded.
	Timeout time.Duration
	// Secret is what the members show each other that meet by the environment, the same for all.
	// Without one it is the contents of the file that CUVMM_GROUP_SECRET_FILE names, or
	// CUVMM_GROUP_SECRET. Members on several hosts need one. It keeps programs out that do not know
	// it, and hides nothing from those that read what is sent.
	Secret []byte
	// Library is the path of libnccl. If it is empty, it is looked for by its name and where
	// Python's packages have it.
	Library string

	hooks hooks
}

// hooks are for tests.
type hooks struct {
	anyWindow bool // windows over several chunks are not refused
	noWatch   bool // calls that are queued have no time
	anyDevice bool // NCCL gets memory of any device: for a fake NCCL, which takes the host's
}

const defaultTimeout = 10 * time.Minute

// resolve checks the options and fills in the defaults.
func (o Options) resolve(dev *vmm.Device) (Options, error) {
	switch {
	case dev == nil:
		return o, fmt.Errorf("%w: no device", vmm.ErrInvalid)
	case o.Timeout < 0:
		return o, fmt.Errorf("%w: a timeout of %v", vmm.ErrInvalid, o.Timeout)
	case o.Size < 0 || o.Rank < 0 || o.Rank >= max(o.Size, 1):
		return o, fmt.Errorf("%w: rank %d of %d", vmm.ErrInvalid, o.Rank, o.Size)
	case o.Size == 0 && o.ID != ID{}:
		return o, fmt.Errorf("%w: an identity without Size", vmm.ErrInvalid)
	}
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	return o, nil
}
