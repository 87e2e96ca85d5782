package memprof

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/google/pprof/profile"

	"github.com/cuvmm/cuvmm/internal/frames"
	"github.com/cuvmm/cuvmm/internal/memsample"
	"github.com/cuvmm/cuvmm/internal/webdebug"
)

// DefaultRate is the rate at first.
const DefaultRate = memsample.DefaultRate

// SetRate has one sample taken for each n bytes of memory on average, and returns the old rate. 1
// samples all memory, 0 none. What was allocated before stays as it was sampled then, so set it when
// the program begins. Safe for concurrent use.
func SetRate(n int64) (old int64) { return memsample.SetRate(n) }

// Take is the profile of all devices that are open now. Each device is shown as it was at one moment.
// The sample types are as in Go's heap profile, in bytes of physical memory: alloc_objects,
// alloc_space, inuse_objects, inuse_space. The labels are device and kind:
//
//	range          memory that a Range has mapped, also ahead of need, and what is retiring
//	chunk          a Chunk that the program has created
//	import         memory of another process or Device; Stats.Imported
//	pool block     a block of a Pool, as rounded up
//	pool free      what a Pool has and no block uses, where the pool grew
//	cached         kept for growth; see Device.SetReleaseThreshold
//	leaving        was cached, and goes back to the driver, or was refused by it: Stats.Quarantined
//	host copy      host memory for the contents of a Range that sleeps
//	pinned         host memory for staging, of Mirrors and of Pinned
//
// Memory in use of a range or pool with a name has the label name, too. Allocations of the past have
// none: the names of ranges that are closed would add up.
//
// With a rate of 1, all but import and the last two add up to Stats.Committed. Cached and pinned memory has no
// stack. No sample has less allocated than in use. No driver is called.
func Take() *profile.Profile { return take(false) }

func take(changes bool) *profile.Profile {
	b := newBuilder()
	b.changes = changes
	for _, o := range memsample.Owners() {
		b.add(o)
	}
	return b.p
}

// Write writes the profile as Take takes it, in the form that go tool pprof reads.
func Write(w io.Writer) error { return Take().Write(w) }

// Handler serves the profile. Mount it beside net/http/pprof:
//
//	http.Handle("GET /debug/pprof/gpumem", memprof.Handler())
//
// As with Go's heap profile, ?seconds=N serves what has changed within so many seconds, and
// ?debug=1 a text.
func Handler() http.Handler {
	return webdebug.Handler(func(w http.ResponseWriter, r *http.Request, query url.Values) {
		n := query.Get("seconds")
		seconds, err := strconv.ParseUint(cmp.Or(n, "1"), 10, 16)
		d := time.Duration(seconds) * time.Second //nolint:gosec // not above 65,535 s
		srv, _ := r.Context().Value(http.ServerContextKey).(*http.Server)
		if err != nil || seconds == 0 || n != "" && srv != nil && srv.WriteTimeout > 0 && d >= srv.WriteTimeout {
			http.Error(w, "seconds: want a whole number, up to 65,535 and below the server's WriteTimeout", http.StatusBadRequest)
			return
		}
		debug := query.Get("debug")
		text := debug != "" && debug != "0"
		if r.Method == http.MethodHead {
			setHeaders(w.Header(), text)
			return
		}
		p := take(n != "")
		if n != "" {
			select {
			case <-r.Context().Done():
				return
			case <-time.After(d):
			}
			if p, err = since(p); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
		}
		setHeaders(w.Header(), text)
		if text {
			_, _ = io.WriteString(w, p.String()) // the client has gone
			return
		}
		_ = p.Write(w) // the client has gone
	})
}

// setHeaders sets those of a profile, or of one as a text.
func setHeaders(h http.Header, text bool) {
	if text {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		return
	}
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", `attachment; filename="gpumem"`)
}

// since is what has changed since a profile was taken.
func since(p *profile.Profile) (*profile.Profile, error) {
	p.Scale(-1)
	now := take(true)
	d, err := profile.Merge([]*profile.Profile{p, now})
	if err != nil {
		return nil, err
	}
	for _, s := range d.Sample { // a device that was closed has taken its allocations with it
		s.Value[0], s.Value[1] = max(s.Value[0], 0), max(s.Value[1], 0)
	}
	d.TimeNanos, d.DurationNanos = now.TimeNanos, now.TimeNanos-p.TimeNanos
	return d, nil
}

var kinds = map[memsample.Kind]string{
	memsample.Range: "range", memsample.Chunk: "chunk", memsample.Import: "import", memsample.Pool: "pool free",
	memsample.Block: "pool block", memsample.HostCopy: "host copy", memsample.Leaving: "leaving",
}

// builder makes a profile.
type builder struct {
	p         *profile.Profile
	functions map[string]*profile.Function
	locations map[string]*profile.Location
	pinned    map[any]bool // whose pinned memory is in it
	changes   bool         // it is for since: an allocation of a name would be lost with the name, so none has one
}

func newBuilder() *builder {
	count := func(what string) *profile.ValueType { return &profile.ValueType{Type: what, Unit: "count"} }
	space := func(what string) *profile.ValueType { return &profile.ValueType{Type: what, Unit: "bytes"} }
	b := &builder{
		p: &profile.Profile{
			SampleType:        []*profile.ValueType{count("alloc_objects"), space("alloc_space"), count("inuse_objects"), space("inuse_space")},
			DefaultSampleType: "inuse_space",
			PeriodType:        space("space"),
			Period:            memsample.Rate(),
			TimeNanos:         time.Now().UnixNano(),
		},
		functions: map[string]*profile.Function{},
		locations: map[string]*profile.Location{},
		pinned:    map[any]bool{},
	}
	if b.p.Period != 1 { // pprof shows it with -comments
		b.p.Comments = []string{fmt.Sprintf("Estimated: memory was sampled once in %d bytes on average. memprof.SetRate(1) has all of it.", b.p.Period)}
	}
	return b
}

// add adds a device's memory.
func (b *builder) add(o *memsample.Owner) {
	var records []memsample.Record
	totals := o.Moment(func() { records = o.Records() })
	all := map[string]*pools{} // by their names
	for i := range records {
		for _, p := range b.parts(&records[i]) {
			if all[p.name] == nil {
				all[p.name] = &pools{}
			}
			switch records[i].Kind {
			case memsample.Pool:
				all[p.name].held += p.bytes
			case memsample.Block:
				all[p.name].inBlocks += p.bytes
			}
		}
	}
	for i := range records {
		r := &records[i]
		stack := b.stack(r.Stack)
		for _, p := range b.parts(r) {
			values := []float64{p.allocObjects, p.allocBytes, p.objects, p.bytes}
			switch r.Kind {
			case memsample.Pool: // its blocks have the bytes that were asked for
				values = []float64{0, 0, 0, all[p.name].free(p.bytes)}
			case memsample.Leaving:
				values = []float64{0, 0, 0, p.bytes}
			}
			b.sample(o, kinds[r.Kind], p.name, stack, values)
		}
	}
	if b.pinned[totals.PinnedOf] {
		totals.Pinned = 0
	}
	b.pinned[totals.PinnedOf] = true
	for kind, n := range map[string]uint64{"cached": totals.Cached, "pinned": totals.Pinned} {
		b.sample(o, kind, "", []*profile.Location{b.location("["+kind+" memory]", "", 0)}, []float64{0, 0, 0, float64(n)})
	}
}

// part is the share of one name in a record.
type part struct {
	name                                     string
	allocObjects, allocBytes, objects, bytes float64
}

// parts divides a record by names. Allocations of the past are in the first part, which has none.
func (b *builder) parts(r *memsample.Record) []part {
	all := []part{{"", r.AllocObjects, r.AllocBytes, r.AllocObjects - r.FreeObjects, r.AllocBytes - r.FreeBytes}}
	for _, name := range slices.Sorted(maps.Keys(r.Named)) {
		n := r.Named[name]
		p := part{name: name, objects: n.Objects, bytes: n.Bytes}
		all[0].objects -= n.Objects
		all[0].bytes -= n.Bytes
		if !b.changes {
			p.allocObjects, p.allocBytes = n.Objects, n.Bytes
			all[0].allocObjects -= n.Objects
			all[0].allocBytes -= n.Bytes
		}
		all = append(all, p)
	}
	return all
}

// pools are the bytes of all pools of one name.
type pools struct {
	held, inBlocks float64
	read, shown    float64 // so far: of held, and of memory in no block
}

// free is how many of the next bytes of held are in no block.
func (p *pools) free(bytes float64) float64 {
	before := p.shown
	p.read += bytes
	if p.held > 0 {
		p.shown = math.Round(p.read * max(0, 1-p.inBlocks/p.held))
	}
	return p.shown - before
}

// sample adds a sample, unless all its values are 0.
func (b *builder) sample(o *memsample.Owner, kind, name string, stack []*profile.Location, values []float64) {
	s := &profile.Sample{Location: stack, Label: map[string][]string{"device": {o.Name}, "kind": {kind}}}
	if name != "" {
		quoted := strconv.Quote(name) // a label is UTF-8
		s.Label["name"] = []string{quoted[1 : len(quoted)-1]}
	}
	if !b.changes { // what is no allocation of its own, such as cached memory
		values[0], values[1] = max(values[0], values[2]), max(values[1], values[3])
	}
	for _, v := range values {
		s.Value = append(s.Value, int64(math.Round(v)))
	}
	if slices.ContainsFunc(s.Value, func(v int64) bool { return v != 0 }) {
		b.p.Sample = append(b.p.Sample, s)
	}
}

// stack is the locations of a stack from the caller of this module on; all of it if there is none.
func (b *builder) stack(s memsample.Stack) (all []*profile.Location) {
	n := slices.Index(s[:], 0)
	if n < 0 {
		n = len(s)
	}
	var ours []*profile.Location // if it never leaves the library
	for next, more := runtime.CallersFrames(s[:n]), n > 0; more; {
		var f runtime.Frame
		f, more = next.Next()
		l := func() *profile.Location { return b.location(f.Function, f.File, int64(f.Line)) }
		switch whose := frames.Of(f); {
		case whose == frames.Program, len(all) > 0 && f.Function != "runtime.goexit":
			all = append(all, l())
		case whose == frames.Library:
			ours = append(ours, l())
		}
	}
	if len(all) == 0 {
		return ours
	}
	return all
}

func (b *builder) location(name, file string, line int64) *profile.Location {
	f := b.functions[name+file]
	if f == nil {
		f = &profile.Function{ID: uint64(len(b.p.Function) + 1), Name: name, SystemName: name, Filename: file}
		b.functions[name+file] = f
		b.p.Function = append(b.p.Function, f)
	}
	key := fmt.Sprint(f.ID, ":", line)
	l := b.locations[key]
	if l == nil {
		l = &profile.Location{ID: uint64(len(b.p.Location) + 1), Line: []profile.Line{{Function: f, Line: line}}}
		b.locations[key] = l
		b.p.Location = append(b.p.Location, l)
	}
	return l
}
