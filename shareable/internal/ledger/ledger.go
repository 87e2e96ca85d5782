// Package ledger counts what the users of a server have of it, against limits of all of them
// together and of one. What a request needs is reserved as a whole before anything is made, or not
// at all.
//
// Neither a Ledger nor a Plan may be used by several goroutines at a time: what they count changes
// with other things, under their lock.
package ledger

import (
	"fmt"
	"maps"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// Kind is what is counted.
type Kind int

// Kinds.
const (
	Bytes       Kind = iota // of memory
	Objects                 // of a store
	Descriptors             // that the server keeps open for objects
	Records                 // bytes of the server's own memory: of names, metadata, requests that wait
	kinds
)

func (k Kind) String() string {
	return [...]string{"bytes", "objects", "descriptors", "bytes of records"}[k]
}

// Amounts is so much of each kind.
type Amounts [kinds]uint64

// Plus is the sum of both.
func (a Amounts) Plus(b Amounts) Amounts {
	for k := range a {
		a[k] += b[k]
	}
	return a
}

// Minus is what is left of a without b, which is a part of it.
func (a Amounts) Minus(b Amounts) Amounts {
	for k := range a {
		a[k] -= b[k]
	}
	return a
}

// Limit is the most that all users may have together, and the most that one may.
type Limit struct{ All, User uint64 }

// Ledger counts what users have.
type Ledger struct {
	limits [kinds]Limit
	users  uint64 // who may have something
	all    Amounts
	of     map[uint32]Amounts
}

// New makes a Ledger for so many users. A limit must be given for each kind.
func New(users int, limits map[Kind]Limit) *Ledger {
	l := &Ledger{users: uint64(max(users, 1)), of: map[uint32]Amounts{}}
	for k, limit := range limits {
		l.limits[k] = limit
	}
	return l
}

// Limit is the limit of a kind.
func (l *Ledger) Limit(k Kind) Limit { return l.limits[k] }

// All is what all users have.
func (l *Ledger) All() Amounts { return l.all }

// Add counts what a user has, whatever the limits are.
func (l *Ledger) Add(user uint32, a Amounts) {
	l.all = l.all.Plus(a)
	l.of[user] = l.of[user].Plus(a)
}

// Return undoes Add, or a part of it.
func (l *Ledger) Return(user uint32, a Amounts) {
	l.all = l.all.Minus(a)
	if left := l.of[user].Minus(a); left == (Amounts{}) {
		delete(l.of, user)
	} else {
		l.of[user] = left
	}
}

// Reserve counts what a user is to have. It counts all of it, or nothing, and returns vmm.ErrLimit.
func (l *Ledger) Reserve(user uint32, a Amounts) error {
	if err := l.Plan(user, a).Err(); err != nil {
		return err
	}
	l.Add(user, a)
	return nil
}

// Share is what a user can have whatever others do: an equal part of what all may have.
func (l *Ledger) Share(k Kind) uint64 { return l.limits[k].All / l.users }

// Plan is what there would be if a user had more, and some users less.
type Plan struct {
	l    *Ledger
	user uint32
	all  Amounts
	of   map[uint32]Amounts
}

// Plan begins a Plan in which a user has more.
func (l *Ledger) Plan(user uint32, more Amounts) *Plan {
	p := &Plan{l: l, user: user, of: map[uint32]Amounts{user: saturated(l.of[user], more)}}
	p.all = saturated(l.all, more)
	return p
}

// saturated is the sum of both, or the largest number where that overflows.
func saturated(a, b Amounts) Amounts {
	for k := range a {
		if a[k] += b[k]; a[k] < b[k] {
			a[k] = ^uint64(0)
		}
	}
	return a
}

// Err is nil if all limits hold.
func (p *Plan) Err() error {
	for k, limit := range p.l.limits {
		kind, own, had := Kind(k), p.of[p.user][k], p.l.of[p.user][k]
		switch {
		case own > had && own > limit.User && limit.User < limit.All:
			return fmt.Errorf("%w: %s and %s more, of at most %s of user %d (%s)", vmm.ErrLimit,
				kind.text(had), kind.text(own-had), kind.text(limit.User), p.user, kind.option(true))
		case own > had && p.all[k] > limit.All:
			return fmt.Errorf("%w: %s and %s more, of at most %s (%s)", vmm.ErrLimit,
				kind.text(p.l.all[k]), kind.text(own-had), kind.text(limit.All), kind.option(false))
		}
	}
	return nil
}

// text is so much of a kind.
func (k Kind) text(n uint64) string {
	switch k {
	case Bytes:
		return errtext.Size(n)
	case Records:
		return errtext.Size(n) + " of records"
	}
	return fmt.Sprintf("%d %v", n, k)
}

// option is where the limit of a kind comes from.
func (k Kind) option(user bool) string {
	if k == Bytes && user {
		return "Options.MaxBytesPerUID"
	}
	return [...]string{"Options.MaxBytes", "Options.MaxObjects", "RLIMIT_NOFILE", "Options.MaxRecordBytes"}[k]
}

// Helps reports whether the plan comes closer to its limits if a user has less. What others have
// within their share is not to be taken for it.
func (p *Plan) Helps(user uint32, less Amounts) bool {
	for k, limit := range p.l.limits {
		if less[k] == 0 {
			continue
		}
		if user == p.user && p.of[user][k] > limit.User || p.all[k] > limit.All && (user == p.user || p.now(user)[k] > p.l.Share(Kind(k))) {
			return true
		}
	}
	return false
}

// Less has a user have less.
func (p *Plan) Less(user uint32, less Amounts) {
	p.of[user] = p.now(user).Minus(less)
	p.all = p.all.Minus(less)
}

// now is what a user has in the plan.
func (p *Plan) now(user uint32) Amounts {
	if a, changed := p.of[user]; changed {
		return a
	}
	return p.l.of[user]
}

// Users are those who have something, each with what it has.
func (l *Ledger) Users() map[uint32]Amounts { return maps.Clone(l.of) }
