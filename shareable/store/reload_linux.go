package store

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/internal/errtext"
	"github.com/cuvmm/cuvmm/shareable/internal/socket"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

// lookPause is the time between two looks at the children of a keeper.
const lookPause = 5 * time.Millisecond

// Reload has the Keeper of a store begin another process, as SIGHUP does, and waits until that has the
// place of the one that serves. It asks the kernel, so it needs no device and no token, and works for all who
// may signal the Keeper. pid is that of the Keeper; 0 is the process that has made the socket at path, which
// is as for Listen, if it belongs to one of uids (nil: as for Connect). It returns vmm.ErrNotSupported if
// there is no Keeper, or none that can be seen from here.
func Reload(ctx context.Context, path string, pid int, uids []uint32) (err error) {
	defer errtext.Wrapf(&err, "replace the server")
	if ctx == nil {
		return errNoContext
	}
	if pid == 0 {
		path = cmp.Or(path, defaultName)
		if pid, err = keeperOf(ctx, path, uids); err != nil {
			return err
		}
	}
	before, taken := childrenOf(pid), endsTaken(pid)
	if len(before) == 0 {
		return fmt.Errorf("process %d has no child that serves", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
		return fmt.Errorf("signal process %d: %w", pid, err)
	}
	t := time.NewTicker(lookPause)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-ctx.Done():
			return fmt.Errorf("%w: no other server serves yet; the daemon's log says why", ctx.Err())
		}
		ended := endsTaken(pid) != taken // looked at first: what has ended is no child any more
		stays, comes := false, false
		for child := range childrenOf(pid) {
			if before[child] {
				stays = true
			} else {
				comes = true
			}
		}
		switch {
		case comes && !stays:
			return nil
		case stays && !comes && ended:
			return errors.New(cmp.Or(socket.Note(path), "another one does not begin; the daemon's log says why"))
		}
	}
}

// keeperOf is the process that keeps the socket of the store at path.
func keeperOf(ctx context.Context, path string, uids []uint32) (int, error) {
	pid, features, err := sharing.Keeper(ctx, path, uids)
	switch {
	case err != nil:
		return 0, err
	case features&wire.FeatureKept == 0:
		return 0, fmt.Errorf("%w: the store has no keeper", vmm.ErrNotSupported)
	case features&wire.FeatureReload == 0:
		return 0, fmt.Errorf("%w: another process than the keeper has made the socket, so its pid is not known", vmm.ErrNotSupported)
	case pid <= 0:
		return 0, fmt.Errorf("%w: the keeper is in another namespace of process ids", vmm.ErrNotSupported)
	}
	return pid, nil
}

// childrenOf are the processes that parent has started and that have not ended.
func childrenOf(parent int) map[int]bool {
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
