package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/internal/said"
	"github.com/cuvmm/cuvmm/shareable"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// withClient calls f with a client of the store at the socket.
func (o *options) withClient(ctx context.Context, f func(*store.Client) error) (err error) {
	with, err := o.credentials()
	if err != nil {
		return err
	}
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	c, err := store.Connect(ctx, o.socket, dev, with)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return f(c)
}

// credentials are what a client shows, and whom it accepts.
func (o *options) credentials() (with store.ClientOptions, err error) {
	if with.Token, err = o.token(); err == nil {
		with.UIDs, err = o.ownerIDs()
	}
	return with, err
}

// ownerIDs are the users whom clients accept as the store's; nil is the default of the library.
// Root sees whose the socket is, and no one else can have put it there.
func (o *options) ownerIDs() (ids []uint32, err error) {
	for _, name := range o.owners {
		id, err := userID(name)
		if err != nil {
			return nil, err
		}
		ids = append(ids, id)
	}
	if len(ids) > 0 || os.Getuid() != 0 || isAbstract(o.socket) {
		return ids, nil
	}
	if uid, ok := ownerOf(o.socket); ok {
		return []uint32{0, uid}, nil
	}
	return nil, nil
}

func (o *options) health() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use: "health", Short: "Ask the server for a reply; it needs no device, and exits with 0 or 1", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkWait(wait); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			with, err := o.credentials()
			if err != nil {
				return err
			}
			return store.Ping(ctx, o.socket, with)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", 5*time.Second, "how long the server may take")
	return cmd
}

// named is a command of a client for as many names as it has arguments.
func (o *options) named(use, short string, names int, do func(context.Context, *store.Client, []string) error) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != names {
				return usagef("%s takes %d arguments, and not %d; see vmmstored %s --help", strings.Fields(use)[0], names, len(args), strings.Fields(use)[0])
			}
			return checkNames(use, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withClient(cmd.Context(), func(c *store.Client) error { return do(cmd.Context(), c, args) })
		},
	}
}

// checkNames refuses an empty one.
func checkNames(use string, names []string) error {
	if slices.Contains(names, "") {
		return usagef("%s: the name is empty", strings.Fields(use)[0])
	}
	return nil
}

func (o *options) link() *cobra.Command {
	return o.named("link NAME ANOTHER", "Give an object another name", 2, func(ctx context.Context, c *store.Client, args []string) error {
		return c.Link(ctx, args[0], args[1])
	})
}

func (o *options) unlink() *cobra.Command {
	return o.named("unlink NAME", "Take a name from its object, which stays", 1, func(ctx context.Context, c *store.Client, args []string) error {
		return c.Unlink(ctx, args[0])
	})
}

func (o *options) revoke() *cobra.Command {
	return o.named("revoke NAME", "Take an object from a writer that hangs; what was published stays for the next", 1, func(ctx context.Context, c *store.Client, args []string) error {
		return c.Revoke(ctx, args[0])
	})
}

func (o *options) get(stdout io.Writer) *cobra.Command {
	var unsafe bool
	cmd := o.named("get NAME", "Write the bytes of an object to the standard output", 1, func(ctx context.Context, c *store.Client, args []string) (err error) {
		b, err := c.Get(ctx, args[0], store.GetOptions{Unsafe: unsafe})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, b.Close()) }()
		_, err = io.Copy(stdout, io.NewSectionReader(b, 0, int64(min(b.Len(), math.MaxInt64))))
		return err
	})
	cmd.Flags().BoolVar(&unsafe, "unsealed", false, "also an object that is not sealed, as far as it is published")
	return cmd
}

func (o *options) put() *cobra.Command {
	var labels map[string]string
	var more, open bool
	cmd := o.named("put NAME", "Make an object of the standard input, or append that to one, and seal it", 1, nil)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return o.withClient(cmd.Context(), func(c *store.Client) (err error) {
			ctx := cmd.Context()
			from, size := cmd.InOrStdin(), uint64(0)
			if !more && !open { // nothing is appended later, so no more addresses are reserved
				if from, size, err = sized(ctx, from); err != nil {
					return err
				}
			}
			var w *store.Writer
			if more {
				w, err = c.Append(ctx, args[0], store.AppendOptions{})
			} else {
				w, err = c.Create(ctx, args[0], store.CreateOptions{Size: size, Growable: true, Durable: open, Labels: labels})
			}
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, w.Close()) }()
			if err := appendAll(ctx, w, from); err != nil {
				if more || open {
					return err
				}
				return errors.Join(err, w.Abort(context.WithoutCancel(ctx)))
			}
			if open {
				return w.Flush(ctx)
			}
			return w.Seal(ctx, shareable.SealOptions{Digest: true})
		})
	}
	cmd.Flags().StringToStringVar(&labels, "label", nil, "a label of the object: KEY=VALUE")
	cmd.Flags().BoolVar(&more, "append", false, "append to the object that is there and not sealed")
	cmd.Flags().BoolVar(&open, "open", false, "do not seal it: more can be appended")
	return cmd
}

// mostSized is how much of an input is read before an object is made for it.
const mostSized = 16 << 20

// sized returns what from has, and how many bytes those are if it ends soon enough, else 0.
func sized(ctx context.Context, from io.Reader) (all io.Reader, size uint64, err error) {
	var b bytes.Buffer
	over := make(chan error, 1)
	go func() {
		_, err := io.CopyN(&b, from, mostSized)
		over <- err
	}()
	select {
	case err = <-over:
	case <-ctx.Done(): // the input may be silent
		return nil, 0, ctx.Err()
	}
	switch {
	case errors.Is(err, io.EOF):
		return &b, uint64(max(b.Len(), 1)), nil
	case err != nil:
		return nil, 0, err
	}
	return io.MultiReader(&b, from), 0, nil
}

// appendAll appends what from has, until that ends, or ctx, or the Writer.
func appendAll(ctx context.Context, w *store.Writer, from io.Reader) error {
	over := make(chan error, 1)
	go func() {
		_, err := io.CopyBuffer(appender{w}, from, make([]byte, 1<<20))
		over <- err
	}()
	t := time.NewTicker(100 * time.Millisecond) // the input may be silent
	defer t.Stop()
	for {
		select {
		case err := <-over:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			if err := w.Err(); err != nil {
				return err
			}
		}
	}
}

// appender is a Writer as an io.Writer.
type appender struct{ w *store.Writer }

func (a appender) Write(p []byte) (int, error) {
	if err := a.w.Append(p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (o *options) watch(stdout io.Writer) *cobra.Command {
	cmd := &cobra.Command{
		Use: "watch [PREFIX]", Short: "Print what happens to objects, a line of JSON for each event, until a signal", Args: onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withClient(cmd.Context(), func(c *store.Client) error {
				events, err := c.Watch(cmd.Context(), strings.Join(args, ""))
				if err != nil {
					return err
				}
				to := json.NewEncoder(said.Screen(stdout))
				for e, err := range events {
					if cmd.Context().Err() != nil {
						return nil
					}
					if err != nil {
						return err
					}
					if err := to.Encode(event{e.Kind.String(), e.ID.Number, e.Name, e.Len}); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	return cmd
}

// event is a line of watch. What an event does not have is not in it.
type event struct {
	Event string `json:"event"`
	ID    uint64 `json:"id,omitempty"`
	Name  string `json:"name,omitempty"`
	Len   uint64 `json:"len"`
}

func onePrefix(_ *cobra.Command, args []string) error {
	if len(args) > 1 {
		return usagef("%d prefixes: one at most", len(args))
	}
	return nil
}

func (o *options) reload() *cobra.Command {
	var wait time.Duration
	var pid int
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Replace the process that serves by the program as it is now on disk",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkWait(wait); err != nil {
				return err
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			if pid == 0 {
				owners, err := o.ownerIDs()
				if err != nil {
					return err
				}
				if pid, err = store.KeeperPID(ctx, o.socket, owners); err != nil {
					return err
				}
			}
			return askReload(ctx, pid)
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until it serves")
	cmd.Flags().IntVar(&pid, "pid", 0, "the daemon's own process, as a service manager knows it (default: who has made the socket)")
	return cmd
}

func (o *options) list(stdout io.Writer) *cobra.Command {
	var labels map[string]string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List the objects, or those whose name begins with PREFIX",
		Args:  onePrefix,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withClient(cmd.Context(), func(c *store.Client) error {
				all, err := c.List(cmd.Context(), store.ListOptions{Prefix: strings.Join(args, ""), Labels: labels})
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(stdout, all)
				}
				return printList(stdout, all, time.Now())
			})
		},
	}
	cmd.Flags().StringToStringVar(&labels, "label", nil, "only objects with this label: KEY=VALUE, or KEY= for any value")
	cmd.Flags().BoolVar(&asJSON, "json", false, "an array of JSON")
	return cmd
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(said.Screen(w))
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func printList(w io.Writer, all []store.Info, now time.Time) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "ID\tNAME\tSTATE\tLENGTH\tMEMORY\tREADERS\tWAITING\tOWNER\tAGE\tLABELS")
	for _, i := range all {
		var labels []string
		for _, k := range slices.Sorted(maps.Keys(i.Labels)) {
			labels = append(labels, said.Word(k)+"="+said.Word(i.Labels[k]))
		}
		_, _ = fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%v\t%s\n", i.ID.Number, strings.Join(i.Names, " "), state(i), i.Len, size.Format(i.Cap),
			i.Readers, i.Waiting, i.Owner, now.Sub(i.Created).Round(time.Second), strings.Join(labels, " "))
	}
	return t.Flush()
}

// state is what can be done with an object, in a word or two.
func state(i store.Info) string {
	word := "open"
	switch {
	case i.Sealed:
		return "sealed"
	case i.Leased:
		word = "written"
	}
	if i.Durable {
		word += " durable"
	}
	return word
}

func (o *options) delete() *cobra.Command {
	var d store.DeleteOptions
	cmd := &cobra.Command{
		Use:   "delete NAME ...",
		Short: "Delete objects by name or id; their memory goes with the last reader",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no name")
			}
			return checkNames("delete", args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if d.Timeout < 0 { // 0 is the server's default
				return usagef("--wait %v: want 0 or more", d.Timeout)
			}
			return o.withClient(cmd.Context(), func(c *store.Client) error {
				for _, name := range args {
					if err := c.Delete(cmd.Context(), name, d); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&d.Force, "force", false, "have readers unmap the memory now, and disconnect those that do not")
	cmd.Flags().DurationVar(&d.Timeout, "wait", 5*time.Second, "with --force, how long a reader may take")
	return cmd
}

func (o *options) stats(stdout io.Writer) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "stats", Short: "Print what the store has and has done, its limits, and what each user has", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withClient(cmd.Context(), func(c *store.Client) error {
				r, err := c.Report(cmd.Context())
				if err != nil {
					return err
				}
				if asJSON {
					return printJSON(stdout, r)
				}
				return printReport(stdout, r)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "as JSON")
	return cmd
}

func printReport(w io.Writer, r store.Report) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	limit := func(n uint64, format func(uint64) string) string {
		if n == math.MaxUint64 {
			return ""
		}
		return "of " + format(n)
	}
	number := func(n uint64) string { return strconv.FormatUint(n, 10) }
	var descriptors, records uint64
	for _, u := range r.Users {
		descriptors, records = descriptors+u.Descriptors, records+u.RecordBytes
	}
	for _, row := range []struct {
		what       string
		n          any
		limit, one string
	}{
		{"device", said.Word(r.Device), "", ""}, {"pid", r.PID, "", ""}, {"uptime", r.Uptime.Round(time.Second), "", ""},
		{"objects", r.Objects, limit(r.Limits.Objects, number), limit(r.Limits.ObjectsPerUser, number)},
		{"bytes", size.Format(r.Bytes), limit(r.Limits.Bytes, size.Format), limit(r.Limits.BytesPerUser, size.Format)},
		{"descriptors", descriptors, limit(r.Limits.Descriptors, number), limit(r.Limits.DescriptorsPerUser, number)},
		{"records", size.Format(records), limit(r.Limits.RecordBytes, size.Format), limit(r.Limits.RecordBytesPerUser, size.Format)},
		{"connections", r.Clients, "", ""}, {"leases", r.Leases, "", ""}, {"waits", r.Waits, "", ""},
		{"created", r.Created, "", ""}, {"sealed", r.Sealed, "", ""}, {"aborted", r.Aborted, "", ""}, {"deleted", r.Deleted, "", ""},
		{"evicted", r.Evicted, "", ""}, {"leases granted", r.Granted, "", ""}, {"restarts", r.Restarts, "", ""},
		{"connections refused", r.Conns.Refused, "", ""},
	} {
		if row.one != "" {
			row.one += " each user"
		}
		_, _ = fmt.Fprintln(t, strings.TrimRight(fmt.Sprintf("%s\t%v\t%s\t%s", row.what, row.n, row.limit, row.one), "\t"))
	}
	for _, reason := range slices.Sorted(maps.Keys(r.Refused)) {
		_, _ = fmt.Fprintf(t, "refused: %s\t%d\n", strings.ReplaceAll(said.Word(reason), "_", " "), r.Refused[reason])
	}
	_, _ = fmt.Fprintf(t, "readers behind\t%d\n", r.ReadersBehind)
	if err := t.Flush(); err != nil {
		return err
	}
	_, _ = fmt.Fprintln(t, "\nUSER\tOBJECTS\tBYTES\tDESCRIPTORS\tRECORDS\tCONNECTIONS\tREFUSED")
	for _, u := range r.Users {
		refused := uint64(0)
		for _, n := range u.Refused {
			refused += n
		}
		_, _ = fmt.Fprintf(t, "%d\t%d\t%s\t%d\t%s\t%d\t%d\n", u.UID, u.Objects, size.Format(u.Bytes), u.Descriptors, size.Format(u.RecordBytes), u.Clients, refused)
	}
	return t.Flush()
}
