package memtrace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/internal/webdebug"
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
	Name   string    `json:"name,omitempty"`  // of the range or pool
	Where  string    `json:"where,omitempty"` // the program's line, file:line
	Stack  []string  `json:"stack,omitempty"` // the innermost first: function file:line
}

// Resolve finds the names and lines. Of the library's own frames only the outermost stays, the call
// that the program has made.
func Resolve(e vmm.HistoryEvent) Event {
	where, stack := lines(e.Stack)
	return Event{e.Seq, e.Time, e.Kind, Addr(e.Addr), e.Size, Addr(e.Stream), e.Name, where, stack}
}

// lines are the frames of a stack from the call into the library on, and the line of the first one
// that is outside.
func lines(pcs []uintptr) (where string, stack []string) {
	if len(pcs) == 0 {
		return "", nil
	}
	all := runtime.CallersFrames(pcs)
	for {
		f, more := all.Next()
		at := f.File + ":" + strconv.Itoa(f.Line)
		switch whose := frames.Of(f); {
		case f.Function == "":
		case whose == frames.Program && where == "":
			where = at
			fallthrough
		case where != "" || len(stack) == 0:
			stack = append(stack, f.Function+" "+at)
		case whose == frames.Library:
			stack[0] = f.Function + " " + at
		}
		if !more {
			return where, stack
		}
	}
}

// WriteLines writes all events that the device keeps, each as an Event in a line of JSON.
func WriteLines(w io.Writer, dev *vmm.Device) error { return writeLines(w, dev.HistorySeq(0)) }

func writeLines(w io.Writer, events iter.Seq[vmm.HistoryEvent]) error {
	b := bufio.NewWriter(w)
	line := json.NewEncoder(b)
	for e := range events {
		if err := line.Encode(Resolve(e)); err != nil {
			return err
		}
	}
	return b.Flush()
}

// Handler serves what the devices keep: ?device=cuda:0 says of which, the first one if it is not
// there; ?after=N leaves out events up to that Seq; with ?format=trace as WriteTrace writes it, else,
// or with ?format=lines, as WriteLines does. A device that keeps nothing is 404.
func Handler(devs ...*vmm.Device) http.Handler {
	return webdebug.Handler(func(w http.ResponseWriter, r *http.Request, query url.Values) {
		name, format := query.Get("device"), cmp.Or(query.Get("format"), "lines")
		after, err := strconv.ParseUint(cmp.Or(query.Get("after"), "0"), 10, 64)
		i := slices.IndexFunc(devs, func(d *vmm.Device) bool { return d != nil && (name == "" || d.String() == name) })
		switch {
		case i < 0:
			http.Error(w, fmt.Sprintf("no device %q; there are %v", name, devs), http.StatusNotFound)
			return
		case err != nil || format != "lines" && format != "trace":
			http.Error(w, "want ?format=lines or trace, and a number for after", http.StatusBadRequest)
			return
		}
		d := devs[i]
		if !inside.VMM.HistoryLog(d).Keeps() {
			http.Error(w, d.String()+" keeps no events: see Device.SetHistory", http.StatusNotFound)
			return
		}
		h := w.Header()
		h.Set("Content-Type", "application/jsonl")
		if format == "trace" {
			h.Set("Content-Type", "application/json")
			h.Set("Content-Disposition", `attachment; filename="history.json"`)
		}
		switch events := d.HistorySeq(after); {
		case r.Method == http.MethodHead:
		case format == "trace":
			_ = writeTrace(w, d.String(), events) // the client has gone
		default:
			_ = writeLines(w, events)
		}
	})
}
