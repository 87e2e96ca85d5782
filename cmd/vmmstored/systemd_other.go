//go:build !linux

package main

import (
	"context"
	"log/slog"
	"net"

	"github.com/cuvmm/cuvmm/shareable/store"
)

func newManager(log *slog.Logger) (*manager, error) { return &manager{log: log}, nil }

func (m *manager) changed(store.KeeperState) {}

var listenConfig net.ListenConfig

func reapOrphans(context.Context) {}
