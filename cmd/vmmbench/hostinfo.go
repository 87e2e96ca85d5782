package main

import (
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/machine"
	"github.com/cuvmm/cuvmm/cmd/vmmbench/internal/report"
)

// hostInfo describes the machine, as far as it can be read.
func hostInfo() report.Host { return machine.Host("/") }

// freeMemory returns how much more memory this process can have.
func freeMemory(root string) (free uint64, ok bool) { return machine.FreeMemory(root) }
