package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// reapPause is how long who has started a process may take to hear of its end.
const reapPause = time.Second

// reapOrphans takes the ends of processes that this one has not started, where it is the first of a
// container: no one else does.
func reapOrphans(ctx context.Context) {
	if os.Getpid() != 1 {
		return
	}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGCHLD)
	go func() {
		defer signal.Stop(ended)
		for {
			select {
			case <-ended:
			case <-ctx.Done():
				return
			}
			select {
			case <-time.After(reapPause):
			case <-ctx.Done():
				return
			}
			for _, pid := range zombies() {
				_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil)
			}
		}
	}()
}

// zombies are the children of this process that have ended.
func zombies() (all []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		b, _ := os.ReadFile(list) // the thread may end
		for _, word := range strings.Fields(string(b)) {
			stat, _ := os.ReadFile("/proc/" + word + "/stat")
			var pid int
			if _, state, ok := strings.Cut(string(stat), ") "); ok && strings.HasPrefix(state, "Z") {
				if _, err := fmt.Sscan(word, &pid); err == nil {
					all = append(all, pid)
				}
			}
		}
	}
	return all
}
