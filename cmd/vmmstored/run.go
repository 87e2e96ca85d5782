package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// options are the flags.
type options struct {
	// Of all subcommands.
	socket    string
	device    string
	tokenFile string

	// Of the server, which is the program without a subcommand.
	maxBytes, maxBytesPerUser size.One
	maxObjects, maxConns      int
	users                     []uint
	evict, verbose            bool
	timeout, leaseTime        time.Duration
}

// run runs the program and returns its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := command(args, stdout, stderr)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	_, _ = fmt.Fprintf(stderr, "vmmstored: %v\n", err)
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// noArguments refuses arguments as bad usage.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("argument %q: there are none; see vmmstored --help", args[0])
	}
	return nil
}

func command(args []string, stdout, stderr io.Writer) *cobra.Command {
	o := &options{}
	root := &cobra.Command{
		Use:   "vmmstored",
		Short: "Keep named buffers of device memory for other processes",
		Long: `vmmstored owns the memory of one device for the programs that use package store.
It makes no context, so the memory outlives a fault, or the end, of any client.
One vmmstored serves one device; start one for each, with a socket of its own.

The process keeps the socket, and starts another one that serves. If that ends, or on
SIGHUP or "vmmstored reload", it starts the program anew, with the same flags, which goes on with all that there is.`,
		Args:          noArguments,
		SilenceErrors: true, SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if store.IsKept() {
				return o.serve(cmd.Context(), stderr)
			}
			return o.keep(cmd.Context(), args, stderr)
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	all := root.PersistentFlags()
	all.StringVar(&o.socket, "socket", "", "path or name of the socket (default: \"store\" in the user's own directory)")
	all.StringVar(&o.device, "device", "auto", "device whose memory it is: cuda:0, host:0; auto is the first CUDA device, else the host")
	all.StringVar(&o.tokenFile, "token-file", "", "file with a shared secret of up to 32 bytes that clients must send")
	f := root.Flags()
	f.Var(&o.maxBytes, "max-bytes", "memory of all objects together (0: no limit)")
	f.Var(&o.maxBytesPerUser, "max-bytes-per-user", "memory of the objects of one user (0: no limit)")
	f.IntVar(&o.maxObjects, "max-objects", 0, "objects (default 4096)")
	f.IntVar(&o.maxConns, "max-connections", 0, "connections (default: an eighth of the limit on open files)")
	f.UintSliceVar(&o.users, "user", nil, "ids of the users who may connect (default: this user alone)")
	f.BoolVar(&o.evict, "evict", false, "delete sealed objects that no reader has when memory or a limit runs out, the least recently used first")
	f.DurationVar(&o.timeout, "timeout", 0, "longest wait for a client, after which it is disconnected (default 10s)")
	f.DurationVar(&o.leaseTime, "lease-time", 0, "how long a writer may show no sign of life while another one waits for its object (default 30s)")
	f.BoolVarP(&o.verbose, "verbose", "v", false, "log each connection that is refused or cut off")
	root.AddCommand(o.list(stdout), o.delete(), o.stats(stdout), o.reload())
	return root
}

// token reads the file of --token-file.
func (o *options) token() ([]byte, error) {
	if o.tokenFile == "" {
		return nil, nil
	}
	b, err := os.ReadFile(o.tokenFile)
	if err != nil {
		return nil, err
	}
	token := strings.TrimSpace(string(b))
	if token == "" {
		return nil, usagef("--token-file %s has no secret", o.tokenFile)
	}
	return []byte(token), nil
}

// serverOptions are those of the flags.
func (o *options) serverOptions(log io.Writer) (store.Options, error) {
	token, err := o.token()
	so := store.Options{
		Token: token, MaxConns: o.maxConns, MaxObjects: o.maxObjects,
		MaxBytes: uint64(o.maxBytes), MaxBytesPerUID: uint64(o.maxBytesPerUser), Evict: o.evict, Timeout: o.timeout, LeaseTime: o.leaseTime,
	}
	for _, u := range o.users {
		if u > 1<<32-2 {
			return so, usagef("user %d: no user's id", u)
		}
		so.UIDs = append(so.UIDs, uint32(u))
	}
	if o.verbose {
		so.Logger = slog.New(slog.NewTextHandler(log, nil))
	}
	return so, err
}

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
	return store.ServeKept(ctx, dev, so, func(s *store.Server) {
		_, _ = fmt.Fprintf(log, "vmmstored: %v at %s\n", dev, s.Path())
	})
}

// keep has other processes serve, until ctx ends.
func (o *options) keep(ctx context.Context, args []string, stderr io.Writer) (err error) {
	log := newLogQueue(stderr)
	defer log.close()
	if _, err := o.serverOptions(log); err != nil { // nothing is started for what cannot be
		return err
	}
	self, err := os.Executable() // now: once the program is replaced there it is another one
	if err != nil {
		return err
	}
	k, err := store.NewKeeper(o.socket, func() *exec.Cmd {
		cmd := exec.Command(self, args...)
		cmd.Stderr = stderr
		return cmd
	}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	reload, stop := reloadSignal()
	defer stop()
	go func() {
		for range reload {
			_ = k.Reload(ctx) // it is logged
		}
	}()
	return k.Run(ctx)
}
