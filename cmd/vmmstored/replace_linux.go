package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// lookPause is the time between two looks at the children of a daemon.
const lookPause = 5 * time.Millisecond

// replaceServer sends the daemon SIGHUP, and waits until another of its children has the place of the one
// that serves. It asks the kernel alone: no token, device or socket is needed.
func replaceServer(ctx context.Context, daemon int) error {
	before, taken := children(daemon), endsTaken(daemon)
	if len(before) == 0 {
		return fmt.Errorf("process %d has no child that serves", daemon)
	}
	if err := syscall.Kill(daemon, syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal process %d: %w", daemon, err)
	}
	t := time.NewTicker(lookPause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: no other server serves yet; the daemon's log says why", ctx.Err())
		}
		ended := endsTaken(daemon) != taken // looked at first: what has ended is no child any more
		stays, comes := false, false
		for pid := range children(daemon) {
			if before[pid] {
				stays = true
			} else {
				comes = true
			}
		}
		switch {
		case comes && !stays:
			return nil
		case stays && !comes && ended:
			return errors.New("the server has not been replaced; the daemon's log says why")
		}
	}
}

// children are the processes that parent has started and that have not ended.
func children(parent int) map[int]bool {
	all := map[int]bool{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		stat := fieldsOf(path)
		if len(stat) < 2 || stat[0] == "Z" || stat[0] == "X" || stat[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
			all[pid] = true
		}
	}
	return all
}

// endsTaken changes when parent takes the end of a child: it is the count of the page faults of those.
func endsTaken(parent int) string {
	const cminflt = 8
	if stat := fieldsOf(fmt.Sprintf("/proc/%d/stat", parent)); len(stat) > cminflt {
		return stat[cminflt]
	}
	return ""
}

// fieldsOf are the fields of a /proc/PID/stat after the program's name, which may be anything: state, parent, ...
func fieldsOf(path string) []string {
	b, _ := os.ReadFile(path) // the process may end
	return strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
}
