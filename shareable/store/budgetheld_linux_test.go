package store

import (
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/internal/processes"
	"github.com/cuvmm/cuvmm/vmm"
)

// files is memory of a process, by inode.
type files map[inode]uint64

// filesOf is the memory that a process has descriptors of. One that ends has none to be seen.
func filesOf(pid int) files {
	all := files{}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	list, err := os.ReadDir(dir)
	if err != nil {
		return all
	}
	for _, e := range list {
		var st unix.Stat_t
		if unix.Stat(dir+"/"+e.Name(), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 0 && st.Size >= budgetChunk {
			all[inode{st.Dev, st.Ino}] = uint64(st.Size)
		}
	}
	return all
}

// holder is a process whose memory counts until it is gone.
type holder struct {
	pid, pidfd int
	dying      files // it was stopped with these, and then killed
}

func (h *holder) isGone() bool { return processes.EndsIn(h.pidfd, 0) }

// holders looks from outside at what processes have together.
type holders struct {
	mu     sync.Mutex
	all    []*holder
	most   uint64
	looks  int
	budget uint64
	passed string // how the budget was passed

	card *vmm.Device // on a GPU it is what is not free, beside
	base uint64      // what there was when no member had any
}

// on has memory of a GPU looked at: what is used now does not count. A server has no context on it.
func (h *holders) on(t *testing.T, card *vmm.Device) {
	t.Helper()
	free, total, err := card.MemInfo()
	require.NoError(t, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.card, h.base = card, total-free
}

// slack is what contexts grow by, and page tables take, of a GPU: 6 MiB were seen for each member.
func (h *holders) slack() uint64 {
	if h.card != nil {
		return memberChunk / 2
	}
	return 0
}

// add has the memory of a process count.
func (h *holders) add(t *testing.T, pid int) *holder {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	h.mu.Lock()
	defer h.mu.Unlock()
	x := &holder{pid: pid, pidfd: fd}
	h.all = append(h.all, x)
	return x
}

// stopped has what a stopped process holds count until it is gone, though it is not seen while it ends.
func (h *holders) stopped(x *holder) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x.dying = filesOf(x.pid)
}

// look counts what there was at a moment: files that were there at two looks were there between them.
func (h *holders) look() {
	h.mu.Lock()
	defer h.mu.Unlock()
	first := make([]files, len(h.all))
	for i, x := range h.all {
		first[i] = filesOf(x.pid)
	}
	var sum uint64
	text := ""
	left := h.all[:0:0]
	for i, x := range h.all {
		then := filesOf(x.pid)
		if x.dying != nil {
			then, first[i] = x.dying, x.dying
		}
		if x.isGone() {
			continue
		}
		left = append(left, x)
		var has uint64
		for file, size := range first[i] {
			if _, still := then[file]; still {
				has += size
			}
		}
		sum += has
		text += fmt.Sprintf(" %d: %d", x.pid, has)
	}
	h.all = left
	if h.card != nil {
		free, total, err := h.card.MemInfo()
		if err != nil {
			h.passed = err.Error()
			return
		}
		sum, text = total-free-min(total-free, h.base), " of the GPU"
	}
	h.looks++
	h.most = max(h.most, sum)
	if sum > h.budget+h.slack() && h.passed == "" {
		h.passed = fmt.Sprintf("%d bytes of %d:%s", sum, h.budget, text)
	}
}

// watch looks every 10 ms, until stop.
func (h *holders) watch() (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for tick := time.NewTicker(10 * time.Millisecond); ; {
			h.look()
			select {
			case <-tick.C:
			case <-over:
				tick.Stop()
				return
			}
		}
	}()
	return func() { close(over); <-ended }
}
