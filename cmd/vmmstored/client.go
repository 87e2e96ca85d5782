package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cuvmm/cuvmm/cmd/internal/size"
	"github.com/cuvmm/cuvmm/shareable/store"
	"github.com/cuvmm/cuvmm/vmm"
)

// withClient calls f with a client of the store at the socket.
func (o *options) withClient(ctx context.Context, f func(*store.Client) error) (err error) {
	token, err := o.token()
	if err != nil {
		return err
	}
	dev, err := vmm.Open(o.device)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	c, err := store.Connect(ctx, o.socket, dev, store.ClientOptions{Token: token})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	return f(c)
}

func (o *options) reload() *cobra.Command {
	var wait time.Duration
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Replace the process that serves by the program as it is now on disk",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			return o.withClient(ctx, func(c *store.Client) error { return c.Replace(ctx) })
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", time.Minute, "how long to wait until it serves")
	return cmd
}

func (o *options) list(stdout io.Writer) *cobra.Command {
	var labels map[string]string
	cmd := &cobra.Command{
		Use:   "list [PREFIX]",
		Short: "List the objects, or those whose name begins with PREFIX",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return usagef("%d prefixes: one at most", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.withClient(cmd.Context(), func(c *store.Client) error {
				all, err := c.List(cmd.Context(), store.ListOptions{Prefix: strings.Join(args, ""), Labels: labels})
				if err != nil {
					return err
				}
				return printList(stdout, all)
			})
		},
	}
	cmd.Flags().StringToStringVar(&labels, "label", nil, "only objects with this label: KEY=VALUE, or KEY= for any value")
	return cmd
}

func printList(w io.Writer, all []store.Info) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	_, _ = fmt.Fprintln(t, "ID\tNAME\tSTATE\tLENGTH\tMEMORY\tREADERS")
	for _, i := range all {
		_, _ = fmt.Fprintf(t, "%d\t%s\t%s\t%d\t%s\t%d\n", i.ID.Number, strings.Join(i.Names, " "), state(i), i.Len, size.Format(i.Cap), i.Readers)
	}
	return t.Flush()
}

// state is what can be done with an object, in a word.
func state(i store.Info) string {
	switch {
	case i.Sealed:
		return "sealed"
	case i.Leased:
		return "written"
	}
	return "open"
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
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
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
	return &cobra.Command{
		Use: "stats", Short: "Print what the store has and has done", Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.withClient(cmd.Context(), func(c *store.Client) error {
				s, err := c.Stats(cmd.Context())
				if err != nil {
					return err
				}
				t := tabwriter.NewWriter(stdout, 0, 8, 2, ' ', 0)
				for _, row := range []struct {
					what string
					n    any
				}{
					{"objects", s.Objects}, {"bytes", s.Bytes}, {"connections", s.Clients}, {"leases", s.Leases}, {"waits", s.Waits},
					{"created", s.Created}, {"sealed", s.Sealed}, {"aborted", s.Aborted}, {"deleted", s.Deleted}, {"evicted", s.Evicted},
					{"leases granted", s.Granted}, {"restarts", s.Restarts},
				} {
					_, _ = fmt.Fprintf(t, "%s\t%v\n", row.what, row.n)
				}
				return t.Flush()
			})
		},
	}
}
