package vmm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// Links is what is known of the connections between devices. It makes no context and holds nothing open.
// JSON field names are stable. Safe for concurrent use.
type Links struct {
	Devices []Info
	Pairs   []Link // every device to every other, by ordinals
}

// Link is the connection from one device to the memory of another.
type Link struct {
	From    int    `json:"from"` // ordinals
	To      int    `json:"to"`
	Access  bool   `json:"access"`  // From can be granted memory of To
	Kind    string `json:"kind"`    // "nvlink", "pcie", "host"; "none" without a path, "lost" with a device that is, "" where the driver cannot tell
	Rank    int    `json:"rank"`    // relative performance, 0 the best; -1 where the driver cannot tell
	Atomics bool   `json:"atomics"` // native atomic operations over the link
}

// Topology returns what is known of the connections between the given devices, which must be of one
// driver. With none given, it is for all CUDA devices, or the host's where there is no CUDA. If the
// driver knows nothing more of a pair, its Link has Access, but no rank.
func Topology(devs ...*Device) (*Links, error) {
	if len(devs) == 0 {
		l, err := topology()
		return l, (*Device)(nil).wrap(askingTopology, 0, 0, err)
	}
	if _, err := checkDevices(devs); err != nil {
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

const askingTopology = "ask for topology"

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
	l := &Links{Devices: []Info{}, Pairs: []Link{}}
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
				return nil, fmt.Errorf("link from %s to %s: %w", from.Open, to.Open, err)
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

// String is a table of the pairs, from row to column: the link, its rank, and a + for native atomics.
func (l *Links) String() string {
	if l == nil {
		return "no links"
	}
	var b strings.Builder
	fmt.Fprintln(&b, "link, rank (0 the best), + native atomics")
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, to := range l.Devices {
		fmt.Fprintf(w, "\t%s", to.Open)
	}
	fmt.Fprintln(w)
	for _, from := range l.Devices {
		fmt.Fprint(w, from.Open)
		for _, to := range l.Devices {
			text := "self"
			if p := l.Link(from.Ordinal, to.Ordinal); p != nil {
				text = p.text()
			}
			fmt.Fprintf(w, "\t%s", text)
		}
		fmt.Fprintln(w)
	}
	_ = w.Flush() // into memory
	return b.String()
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
