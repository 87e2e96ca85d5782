package vmm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Links is what is known of the ways between devices. It makes no context and
// holds nothing open. Its JSON names stay. Measure changes it and so wants it
// for itself; else it is safe for concurrent use.
type Links struct {
	Devices []Info
	Pairs   []Link // every device to every other, by ordinals

	drv driver.Driver
}

// Link is the way from one device to the memory of another.
type Link struct {
	From    int    `json:"from"` // ordinals
	To      int    `json:"to"`
	Access  bool   `json:"access"`  // From can be granted memory of To
	Kind    string `json:"kind"`    // "nvlink", "pcie", "host"; "none" without a path, "lost" with a device that is, "" where the driver cannot tell
	Rank    int    `json:"rank"`    // relative performance, 0 the best; -1 where the driver cannot tell
	Atomics bool   `json:"atomics"` // native atomic operations over the link

	// Bytes per second of copies, 0 before Measure. One way From writes memory
	// of To; Both is that and the other way at once, added up.
	OneWay float64 `json:"one_way"`
	Both   float64 `json:"both"`
}

// Topology tells what is known of the ways between devices: between those given,
// which have to be of one driver, or else between all CUDA devices, or those of
// the host where there is no CUDA. A pair of which the driver knows nothing more
// has whether there is access, and no rank.
func Topology(devs ...*Device) (*Links, error) {
	if len(devs) == 0 {
		l, err := topology()
		return l, (*Device)(nil).wrap(askingTopology, 0, 0, err)
	}
	if err := checkDevices(devs); err != nil {
		return nil, devs[0].wrap(askingTopology, 0, 0, err)
	}
	only := func(i Info) bool {
		return slices.ContainsFunc(devs, func(d *Device) bool { return d.info.Ordinal == i.Ordinal })
	}
	l, err := linksOf(devs[0].drv, only)
	return l, devs[0].wrap(askingTopology, 0, 0, err)
}

// Topology is that of all devices of the device's driver.
func (d *Device) Topology() (*Links, error) {
	if err := d.checkOpen(); err != nil {
		return nil, d.wrap(askingTopology, 0, 0, err)
	}
	l, err := linksOf(d.drv, allDevices)
	return l, d.wrap(askingTopology, 0, 0, err)
}

const askingTopology, measuring = "ask for topology", "measure links"

// topology is that of the first driver with devices.
func topology() (*Links, error) {
	drv, cudas, err := cudaDevices()
	if err != nil {
		return nil, err
	}
	if len(cudas) == 0 {
		drv = host.Default()
	}
	return linksOf(drv, allDevices)
}

func allDevices(Info) bool { return true }

// linksOf asks the driver about the devices that are wanted.
func linksOf(drv driver.Driver, wanted func(Info) bool) (*Links, error) {
	all, err := drv.Devices()
	if err != nil {
		return nil, err
	}
	l := &Links{Devices: []Info{}, Pairs: []Link{}, drv: drv}
	for _, i := range all {
		if wanted(i) {
			l.Devices = append(l.Devices, i)
		}
	}
	for _, from := range l.Devices {
		for _, to := range l.Devices {
			if from.Ordinal == to.Ordinal {
				continue
			}
			p, err := peering(drv, from.Ordinal, to.Ordinal)
			if lost(err) { // the rest of the machine is worth a look all the more
				p, err = driver.Peering{Link: "lost", Rank: -1}, nil
			}
			if err != nil {
				return nil, &PairError{from.Open, to.Open, err}
			}
			l.Pairs = append(l.Pairs, Link{From: from.Ordinal, To: to.Ordinal, Access: p.Access, Kind: p.Link, Rank: p.Rank, Atomics: p.Atomics})
		}
	}
	return l, nil
}

// peering is what the driver knows, or only whether there is access.
func peering(drv driver.Driver, from, to int) (driver.Peering, error) {
	if i, ok := drv.(driver.PeerInfo); ok {
		p, err := i.Peering(from, to)
		if !errors.Is(err, ErrNotSupported) {
			return p, err
		}
	}
	p := driver.Peering{Rank: -1}
	var err error
	if p.Access, err = drv.CanAccessPeer(from, to); err == nil && !p.Access {
		p.Link = "none"
	}
	return p, err
}

// Link finds a pair by its ordinals; nil if there is none.
func (l *Links) Link(from, to int) *Link {
	if l == nil {
		return nil
	}
	for i := range l.Pairs {
		if p := &l.Pairs[i]; p.From == from && p.To == to {
			return p
		}
	}
	return nil
}

// MarshalJSON writes devices by name, and pairs.
func (l Links) MarshalJSON() ([]byte, error) {
	type device struct {
		Ordinal int    `json:"ordinal"`
		Open    string `json:"open"`
		Name    string `json:"name"`
		PCI     string `json:"pci,omitempty"`
		MIG     string `json:"mig,omitempty"`
		UUID    string `json:"uuid"`
	}
	out := struct {
		Devices []device `json:"devices"`
		Pairs   []Link   `json:"pairs"`
	}{[]device{}, append([]Link{}, l.Pairs...)}
	for _, i := range l.Devices {
		out.Devices = append(out.Devices, device{i.Ordinal, i.Open, i.Name, i.PCI, i.MIG, strings.TrimPrefix(uuidText(i.UUID), "GPU-")})
	}
	return json.Marshal(out)
}

// String is a table of the pairs, from row to column: the link, its rank, and a
// + for native atomics. Once Measure has been there, tables of GB/s follow.
func (l *Links) String() string {
	if l == nil {
		return "no links"
	}
	var b strings.Builder
	l.table(&b, "link, rank (0 the best), + native atomics", (*Link).text)
	if slices.ContainsFunc(l.Pairs, func(p Link) bool { return p.OneWay > 0 }) {
		l.table(&b, "GB/s one way, row to column", func(p *Link) string { return rate(p.OneWay) })
		l.table(&b, "GB/s both ways at once, added up", func(p *Link) string { return rate(p.Both) })
	}
	return b.String()
}

// table writes a row and a column for each device.
func (l *Links) table(b *strings.Builder, title string, cell func(*Link) string) {
	fmt.Fprintf(b, "%s\n", title)
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	for _, to := range l.Devices {
		fmt.Fprintf(w, "\t%s", to.Open)
	}
	fmt.Fprintln(w)
	for _, from := range l.Devices {
		fmt.Fprint(w, from.Open)
		for _, to := range l.Devices {
			text := "self"
			if p := l.Link(from.Ordinal, to.Ordinal); p != nil {
				text = cell(p)
			}
			fmt.Fprintf(w, "\t%s", text)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // into memory
}

func (p *Link) text() string {
	if !p.Access {
		return cmp.Or(p.Kind, "none")
	}
	text := cmp.Or(p.Kind, "access")
	if p.Rank >= 0 {
		text += fmt.Sprintf(" %d", p.Rank)
	}
	if p.Atomics {
		text += " +"
	}
	return text
}

func rate(bytes float64) string {
	if bytes == 0 {
		return "-"
	}
	if bytes >= 100e9 {
		return fmt.Sprintf("%.0f", bytes/1e9) // %g would write an exponent
	}
	return fmt.Sprintf("%.3g", bytes/1e9)
}

// Measure times copies of size bytes between all pairs with access, each way
// and both ways at once, and fills in the rates. It opens the devices, takes
// twice size on each of them and keeps nothing. Beside other work it measures
// what that leaves. Pairs may be taken out of Pairs before: what has no way back
// there has no rate both ways. It fills in all pairs or none, and stops between two copies
// when ctx is done.
func (l *Links) Measure(ctx context.Context, size uint64) error {
	if l == nil || l.drv == nil || ctx == nil || size == 0 {
		return (*Device)(nil).wrap(measuring, 0, size, fmt.Errorf("%w: no topology, no context or no size", ErrInvalid))
	}
	pairs := slices.Clone(l.Pairs)
	if err := l.measure(ctx, size, pairs); err != nil {
		return (*Device)(nil).wrap(measuring, 0, size, err)
	}
	l.Pairs = pairs
	return nil
}

func (l *Links) measure(ctx context.Context, size uint64, pairs []Link) (err error) {
	ends := map[int]*end{} // by ordinal
	defer func() {
		for _, e := range ends { // which ends the grants
			err = joinErr(err, "and", e.g.Close())
		}
		for _, e := range ends {
			err = joinErr(err, "and", e.close())
		}
	}()
	for _, i := range l.Devices {
		if ends[i.Ordinal] != nil {
			continue
		}
		e := &end{}
		ends[i.Ordinal] = e
		if err := e.open(l.drv, i.Ordinal, size); err != nil {
			return err
		}
	}
	// Each way by itself before both at once, so that every grant is there by then.
	for i := range pairs {
		p := &pairs[i]
		if !p.Access {
			continue
		}
		from, to := ends[p.From], ends[p.To]
		if from == nil || to == nil {
			return fmt.Errorf("%w: a pair of devices %d and %d, which are not in the topology", ErrInvalid, p.From, p.To)
		}
		if err := to.admit(from); err != nil {
			return err
		}
		if p.OneWay, err = fastest(ctx, size, way{from, to}); err != nil {
			return pairFail(from.d, to.d, err)
		}
	}
	for i := range pairs {
		p := &pairs[i]
		from, to := ends[p.From], ends[p.To]
		back := slices.IndexFunc(pairs, func(q Link) bool { return q.From == p.To && q.To == p.From })
		switch {
		case !p.Access || back < 0 || !pairs[back].Access:
		case back < i:
			p.Both = pairs[back].Both
		default:
			if p.Both, err = fastest(ctx, size, way{from, to}, way{to, from}); err != nil {
				return pairFail(from.d, to.d, err)
			}
		}
	}
	return nil
}

// end is one device as Links.Measure uses it: memory to copy from and, after
// it, memory for others to copy to.
type end struct {
	d           *Device
	g           *Range
	s           *Stream
	first, last *Event
}

func (e *end) open(drv driver.Driver, n int, size uint64) (err error) {
	if e.d, err = OpenDriver(drv, n); err != nil {
		return err
	}
	if e.g, err = e.d.Alloc(2 * size); err != nil {
		return err
	}
	// The stream is named, so that giving the memory back waits for no other work.
	if e.s, err = e.d.NewStream(); err != nil {
		return err
	}
	if err = e.g.UsedBy(e.s); err != nil {
		return err
	}
	if e.first, err = e.d.NewEvent(EventTiming); err != nil {
		return err
	}
	e.last, err = e.d.NewEvent(EventTiming)
	return err
}

// admit lets another device's stream copy to the memory. Streams are named, so
// that a capture by other code does not keep the memory from going back.
func (e *end) admit(from *end) error {
	if err := e.g.UsedBy(from.s); err != nil {
		return err
	}
	return e.g.Grant(AccessReadWrite, from.d)
}

// close gives back all but the memory of what open took, as far as it came.
func (e *end) close() error {
	err := joinErr(e.first.Close(), "and", e.last.Close())
	err = joinErr(err, "and", e.s.Close())
	return joinErr(err, "and", e.d.Close())
}

// way is copies from one device's memory to another's.
type way struct{ from, to *end }

// A rate is the best of this many rounds, after one to warm up; a round is this
// many copies, so that what it costs to begin one counts for little.
const rounds, copies = 3, 8

// fastest is how many bytes a second go along all ways at once.
func fastest(ctx context.Context, size uint64, ways ...way) (best float64, err error) {
	for i := range rounds + 1 {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		now, err := round(size, ways)
		if err != nil {
			return 0, err
		}
		if i > 0 {
			best = max(best, now)
		}
	}
	return best, nil
}

// round queues copies along all ways, in turn, and adds up their rates. The
// devices tell the times.
func round(size uint64, ways []way) (sum float64, err error) {
	for _, w := range ways {
		if err := w.from.first.Record(w.from.s); err != nil {
			return 0, err
		}
	}
	// In turn, so that all ways are busy at the same time.
	for range copies {
		for _, w := range ways {
			if err := w.from.s.Copy(w.to.g.Ptr()+Ptr(size), w.from.g.Ptr(), size); err != nil {
				return 0, err
			}
		}
	}
	for _, w := range ways {
		if err := w.from.last.Record(w.from.s); err != nil {
			return 0, err
		}
	}
	for _, w := range ways {
		if err := w.from.s.Sync(); err != nil {
			return 0, err
		}
		took, err := w.from.last.Elapsed(w.from.first)
		if err != nil {
			return 0, err
		}
		sum += float64(copies*size) / max(took, time.Nanosecond).Seconds()
	}
	return sum, nil
}
