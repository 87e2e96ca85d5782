package memmap

import (
	"slices"
	"time"

	"github.com/cuvmm/cuvmm/vmm"
)

// Samples is how memory has grown: a column for each number, a row for each moment at which one of
// them was seen to be another than before.
type Samples struct {
	Time      []int64  `json:"time_ms"`   // milliseconds since 1970
	Taken     []uint64 `json:"taken"`     // of the device, by all processes
	Committed []uint64 `json:"committed"` // as Stats has it, and so the next
	Used      []uint64 `json:"used"`
	Pools     []uint64 `json:"pools"` // of blocks that are allocated in pools
	Cached    []uint64 `json:"cached"`
	Retiring  []uint64 `json:"retiring"`
	Asleep    []uint64 `json:"asleep"`
}

// sample is one row.
type sample [7]uint64

// columns are the columns of a sample, in its order.
func (s *Samples) columns() [7]*[]uint64 {
	return [...]*[]uint64{&s.Taken, &s.Committed, &s.Used, &s.Pools, &s.Cached, &s.Retiring, &s.Asleep}
}

func sampleOf(x *Summary) sample {
	return sample{x.Total - x.Free, x.Stats.Committed, x.Stats.Used, x.InPools.Used, x.Stats.Cached, x.Stats.Retiring, x.Stats.Asleep}
}

func newSamples() (s Samples) {
	s.Time = []int64{}
	for _, c := range s.columns() {
		*c = []uint64{}
	}
	return s
}

// Earlier is what the history of a device tells of the time before the first of Samples: a row for
// each moment at which there was more or less memory from then on.
type Earlier struct {
	Time      []int64  `json:"time_ms"`
	Committed []uint64 `json:"committed"`
}

// sampleList is the samples of a device.
type sampleList struct {
	Samples
	earlier Earlier
	most    int
}

// begin reads, before the first sample, what was before it.
func (l *sampleList) begin(d *vmm.Device) {
	if len(l.Time) == 0 && l.earlier.Time == nil {
		l.earlier = before(d.History(0), d.Stats().Committed, l.most)
	}
}

// before is Earlier of a device that has so much memory after the events: most rows of it.
func before(events []vmm.HistoryEvent, committed uint64, most int) Earlier {
	e := Earlier{[]int64{}, []uint64{}}
	for _, h := range slices.Backward(events) {
		var by uint64 // how much there was more before it, or less
		switch h.Kind {
		case "create":
			by = -min(h.Size, committed)
		case "release":
			by = h.Size
		default:
			continue
		}
		if ms := h.Time.UnixMilli(); len(e.Time) == 0 || e.Time[len(e.Time)-1] != ms { // of one moment the last counts
			e.Time, e.Committed = append(e.Time, ms), append(e.Committed, committed)
		}
		committed += by
	}
	slices.Reverse(e.Time)
	slices.Reverse(e.Committed)
	for len(e.Time) > most {
		e.Time, e.Committed = thinned(e.Time, len(e.Time)), thinned(e.Committed, len(e.Committed))
	}
	return e
}

// add adds a row, unless it is as the last one.
func (l *sampleList) add(now time.Time, x sample) {
	n := len(l.Time)
	columns := l.columns()
	if n > 0 {
		same := true
		for i, c := range columns {
			same = same && (*c)[n-1] == x[i]
		}
		if same {
			return
		}
	}
	if n >= l.most {
		l.thin()
	}
	l.Time = append(l.Time, max(now.UnixMilli(), l.last()+1)) // no two of one moment: what is after a row is new
	for i, c := range columns {
		*c = append(*c, x[i])
	}
}

// thin drops every other row of the older half.
func (l *sampleList) thin() {
	half := len(l.Time) / 2
	l.Time = thinned(l.Time, half)
	for _, c := range l.columns() {
		*c = thinned(*c, half)
	}
}

// thinned is a new column: snapshots have the old one.
func thinned[T any](all []T, half int) []T {
	out := make([]T, 0, len(all)+1)
	for i := 0; i < half; i += 2 {
		out = append(out, all[i])
	}
	return append(out, all[half:]...)
}

// after is the rows later than a moment.
func (s *Samples) after(ms int64) (out Samples) {
	i, ok := slices.BinarySearch(s.Time, ms)
	if ok {
		i++
	}
	out.Time = s.Time[i:]
	from, to := s.columns(), out.columns()
	for c := range from {
		*to[c] = (*from[c])[i:]
	}
	return out
}

// last is the time of the last row; 0 if there is none.
func (s *Samples) last() int64 {
	if len(s.Time) == 0 {
		return 0
	}
	return s.Time[len(s.Time)-1]
}
