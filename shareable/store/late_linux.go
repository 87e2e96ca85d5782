package store

import (
	"fmt"
	"os"
	"time"
)

// lateTime is how long a handover waits for clients to take what is on its way to them.
const lateTime = 250 * time.Millisecond

// cutOff disconnects the clients to which something is on its way, during a handover.
func (s *Server) cutOff() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c, w := range s.watchers {
		if w.isSending() {
			c.Close(errNotRead)
		}
	}
	s.lateMu.Lock()
	defer s.lateMu.Unlock()
	for c := range s.late {
		c.Close(errNotRead)
	}
}

var errNotRead = fmt.Errorf("%w: it does not read, and another process takes over", os.ErrDeadlineExceeded)

// isSending reports whether the goroutine that sends has not ended.
func (w *watcher) isSending() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.running != nil
}
