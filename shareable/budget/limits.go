package budget

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cuvmm/cuvmm/internal/freememory"
	"github.com/cuvmm/cuvmm/internal/inside"
	"github.com/cuvmm/cuvmm/vmm"
)

// Limit is a limit on the memory of a device, which others have set. Sizes are bytes.
type Limit struct {
	Source string `json:"source"` // a file of a control group, or an environment variable
	Bytes  uint64 `json:"bytes"`  // how much may be used
	Others uint64 `json:"others"` // used of that, but not created by this process through vmm
	Soft   bool   `json:"soft"`   // more may be used, but the system may take it, or end the process, when the device is full

	capacity bool // all there is
}

// left is how much this process may create.
func (l Limit) left() uint64 { return l.Bytes - min(l.Bytes, l.Others) }

// Limits returns the limits on the memory of dev that [Follow] obeys: none if there is none. If some cannot be read,
// it returns the others, and an error.
func Limits(dev *vmm.Device) ([]Limit, error) {
	if dev == nil {
		return nil, fmt.Errorf("read limits: %w: no device", vmm.ErrInvalid)
	}
	return newReader(dev, "/").read()
}

// reader reads the limits of a device.
type reader struct {
	dev  *vmm.Device
	root string // where the system's files are

	known map[string]bool // what was read once. If it is gone, that is an error
	all   []Limit
	errs  []error
}

func newReader(dev *vmm.Device, root string) *reader {
	return &reader{dev: dev, root: root, known: map[string]bool{}}
}

func (r *reader) read() ([]Limit, error) {
	r.all, r.errs = nil, nil
	info := r.dev.Info()
	before, _ := inside.VMM.Created(r.dev)
	if info.PCI == "" {
		r.readHost()
	} else {
		r.readVariables(info)
		if info.MIG == "" { // the controller knows no instances
			r.readCard(info.PCI)
		}
	}
	after, _ := inside.VMM.Created(r.dev)
	for i := range r.all { // it has what is used in all
		r.all[i].Others -= min(r.all[i].Others, before, after)
	}
	if err := errors.Join(r.errs...); err != nil {
		return r.all, fmt.Errorf("read limits: %w", err)
	}
	return r.all, nil
}

// found reports whether name was read. A file that does not exist limits nothing, unless it has existed before.
func (r *reader) found(name string, err error) bool {
	switch {
	case err == nil:
		r.known[name] = true
	case !errors.Is(err, fs.ErrNotExist) || r.known[name]:
		r.errs = append(r.errs, err)
	}
	return err == nil
}

// groups are the control groups of the process.
func (r *reader) groups(controller string) []freememory.Group {
	all, err := freememory.Groups(r.root, controller)
	r.found("groups", err)
	return all
}

// readHost reads the limits of host memory.
func (r *reader) readHost() {
	for _, g := range r.groups("memory") {
		limit, used, err := g.Memory()
		if r.found(g.MemoryLimit(), err) && limit != freememory.NoLimit {
			r.all = append(r.all, Limit{Source: g.MemoryLimit(), Bytes: limit, Others: used})
		}
	}
}

// readCard reads the limits of the controller dmem.
func (r *reader) readCard(pci string) {
	for _, g := range r.groups("dmem") {
		for _, f := range []struct {
			name           string
			soft, capacity bool
		}{{name: "dmem.max"}, {name: "dmem.min", soft: true}, {name: "dmem.capacity", capacity: true}} {
			file := filepath.Join(g.Dir, f.name)
			bytes, err := cardLine(file, pci)
			if !r.found(file, err) || bytes == freememory.NoLimit || f.soft && bytes == 0 {
				continue
			}
			l := Limit{Source: file, Bytes: bytes, Soft: f.soft, capacity: f.capacity}
			if !f.capacity {
				if l.Others, err = cardLine(filepath.Join(g.Dir, "dmem.current"), pci); err != nil {
					r.errs = append(r.errs, err)
				}
			}
			r.all = append(r.all, l)
		}
	}
}

// cardLine reads the value of a card's memory from a file of the controller dmem. Its lines are like
// "nvidia/0000:3b:00.0/vidmem 1073741824", and those of other drivers like "drm/0000:03:00.0/vram0 max".
func cardLine(file, pci string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	domain := func(pci string) string { return strings.TrimLeft(pci, "0") } // of 4 digits or 8
	for line := range strings.Lines(string(text)) {
		region, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		parts := strings.Split(region, "/")
		if len(parts) != 3 || !strings.EqualFold(domain(parts[1]), domain(pci)) || !strings.HasPrefix(parts[2], "vidmem") && !strings.HasPrefix(parts[2], "vram") {
			continue
		}
		n, err := freememory.ParseLimit(value)
		if err != nil {
			return 0, fmt.Errorf("%s: %s: %w", file, region, err)
		}
		return n, nil
	}
	return 0, fmt.Errorf("%s: %w: a line for %s", file, fs.ErrNotExist, pci)
}

// readVariables reads the environment variables of MPS and of HAMi.
func (r *reader) readVariables(info vmm.Info) {
	const mps, hami = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT"
	uuid := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", info.UUID[0:4], info.UUID[4:6], info.UUID[6:8], info.UUID[8:10], info.UUID[10:16])
	ordinal := strconv.Itoa(info.Ordinal)
	for entry := range strings.SplitSeq(os.Getenv(mps), ",") { // "0=2G,GPU-8932f937-...=512M"
		device, size, _ := strings.Cut(strings.TrimSpace(entry), "=")
		if device == ordinal || strings.EqualFold(device, uuid) || info.MIG != "" && device == info.MIG {
			r.variable(mps, size)
		}
	}
	if !r.variable(hami+"_"+ordinal, os.Getenv(hami+"_"+ordinal)) { // "4096m"
		r.variable(hami, os.Getenv(hami))
	}
}

// variable adds the limit that a variable has. Without a value there is none, and 0 is none.
func (r *reader) variable(name, value string) (limited bool) {
	if value == "" {
		return false
	}
	bytes, err := parseSize(value)
	if err != nil {
		r.errs = append(r.errs, fmt.Errorf("%s: %w", name, err))
		return false
	}
	if bytes > 0 {
		r.all = append(r.all, Limit{Source: name, Bytes: bytes})
	}
	return bytes > 0
}

// parseSize parses bytes, as a number that k, m or g may follow, in either case. They are powers of 1024.
func parseSize(text string) (uint64, error) {
	number, unit := text, uint64(1)
	for i, letter := range "kmg" {
		if cut := strings.TrimRight(text, string(letter)+strings.ToUpper(string(letter))); len(cut) == len(text)-1 {
			number, unit = cut, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseUint(number, 0, 64)
	if err != nil || n*unit/unit != n {
		return 0, fmt.Errorf("%w: %q is no size", vmm.ErrInvalid, text)
	}
	return n * unit, nil
}
