package vmm

import (
	"fmt"
	"strconv"
	"strings"
)

// mostName is how many bytes a name may have.
const mostName = 64

// copyName is door.VMM.CopyName.
func copyName(name string) (string, error) {
	if len(name) > mostName {
		return "", fmt.Errorf("%w: a name of %d bytes, of at most %d", ErrInvalid, len(name), mostName)
	}
	return strings.Clone(name), nil
}

// withName is a text with a name behind it, if there is one, quoted as in Go.
func withName(text, name string) string {
	if name == "" {
		return text
	}
	return text + " " + strconv.Quote(name)
}
