package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of a frame, the same for every peer of this version.
const (
	HeaderSize = 32       // bytes
	MaxFrame   = 64 << 10 // bytes, the header included
	MaxPayload = MaxFrame - HeaderSize
	MaxFDs     = 64       // that travel with a frame
	MaxName    = 256      // bytes of an object's name
	MaxText    = 1024     // bytes of an ERROR or a CLOSING
	MaxMeta    = 32 << 10 // bytes of metadata in an OBJECT
	MaxDtype   = 4 << 10  // bytes of the description of an element's fields
	MaxDims    = 4        // of a row
	MaxChunks  = 65536    // of an object
	MaxEntries = 230      // entries that fit into a LISTED with any names
)

// Limits of what a store keeps and tells.
const (
	MaxNames      = 16             // of an object
	MaxLabels     = 16             // of an object
	MaxLabelKey   = 64             // bytes
	MaxLabelValue = 256            // bytes
	MaxInfos      = 6              // entries that fit into a FOUND with any names and labels
	MaxCounters   = 64             // of a store
	MaxReport     = MaxPayload - 4 // bytes of a REPORTED's text
)

// CheckName returns nil for a valid object name: 1 to MaxName bytes of
// [A-Za-z0-9._:@/-] without "..".
func CheckName(name string) error {
	if bad := badName(name); bad != "" {
		return protocolf("%s", bad)
	}
	return nil
}

// IDName is the name that every object of a store has, beside others.
func IDName(id uint64) string { return "@" + strconv.FormatUint(id, 10) }

// ParseIDName is the reverse of IDName.
func ParseIDName(name string) (id uint64, ok bool) {
	digits, ok := strings.CutPrefix(name, "@")
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseUint(digits, 10, 64)
	return id, err == nil && IDName(id) == name
}

func badName(name string) string {
	if name == "" || len(name) > MaxName {
		return fmt.Sprintf("name of %d bytes, not 1 to %d", len(name), MaxName)
	}
	for i := range len(name) {
		c := name[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z'
		if !letter && (c < '0' || c > '9') && strings.IndexByte("._:@/-", c) < 0 {
			return fmt.Sprintf("name with byte %#x at %d", c, i)
		}
	}
	if strings.Contains(name, "..") {
		return "name with two dots in a row"
	}
	return ""
}
