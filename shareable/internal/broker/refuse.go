package broker

import (
	"fmt"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/vmm"
)

// mostNamed is how many members an error names.
const mostNamed = 8

// lacking is how much less a member has given than was demanded.
type lacking struct {
	amount uint64
	why    string
}

// tooMuch is the error of an ask that no one can help with, or nil.
func (b *Broker) tooMuch(w *waiter) error {
	for _, bound := range []struct {
		bytes uint64
		of    string
	}{
		{w.m.most(), "this process may have"},
		{b.budget, "all processes may have"},
		{b.physical, "the device has for all processes"},
	} {
		if w.Need > bound.bytes {
			return fmt.Errorf("%w: %s needed, and %s %s", vmm.ErrOutOfMemory, errtext.Size(w.Need), bound.of, errtext.Size(bound.bytes))
		}
	}
	return nil
}

// notEnough is the error of an ask for which too little was given.
func (b *Broker) notEnough(w *waiter) error {
	shares := b.shares()
	text := fmt.Sprintf("%s needed, and %s lack; the share of this process is %s",
		errtext.Size(w.Need), errtext.Size(b.lacks(w)), errtext.Size(shares[w.m]))
	named := 0
	for _, m := range b.sorted() {
		if m == w.m || m.lease <= shares[m] {
			continue
		}
		does := w.blame(m)
		if does == "" {
			continue
		}
		if named++; named > mostNamed {
			continue
		}
		text += fmt.Sprintf("; %q %s", m.name, does)
	}
	if named > mostNamed {
		text += fmt.Sprintf("; and %d more", named-mostNamed)
	}
	return fmt.Errorf("%w: %s", vmm.ErrOutOfMemory, text)
}

// blame is what a member does that keeps memory from an ask, or nothing.
func (w *waiter) blame(m *member) string {
	l, less := w.lacking[m.id]
	switch {
	case m.absent:
		return "is not connected"
	case m.silent:
		return "does not answer"
	case less && l.why != "":
		return fmt.Sprintf("gave %s less than demanded: %q", errtext.Size(l.amount), l.why)
	case less:
		return fmt.Sprintf("gave %s less than demanded", errtext.Size(l.amount))
	}
	return ""
}
