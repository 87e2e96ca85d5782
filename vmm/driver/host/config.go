package host

import (
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Config describes the devices of a Driver. The zero value is one device as
// large as the machine's memory.
type Config struct {
	Devices     int      // how many devices; 0: one
	Memory      uint64   // bytes of each device; 0: the machine's memory, or the control group's limit if that is less
	Granularity uint64   // unit of sizes and addresses in bytes, rounded up to a power of two and to a page of the system; 0: 2 MiB
	Mappings    int      // kernel mappings it may hold; 0: as many as the process, whose limit is vm.max_map_count less a margin
	NoPeer      [][2]int // pairs of devices that cannot reach each other's memory
}

const (
	defaultDevices     = 16      // how many devices Default has
	defaultGranularity = 2 << 20 // as on the card
	maxGranularity     = 1 << 30 // of a driver with a name
)

// Default is the driver that the names "host" and "host:0" to "host:15" mean.
// It is made at the first call and is the same for the whole process. Its
// sixteen devices share the machine's memory and each is as large as it.
func Default() *Driver { return byGranularity(defaultGranularity) }

// DefaultWith is Default with the options of a device name, what follows the question
// mark in "host?page=4K". There is one option, page, the granularity: a power of two
// from a page of the system to 1G, in bytes or with K, M or G behind it. Drivers of
// another granularity are other drivers: their devices reach no memory of Default's,
// and each counts its own. Without options it is Default. Anything else is ErrInvalid.
func DefaultWith(options string) (*Driver, error) {
	granularity := uint64(defaultGranularity)
	if options != "" {
		name, value, _ := strings.Cut(options, "=")
		if name != "page" {
			return nil, fmt.Errorf("%w: host has no option %q, only page, as in \"host?page=4K\"", driver.ErrInvalid, name)
		}
		var ok bool
		granularity, ok = parseSize(value)
		least := uint64(os.Getpagesize())
		if !ok || bits.OnesCount64(granularity) != 1 || granularity < least || granularity > maxGranularity {
			return nil, fmt.Errorf("%w: page=%q: the granularity is a power of two from %s, a page of this system, to %s",
				driver.ErrInvalid, value, sizeText(least), sizeText(maxGranularity))
		}
	}
	return byGranularity(granularity), nil
}

// named are the drivers that have a name, by granularity.
var named struct {
	sync.Mutex
	drivers map[uint64]*Driver
}

// byGranularity is the process's driver of that granularity.
func byGranularity(granularity uint64) *Driver {
	named.Lock()
	defer named.Unlock()
	d := named.drivers[granularity]
	if d == nil {
		d = New(Config{Devices: defaultDevices, Granularity: granularity})
		if granularity != defaultGranularity {
			d.options = "?page=" + sizeText(granularity)
		}
		if named.drivers == nil {
			named.drivers = map[uint64]*Driver{}
		}
		named.drivers[granularity] = d
	}
	return d
}

// units are what a size in a device name may end with.
const units = "KMG"

// parseSize reads a number of bytes such as "4096", "4K" or "2M".
func parseSize(text string) (bytes uint64, ok bool) {
	shift := 0
	for i, unit := range units {
		if digits, found := strings.CutSuffix(text, string(unit)); found {
			text, shift = digits, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > ^uint64(0)>>shift {
		return 0, false
	}
	return n << shift, true
}

// sizeText is a power of two as parseSize reads it.
func sizeText(bytes uint64) string {
	unit := ""
	for i := 0; i < len(units) && bytes%1024 == 0; i++ {
		bytes, unit = bytes/1024, units[i:i+1]
	}
	return strconv.FormatUint(bytes, 10) + unit
}
