package wire

import (
	"fmt"
	"strconv"
	"strings"
)

// CheckName returns nil for a valid object name: 1 to MaxName bytes of
// [A-Za-z0-9._:@/-] without "..".
func CheckName(name string) error {
	if bad := badName(name); bad != "" {
		return protocolf("%s", bad)
	}
	return nil
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
