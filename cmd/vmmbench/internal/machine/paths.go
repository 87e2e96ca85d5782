package machine

import (
	"fmt"

	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// AddPaths fills in what connects the devices of each link, by NVML: Path, NVLinks and
// Refused. Links between memory of the host have none of these.
func AddPaths(devices []report.Device, links []*report.Link) {
	addPaths(devices, links, openNVML)
}

func addPaths(devices []report.Device, links []*report.Link, open func() (library, error)) {
	ids := map[string]id{}
	for _, d := range devices {
		if which, ok := idOf(d); ok {
			ids[d.Open] = which
		}
	}
	if len(ids) == 0 {
		return
	}
	lib, absent := open()
	if absent == nil {
		defer lib.close() //nolint:errcheck // what was read is right all the same
	}
	for _, l := range links {
		from, ok := ids[l.From]
		to, too := ids[l.To]
		if !ok || !too {
			continue
		}
		var missing reasons
		if absent != nil {
			missing.add("path", absent)
		} else {
			missing.add("path", addPath(l, lib, from, to, &missing))
		}
		if text := missing.text(); l.Reason == "" {
			l.Reason = text
		} else if text != "" {
			l.Reason += "; " + text
		}
	}
}

// addPath fills in one link. Its error is why nothing could be asked.
func addPath(l *report.Link, lib library, from, to id, missing *reasons) error {
	a, err := lib.find(from)
	if err != nil {
		return err
	}
	b, err := lib.find(to)
	if err != nil {
		return err
	}
	refused, err := a.refusal(b)
	missing.add("refused", err)
	l.Refused = report.Text(refused)
	// Two instances of one GPU need no way between them.
	if from.pci != "" && from.pci == to.pci {
		l.Path = "same GPU"
		return nil
	}
	// NVLinks come first: traffic that can takes them.
	n, err := a.nvlinksTo(b)
	if err == nil {
		l.NVLinks = &n
		if n > 0 {
			l.Path = report.Text(fmt.Sprintf("NV%d", n))
			return nil
		}
	}
	missing.add("nvlinks", err)
	level, err := a.level(b)
	l.Path = report.Text(level)
	return err
}
