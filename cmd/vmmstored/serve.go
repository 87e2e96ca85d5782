package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// serve keeps objects until ctx or the process that has started this one ends.
func (o *options) serve(ctx context.Context, stderr io.Writer) (err error) {
	log := newLogQueue(stderr)
	defer log.close()
	so, err := o.serverOptions(log)
	if err != nil {
		return err
	}
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	if driver := dev.Driver().Name(); o.require != "" && o.require != driver {
		return fmt.Errorf("--require %s, and %v is of the driver %s", o.require, dev, driver)
	}
	budgets, closeBudgets, err := o.openBudgets(so.Logger)
	defer func() { err = errors.Join(err, closeBudgets()) }()
	if err != nil {
		return err
	}
	so.Budgets = budgets
	var metrics *http.Server
	defer func() {
		if metrics != nil {
			err = errors.Join(err, metrics.Close())
		}
	}()
	var listener net.Listener
	if o.metrics != "" {
		if listener, err = listenMetrics(ctx, o.metrics); err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
	}
	return store.ServeKept(ctx, dev, so, func(s *store.Server) {
		if listener != nil {
			metrics = newMetricsServer(metricsHandler(s, dev), so.Logger, metricsTimeout)
			go metrics.Serve(listener) //nolint:errcheck // it ends with the process
		}
		so.Logger.Info("serving", "device", dev.String(), "driver", dev.Driver().Name(), "socket", s.Path(), "version", version())
	})
}

// keep has other processes serve, until ctx ends.
func (o *options) keep(ctx context.Context, args []string, stderr io.Writer) (err error) {
	log := newLogQueue(stderr)
	defer log.close()
	so, err := o.serverOptions(log)
	if err != nil { // nothing is started for what cannot be
		return err
	}
	mode, group, err := o.access()
	if err != nil {
		return err
	}
	if len(so.UIDs) > 1 && mode == 0 && !isAbstract(o.socket) {
		so.Logger.Warn("no other user can open the socket's file: see --mode and --group", "users", so.UIDs)
	}
	if o.metrics != "" {
		// The processes that serve share the address for a moment; two daemons must not.
		name := "@vmmstored-metrics-" + o.metrics
		l, err := net.Listen("unix", name)
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("--metrics %s: the name %s is taken, by a vmmstored or another process: %w", o.metrics, name, err)
		case err != nil:
			return fmt.Errorf("--metrics %s: %w", o.metrics, err)
		}
		defer l.Close() //nolint:errcheck // no one connects
	}
	self, err := os.Executable() // now: once the program is replaced there it is another one
	if err != nil {
		return err
	}
	reapOrphans(ctx)
	manager, err := newManager(so.Logger)
	if err != nil {
		return err
	}
	k, err := store.NewKeeper(store.KeeperOptions{
		Path: o.socket, Mode: mode, Group: group, Listener: manager.listener, HealthTime: manager.health, Logger: so.Logger, Changed: manager.changed,
		Command: func() *exec.Cmd {
			cmd := exec.Command(self, args...)
			cmd.Stderr = stderr
			return cmd
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	reload, stop := reloadSignal()
	defer stop()
	stopControl := control(ctx, so.Logger, k.Reload)
	defer stopControl()
	go func() {
		for range reload {
			_ = k.Reload(ctx) // it is logged
		}
	}()
	return k.Run(ctx)
}

func isAbstract(socket string) bool { return len(socket) > 0 && socket[0] == '@' }

// manager is the service manager that has started the program, if there is one.
type manager struct {
	listener *os.File      // the socket that it has made; nil: none
	health   time.Duration // how long a server may take to reply; 0: the default
	log      *slog.Logger
}
