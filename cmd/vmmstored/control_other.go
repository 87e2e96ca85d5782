//go:build !linux

package main

import (
	"context"
	"log/slog"

	"github.com/cuvmm/cuvmm/vmm"
)

func control(context.Context, *slog.Logger, func(context.Context) error) (stop func()) {
	return func() {}
}

func askReload(context.Context, int) error { return vmm.ErrNotSupported }
