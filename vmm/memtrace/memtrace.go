package memtrace

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/vmm"
)

// Addr is an address or a handle. In JSON it is a text, "0x7f0000000000": a number in JavaScript
// has 53 bits.
type Addr uint64

// MarshalText is the address in hexadecimal.
func (a Addr) MarshalText() ([]byte, error) {
	return strconv.AppendUint(append(make([]byte, 0, 18), "0x"...), uint64(a), 16), nil
}

// UnmarshalText reads what MarshalText writes.
func (a *Addr) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 0, 64)
	*a = Addr(n)
	return err
}

// Event is a vmm.HistoryEvent with names and lines in place of its stack.
type Event struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`
	Addr   Addr      `json:"addr"`
	Size   uint64    `json:"size"`
	Stream Addr      `json:"stream"`
	Where  string    `json:"where,omitempty"` // the program's line, file:line
	Stack  []string  `json:"stack,omitempty"` // the innermost first: function file:line
}

// Events are the events that the device keeps with a Seq above after, the oldest first.
func Events(dev *vmm.Device, after uint64) []Event { return Resolve(dev.History(after)) }

// Resolve finds the names and lines.
func Resolve(events []vmm.HistoryEvent) []Event {
	all := make([]Event, len(events))
	for i, e := range events {
		where, stack := lines(e.Stack)
		all[i] = Event{e.Seq, e.Time, e.Kind, Addr(e.Addr), e.Size, Addr(e.Stream), where, stack}
	}
	return all
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
		if f.Function != "" {
			stack = append(stack, f.Function+" "+at)
		}
		if where == "" && frames.Of(f) == frames.Program {
			where = at
		}
		if !more {
			return where, stack
		}
	}
}

// WriteLines writes all events that the device keeps, each as an Event in a line of JSON.
func WriteLines(w io.Writer, dev *vmm.Device) error {
	b := bufio.NewWriter(w)
	line := json.NewEncoder(b)
	for _, e := range Events(dev, 0) {
		if err := line.Encode(e); err != nil {
			return err
		}
	}
	return b.Flush()
}

// Handler serves what the devices keep: ?device=cuda:0 says of which, the first one if it is not
// there; with ?format=trace as WriteTrace writes it, else as WriteLines does.
func Handler(devs ...*vmm.Device) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.FormValue("device")
		for _, d := range devs {
			if name != "" && d.String() != name {
				continue
			}
			w.Header().Set("X-Content-Type-Options", "nosniff")
			if r.FormValue("format") == "trace" {
				w.Header().Set("Content-Type", "application/json")
				w.Header().Set("Content-Disposition", `attachment; filename="history.json"`)
				_ = WriteTrace(w, d) // the client has gone
				return
			}
			w.Header().Set("Content-Type", "application/jsonl")
			_ = WriteLines(w, d)
			return
		}
		http.Error(w, "no such device", http.StatusNotFound)
	})
}
