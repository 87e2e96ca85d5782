package memmap

import (
	"runtime"
	"strconv"
	"time"

	"github.com/cuvmm/cuvmm/internal/frames"
)

// Moment is an Event as the map shows it.
type Moment struct {
	Seq    uint64    `json:"seq"` // counts the events of a device that the map has seen
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`
	Addr   Addr      `json:"addr"`
	Size   uint64    `json:"size"`
	Stream Addr      `json:"stream"`
	Where  string    `json:"where,omitempty"` // the program's line, file:line
	Stack  []string  `json:"stack,omitempty"` // the innermost first
}

// momentList is the last events of a device. Only those that are new are looked up.
type momentList struct {
	seq  uint64
	last Event // the newest one
	all  []Moment
}

// update takes the events as they are now.
func (l *momentList) update(events []Event) {
	events = events[max(0, len(events)-mostEvents):]
	if l.seq > 0 {
		for i := len(events) - 1; i >= 0; i-- {
			if same(&events[i], &l.last) {
				events = events[i+1:]
				break
			}
		}
	}
	for i := range events {
		e := &events[i]
		l.seq++
		where, stack := lines(e.Stack)
		l.all = append(l.all, Moment{l.seq, e.Time, e.Kind, Addr(e.Addr), e.Size, Addr(e.Stream), where, stack})
	}
	if n := len(events); n > 0 {
		l.last = events[n-1]
	}
	l.all = l.all[max(0, len(l.all)-mostEvents):] // not in place: snapshots have what was there
}

func same(a, b *Event) bool {
	return a.Time.Equal(b.Time) && a.Kind == b.Kind && a.Addr == b.Addr && a.Size == b.Size && a.Stream == b.Stream
}

// lines are the frames of a stack, and the line of the first one that is outside the library.
func lines(pcs []uintptr) (where string, stack []string) {
	if len(pcs) == 0 {
		return "", nil
	}
	all := runtime.CallersFrames(pcs)
	for {
		f, more := all.Next()
		at := f.File + ":" + strconv.Itoa(f.Line)
		if f.Function != "" && len(stack) < mostStack {
			stack = append(stack, f.Function+" "+at)
		}
		if where == "" && frames.Of(f) == frames.Program {
			where = at
		}
		if !more || where != "" && len(stack) == mostStack {
			return where, stack
		}
	}
}
