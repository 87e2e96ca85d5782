//go:build !linux

package hostcopy

import "github.com/cuvmm/cuvmm/vmm/driver"

func allocate(uint64) (mapping, mem []byte, err error) { return nil, nil, driver.ErrNotSupported }

func free([]byte) error { return nil }

func drop([]byte) {}

func populate([]byte) {}

func resident([]byte) bool { return true }
