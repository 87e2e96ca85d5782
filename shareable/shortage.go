package shareable

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
)

// shortage is the time for which a View has lacked a free descriptor. It runs on while the View connects
// again: what was lacking is still lacking then.
type shortage struct {
	limit time.Duration
	since time.Time     // zero while nothing is lacking
	what  wire.Type     // the frame whose descriptors did not come first
	pause time.Duration // before the next try
}

// lacks notes that the descriptors of a frame were lacking. The first such frame counts.
func (s *shortage) lacks(what wire.Type) {
	if s.since.IsZero() {
		s.since, s.what, s.pause = time.Now(), what, time.Millisecond
	}
}

// over is an error once something has been lacking for longer than the limit.
func (s *shortage) over(cause error) error {
	if time.Since(s.since) > s.limit {
		return fmt.Errorf("no descriptor was free within %v: %w", s.limit, cause)
	}
	return nil
}

// nextPause is the pause before the next try. It grows.
func (s *shortage) nextPause() time.Duration {
	now := s.pause
	s.pause = min(2*now, maxShortPause)
	return now
}

// had notes that the descriptors of a frame have come. Those of chunks are progress, since an object has only
// so many. Those of another frame are progress only if that frame was lacking.
func (s *shortage) had(what wire.Type) {
	if what == s.what || what == wire.TypeChunks {
		*s = shortage{limit: s.limit}
	}
}

// maxShortPause is the longest pause between two requests of a View that has no free
// descriptor. Nothing tells when one is free.
const maxShortPause = 100 * time.Millisecond

// errNoFDs marks an import that failed at the limit on open files.
var errNoFDs = errors.New("too few file descriptors for a frame")

// lacksFDs reports whether a connection was not made because no descriptor was free here.
func lacksFDs(err error) bool {
	return errors.Is(err, wire.ErrTruncated) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
