package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/user"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/internal/loglimit"
	"github.com/cuvmm/cuvmm/internal/said"
	"github.com/cuvmm/cuvmm/shareable/store"
)

// options are the flags.
type options struct {
	// Of all subcommands.
	socket    string
	device    string
	tokenFile string
	owners    []string

	// Of the server, which is the program without a subcommand.
	maxBytes, maxBytesPerUser size.One
	maxObjects, maxConns      int
	users, budgets            []string
	evict                     bool
	timeout, leaseTime        time.Duration
	mode, group               string
	require                   string
	metrics                   string
	logFormat                 string
}

// usageError is an error in the arguments.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

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
	_, _ = fmt.Fprintf(said.Screen(stderr), "vmmstored: %s\n", flagNames.Replace(err.Error()))
	var usage usageError
	if errors.As(err, &usage) {
		return 2
	}
	return 1
}

// flagNames are the flags of options that errors of the store name.
var flagNames = strings.NewReplacer("Options.MaxBytesPerUID", "--max-bytes-per-user", "ClientOptions.", "ClientOptions.",
	"Options.MaxBytes", "--max-bytes", "Options.MaxObjects", "--max-objects")

// checkWait refuses a --wait in which nothing can come.
func checkWait(wait time.Duration) error {
	if wait <= 0 {
		return usagef("--wait %v: want a time above 0", wait)
	}
	return nil
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
SIGHUP or "vmmstored reload", it starts the program anew, with the same flags, which goes on with all that there is.

The packages have a unit of systemd for each GPU: "systemctl enable --now vmmstored@0" is for cuda:0.

  /etc/default/vmmstored       VMMSTORED_FLAGS: flags of all units
  /etc/default/vmmstored-0     VMMSTORED_FLAGS of vmmstored@0, in the place of those;
                               VMMSTORED_DEVICE=host:0: host memory
  /run/vmmstored-0/store.sock  the socket of vmmstored@0; clients name --owner vmmstored
  /usr/lib/systemd/system      vmmstored@.service, and vmmstored@.socket, with which
                               the first client starts it; clients name --owner root`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return usagef("no command %q; did you mean %s?", args[0], strings.Join(near, ", "))
			}
			return usagef("no command %q; see vmmstored --help", args[0])
		},
		SilenceErrors: true, SilenceUsage: true, SuggestionsMinimumDistance: 2,
		Version: version(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if store.IsKept() {
				return store.FailKept(o.serve(cmd.Context(), stderr))
			}
			return o.keep(cmd.Context(), args, stderr)
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	all := root.PersistentFlags()
	all.StringVar(&o.socket, "socket", "", "path or name of the socket (default: \"store\" in the user's own directory)")
	all.StringVar(&o.device, "device", "auto", "device whose memory it is: cuda:0, host:0; auto is the first CUDA device, else the host")
	all.StringSliceVar(&o.owners, "owner", nil, "names or ids of users whom clients accept as the store's (default: this user and root; for root the socket's owner)")
	all.StringVar(&o.tokenFile, "token-file", "", "file with a shared secret of up to 32 bytes that clients must send; the daemon's user must be able to read it")
	f := root.Flags()
	f.Var(&o.maxBytes, "max-bytes", "memory of all objects together (0: no limit)")
	f.Var(&o.maxBytesPerUser, "max-bytes-per-user", "memory of the objects of one user (0: no limit)")
	f.IntVar(&o.maxObjects, "max-objects", 0, "objects (default 4096)")
	f.IntVar(&o.maxConns, "max-connections", 0, "connections (default: an eighth of the limit on open files)")
	f.StringSliceVar(&o.users, "user", nil, "names or ids of the users who may connect (default: this user alone)")
	f.StringVar(&o.mode, "mode", "", "mode of the socket's file (default 0600); with 0660 those connect whom --user names and who are in the group")
	f.StringVar(&o.group, "group", "", "name or id of the group of the socket's file")
	f.BoolVar(&o.evict, "evict", false, "delete sealed objects that no reader has when memory or a limit runs out, the least recently used first")
	f.DurationVar(&o.timeout, "timeout", 0, "longest wait for a client, after which it is disconnected (default 10s)")
	f.DurationVar(&o.leaseTime, "lease-time", 0, "how long a writer may show no sign of life while another one waits for its object (default 30s)")
	f.StringVar(&o.require, "require", "", "fail unless the device is of this driver: cuda, host")
	f.StringVar(&o.metrics, "metrics", "", "address of an HTTP server with Prometheus's metrics at /metrics, as 127.0.0.1:9470")
	f.StringVar(&o.logFormat, "log-format", "text", "text or json")
	f.StringArrayVar(&o.budgets, "budget", nil, "divide memory among the processes that join, as cuda:0=70GiB; for each device one")
	root.AddCommand(o.list(stdout), o.stats(stdout), o.budget(stdout), o.health(), o.get(stdout), o.put(), o.watch(stdout), o.link(), o.unlink(), o.delete(), o.revoke(), o.reload())
	return root
}

// token reads the file of --token-file.
func (o *options) token() ([]byte, error) {
	if o.tokenFile == "" {
		return nil, nil
	}
	info, err := os.Stat(o.tokenFile) // before it is opened: that waits for who writes to a pipe
	if err == nil && !info.Mode().IsRegular() {
		err = usagef("--token-file %s is no regular file", o.tokenFile)
	}
	if err != nil {
		return nil, err
	}
	f, err := os.Open(o.tokenFile)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	b, err := io.ReadAll(io.LimitReader(f, mostTokenFile+1))
	token := bytes.TrimSpace(b)
	switch {
	case err != nil:
		return nil, err
	case len(b) > mostTokenFile:
		return nil, usagef("--token-file %s has more than %d bytes", o.tokenFile, mostTokenFile)
	case len(token) == 0:
		return nil, usagef("--token-file %s has no secret", o.tokenFile)
	}
	return token, nil
}

// mostTokenFile allows for blanks around the secret.
const mostTokenFile = 4096

// serverOptions are those of the flags.
func (o *options) serverOptions(log io.Writer) (store.Options, error) {
	token, err := o.token()
	so := store.Options{
		Token: token, MaxConns: o.maxConns, MaxObjects: o.maxObjects,
		MaxBytes: uint64(o.maxBytes), MaxBytesPerUID: uint64(o.maxBytesPerUser), Evict: o.evict, Timeout: o.timeout, LeaseTime: o.leaseTime,
	}
	if err != nil {
		return so, err
	}
	if o.leaseTime != 0 && o.leaseTime < leastLeaseTime {
		return so, usagef("--lease-time %v: a writer shows a sign of life each second, so at least %v", o.leaseTime, leastLeaseTime)
	}
	if _, err := parseBudgets(o.budgets); err != nil {
		return so, err
	}
	for _, u := range o.users {
		id, err := userID(u)
		if err != nil {
			return so, err
		}
		so.UIDs = append(so.UIDs, id)
	}
	so.Logger, err = o.logger(log)
	return so, err
}

// leastLeaseTime allows for signs of life that are late.
const leastLeaseTime = 3 * time.Second

// logger is the program's log. What others cause is a warning in it, and limited.
func (o *options) logger(w io.Writer) (*slog.Logger, error) {
	switch o.logFormat {
	case "text":
		return loglimit.New(slog.New(slog.NewTextHandler(w, nil))), nil
	case "json":
		return loglimit.New(slog.New(slog.NewJSONHandler(w, nil))), nil
	}
	return nil, usagef("--log-format %q: text or json", o.logFormat)
}

// userID is the id of a user by name or number.
func userID(name string) (uint32, error) {
	if n, err := strconv.ParseUint(name, 10, 32); err == nil && n < 1<<32-1 {
		return uint32(n), nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, usagef("user %q: %v", name, err)
	}
	n, err := strconv.ParseUint(u.Uid, 10, 32)
	return uint32(n), err
}

// access is the mode and the group of the socket's file.
func (o *options) access() (mode fs.FileMode, group *int, err error) {
	if o.mode != "" {
		n, err := strconv.ParseUint(o.mode, 8, 9)
		if err != nil || n == 0 {
			return 0, nil, usagef("--mode %q: three octal digits, as 0660", o.mode)
		}
		mode = fs.FileMode(n)
	}
	if o.group == "" {
		return mode, nil, nil
	}
	id, err := strconv.Atoi(o.group)
	if err != nil {
		g, err := user.LookupGroup(o.group)
		if err != nil {
			return 0, nil, usagef("--group %q: %v", o.group, err)
		}
		if id, err = strconv.Atoi(g.Gid); err != nil {
			return 0, nil, err
		}
	}
	return mode, &id, nil
}

// commit is set by the linker, as make build does: with -X main.commit=..., because not every
// build finds the repository.
var commit string

// version is what the program was built of.
func version() string {
	if commit != "" {
		return commit
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && (v == "" || v == "(devel)") {
			v = s.Value
		}
	}
	return cmp.Or(v, "unknown")
}
