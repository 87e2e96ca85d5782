// Command ipcroles shares plain memory between processes by CUDA's legacy handles, and plays the
// three roles of the article "CUDA IPC in Python". Try it in two terminals:
//
//	go run ./examples/ipcroles main
//	go run ./examples/ipcroles memory
//
// The role main allocates numbers, sets all to 1, and leaves a handle in a file. The role memory sets
// the numbers to 8 by copying. The role rtc, started next, adds 3 to each with a kernel that is
// compiled when it runs, on host memory with a Go function. After each main prints what it
// finds: 1, 8, 11, and if rtc is run again 14. Without a role ipcroles prints what devices
// there are.
//
// Two things order the processes. A socket gives the turns: one process after the other, and
// none without main. Events that both have open order the work on the device.
//
// Each role can be played by roles.py instead, which makes the same calls in Python.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cuvmm/cuvmm/vmm"
)

type options struct {
	role   string
	dir    string
	device string
	count  int
}

func main() {
	var o options
	flag.StringVar(&o.dir, "dir", "", "where the handles are; by default a directory of the user")
	flag.StringVar(&o.device, "device", "auto", "device: cuda:0, host, ...")
	flag.IntVar(&o.count, "count", 1<<20, "how many numbers there are: main allocates them; other roles use it if the handle has no size")
	args := os.Args[1:]
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' {
		o.role, args = args[0], args[1:]
	}
	_ = flag.CommandLine.Parse(args) // it ends the program for an error
	if o.role == "" {
		o.role = flag.Arg(0)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	if err := run(ctx, os.Stdout, o); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, w io.Writer, o options) (err error) {
	roles := map[string]func(*role) error{"main": (*role).main, "memory": (*role).memory, "rtc": (*role).rtc}
	play, ok := roles[o.role]
	switch {
	case o.role == "":
		return printDevices(w)
	case !ok:
		return fmt.Errorf("no role %q: there are main, memory and rtc", o.role)
	case o.count < 1 || o.count > math.MaxInt/4:
		return fmt.Errorf("-count must be from 1 to %d", math.MaxInt/4)
	}
	r := &role{ctx: ctx, w: w, count: o.count}
	if r.dir, err = directory(o.dir); err != nil {
		return err
	}
	if r.dev, err = vmm.Open(o.device); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.dev.Close()) }()
	if r.stream, err = r.dev.NewStream(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.stream.Close()) }()
	return play(r)
}

// role is what each of them has.
type role struct {
	ctx    context.Context
	w      io.Writer
	dir    string
	count  int
	dev    *vmm.Device
	stream *vmm.Stream
}

// file is a file by which the processes find each other.
func (r *role) file(name string) string { return filepath.Join(r.dir, name) }

// directory is where the files are. Whoever can read them can use the memory, so no other
// user may.
func directory(dir string) (string, error) {
	if dir != "" {
		return dir, nil
	}
	dir = filepath.Join(os.TempDir(), fmt.Sprintf("ipcroles-%d", os.Getuid()))
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	st, err := os.Lstat(dir)
	if err != nil {
		return "", err
	}
	if st.Mode() != fs.ModeDir|0o700 {
		return "", fmt.Errorf("%s is no directory of this user alone, but %v: use -dir", dir, st.Mode())
	}
	return dir, nil
}

// printDevices prints each device, and which others it reaches.
func printDevices(w io.Writer) error {
	devs, err := vmm.Devices()
	if err != nil {
		return err
	}
	for _, d := range devs {
		fmt.Fprintf(w, "%s: %s, unified addressing %v", d.Open, d.Name, d.Unified)
		if d.Compute != "" {
			fmt.Fprintf(w, ", compute mode %s", d.Compute)
		}
		fmt.Fprintln(w)
	}
	links, err := vmm.Topology()
	if err != nil {
		return err
	}
	for _, l := range links.Pairs {
		from, to := links.Devices[l.From].Open, links.Devices[l.To].Open
		if l.From != l.To && listed(devs, from) && listed(devs, to) {
			fmt.Fprintf(w, "%s reaches memory of %s: %v, %s\n", from, to, l.Access, l.Kind)
		}
	}
	return nil
}

// listed reports whether a device is among those that were printed. Host devices beyond the
// first are there on demand only.
func listed(devs []vmm.Info, name string) bool {
	return slices.ContainsFunc(devs, func(d vmm.Info) bool { return d.Open == name })
}
