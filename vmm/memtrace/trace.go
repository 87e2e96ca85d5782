package memtrace

import (
	"bufio"
	"encoding/json"
	"io"
	"iter"
	"os"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// record is an event in the trace event format: names are of one or two letters there.
type record struct {
	Name  string  `json:"name"`
	Cat   string  `json:"cat,omitempty"`
	Phase string  `json:"ph"`
	Scope string  `json:"s,omitempty"`
	ID    string  `json:"id,omitempty"`
	TS    float64 `json:"ts"` // microseconds
	PID   int     `json:"pid"`
	TID   uint64  `json:"tid"`
	Args  any     `json:"args,omitempty"`
}

// details are the arguments of an instant.
type details struct {
	Seq   uint64   `json:"seq"`
	Addr  Addr     `json:"addr"`
	Size  uint64   `json:"size"`
	Name  string   `json:"name,omitempty"`
	Where string   `json:"where,omitempty"`
	Stack []string `json:"stack,omitempty"`
}

// The track of what happens in no stream, and that of the first stream.
const (
	noStream    = 1
	firstStream = 2
)

// WriteTrace writes all events that the device keeps as one JSON object in the trace event format. Each
// is an instant in the track of its stream, with its details as arguments. A range that sleeps is a
// slice from sleep to wake or close. Counters show by how many bytes the physical memory, the lease of a
// budget, what is imported, what is mapped, and what is in blocks of pools, as it was asked for, have changed
// since the first event that is kept.
//
// Format: "Trace Event Format", which Perfetto documents as its JSON format.
func WriteTrace(w io.Writer, dev *vmm.Device) error {
	return writeTrace(w, dev.String(), dev.HistorySeq(0))
}

func writeTrace(w io.Writer, dev string, events iter.Seq[vmm.HistoryEvent]) error {
	b := bufio.NewWriter(w)
	if _, err := b.WriteString(`{"displayTimeUnit":"ns","traceEvents":[`); err != nil {
		return err
	}
	t := &tracer{w: b, pid: os.Getpid(), streams: map[Addr]uint64{0: noStream}, sizes: map[Addr]int64{}, asleep: map[Addr]bool{}}
	t.put(record{Name: "process_name", Phase: "M", Args: map[string]string{"name": "memory of " + dev}})
	t.put(record{Name: "thread_name", Phase: "M", TID: noStream, Args: map[string]string{"name": "device"}})
	for e := range events {
		if t.event(Resolve(e)); t.err != nil {
			break
		}
	}
	if t.err != nil {
		return t.err
	}
	if _, err := b.WriteString("]}\n"); err != nil {
		return err
	}
	return b.Flush()
}

// tracer writes records.
type tracer struct {
	w       *bufio.Writer
	pid     int
	began   time.Time
	written bool
	err     error

	streams                                   map[Addr]uint64 // their tracks
	physical, lease, imported, mapped, blocks int64
	sizes                                     map[Addr]int64 // of blocks whose alloc or resize was seen
	asleep                                    map[Addr]bool  // the slice has begun
}

func (t *tracer) event(e Event) {
	if t.began.IsZero() {
		t.began = e.Time
	}
	ts := float64(e.Time.Sub(t.began).Nanoseconds()) / 1e3
	tid, ok := t.streams[e.Stream]
	if !ok {
		tid = firstStream + uint64(len(t.streams)-1)
		t.streams[e.Stream] = tid
		name, _ := e.Stream.MarshalText()
		t.put(record{Name: "thread_name", Phase: "M", TID: tid, Args: map[string]string{"name": "stream " + string(name)}})
	}
	t.put(record{Name: e.Kind, Cat: "memory", Phase: "i", Scope: "t", TS: ts, TID: tid, Args: details{e.Seq, e.Addr, e.Size, e.Name, e.Where, e.Stack}})
	id, _ := e.Addr.MarshalText()
	switch e.Kind {
	case "sleep":
		t.asleep[e.Addr] = true
		t.put(record{Name: "asleep", Cat: "sleep", Phase: "b", ID: string(id), TS: ts, TID: tid})
	case "wake", "close":
		if t.asleep[e.Addr] {
			delete(t.asleep, e.Addr)
			t.put(record{Name: "asleep", Cat: "sleep", Phase: "e", ID: string(id), TS: ts, TID: tid})
		}
	}
	t.count(e, ts)
}

// count writes the counter that an event changes.
func (t *tracer) count(e Event, ts float64) {
	name, counter, by := "", (*int64)(nil), int64(e.Size) //nolint:gosec // far below 2^63
	switch e.Kind {
	case "create":
		name, counter = "physical memory", &t.physical
	case "release":
		name, counter, by = "physical memory", &t.physical, -by
	case "lend":
		name, counter = "lease", &t.lease
	case "give":
		name, counter, by = "lease", &t.lease, -by
	case "import":
		name, counter = "imported", &t.imported
	case "unimport":
		name, counter, by = "imported", &t.imported, -by
	case "map":
		name, counter = "mapped", &t.mapped
	case "unmap":
		name, counter, by = "mapped", &t.mapped, -by
	case "alloc", "resize":
		was, known := t.sizes[e.Addr]
		t.sizes[e.Addr] = by
		if name, counter = "in blocks of pools", &t.blocks; e.Kind == "resize" {
			if !known {
				return
			}
			by -= was
		}
	case "free":
		name, counter, by = "in blocks of pools", &t.blocks, -by
		delete(t.sizes, e.Addr)
	default:
		return
	}
	*counter += by
	t.put(record{Name: name + ", change", Phase: "C", TS: ts, Args: map[string]int64{"bytes": *counter}})
}

func (t *tracer) put(r record) {
	if t.err != nil {
		return
	}
	r.PID = t.pid
	text, err := json.Marshal(r)
	if err == nil && t.written {
		err = t.w.WriteByte(',')
	}
	if err == nil {
		_, err = t.w.Write(text)
	}
	t.written, t.err = true, err
}
