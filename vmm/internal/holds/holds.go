// Package holds lists who keeps which bytes mapped. It takes no lock: its caller has one, but for ToTell.
package holds

import (
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cuvmm/cuvmm/internal/frames"
)

// Hold is a span that must stay mapped.
type Hold struct {
	What     string
	Made     frames.Callers // only of what has no name of its own
	Off, End uint64
	Below    func() uint64 // it ends there, and not at End; nil: at End

	at int // its place in the list, from 1; 0: in none

	// Of a hold with Below.
	Raised  func(n uint64) (done bool)
	Changed func()
}

// String is what the hold is for, as errors name it.
func (h *Hold) String() string {
	s := h.What
	if h.Made[0] != 0 {
		s += " made at " + h.Made.Lines().Line
	}
	if end := h.CurrentEnd(); end > 0 {
		s += fmt.Sprintf(" [%#x, %#x)", h.Off, end)
	}
	return s
}

// CurrentEnd is where the span ends now.
func (h *Hold) CurrentEnd() uint64 {
	if h.Below != nil {
		return h.Below()
	}
	return h.End
}

// List is the holds of one reservation. Its zero value has none.
type List struct {
	all    []*Hold
	toTell atomic.Pointer[[]*Hold] // replaced, never changed
}

// Add adds a hold.
func (l *List) Add(h *Hold) {
	l.all = append(l.all, h)
	h.at = len(l.all)
	if h.Below != nil {
		l.listToTell()
	}
}

// Remove undoes Add. Twice is fine.
func (l *List) Remove(h *Hold) {
	if h.at == 0 {
		return
	}
	last := l.all[len(l.all)-1]
	l.all[h.at-1], last.at = last, h.at
	l.all[len(l.all)-1] = nil
	l.all, h.at = l.all[:len(l.all)-1], 0
	if h.Below != nil {
		l.listToTell()
	}
}

// Fix has a hold with Below end where it ends now, at most at n.
func (l *List) Fix(h *Hold, n uint64) {
	h.End, h.Below = min(n, h.CurrentEnd()), nil
	l.listToTell()
}

// In names those that hold bytes of [off, end), but for one, each name once: the first few, and how many holds more.
func (l *List) In(off, end uint64, except *Hold) []string {
	return l.names(func(h *Hold) bool { return h != except && h.Off < end && off < h.CurrentEnd() })
}

// All names all, also those that hold no byte.
func (l *List) All() []string { return l.names(func(*Hold) bool { return true }) }

// most is how many holds an error names: there may be many thousands.
const most = 8

func (l *List) names(counts func(*Hold) bool) (all []string) {
	more := 0
	for _, h := range l.all {
		if !counts(h) {
			continue
		}
		if len(all) == most {
			more++
		} else if s := h.String(); !slices.Contains(all, s) {
			all = append(all, s)
		}
	}
	if more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return all
}

// ToTell are those with Below. It needs no lock.
func (l *List) ToTell() []*Hold {
	if all := l.toTell.Load(); all != nil {
		return *all
	}
	return nil
}

func (l *List) listToTell() {
	var all []*Hold
	for _, h := range l.all {
		if h.Below != nil {
			all = append(all, h)
		}
	}
	l.toTell.Store(&all)
}
