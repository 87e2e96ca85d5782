//go:build !linux

package main

import (
	"errors"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

func newRemapped() (grower, error) {
	return nil, errors.Join(errors.New("mremap is Linux's"), driver.ErrNotSupported)
}
