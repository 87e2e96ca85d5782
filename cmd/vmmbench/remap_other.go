//go:build !linux

package main

import (
	"fmt"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func newRemapped() (grower, error) {
	return nil, fmt.Errorf("mremap needs Linux: %w", driver.ErrNotSupported)
}
