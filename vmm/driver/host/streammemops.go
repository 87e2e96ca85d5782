//go:build linux

package host

import (
	"time"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// A stream that waits for a value looks again after a pause that doubles. So a long
// wait costs next to nothing, and the end of a short one is soon seen.
const (
	firstPause = time.Microsecond
	lastPause  = 200 * time.Microsecond
)

// WriteValue queues an atomic store.
func (v *device) WriteValue(s driver.Stream, p driver.Ptr, val uint64, width int) error {
	return v.onWord("WriteValue", writingValue, s, p, width, driver.AccessReadWrite, func(*context) bool {
		store(uint64(p), val, width)
		return true
	})
}

// WaitValue holds the stream until an atomic load finds the value.
func (v *device) WaitValue(s driver.Stream, p driver.Ptr, val uint64, width int) error {
	return v.onWord("WaitValue", waitingValue, s, p, width, driver.AccessRead, func(c *context) bool {
		timer := time.NewTimer(0)
		defer timer.Stop()
		for pause := firstPause; ; pause = min(2*pause, lastPause) {
			select {
			case <-c.stopCh:
				return false
			case <-timer.C:
			}
			diff := load(uint64(p), width) - val
			if width == 4 && int32(diff) >= 0 || width == 8 && int64(diff) >= 0 {
				return true
			}
			timer.Reset(pause)
		}
	})
}

// onWord queues an op on an aligned word.
func (v *device) onWord(verb string, kind kind, s driver.Stream, p driver.Ptr, width int, need driver.Access, run func(*context) bool) error {
	if width != 4 && width != 8 || uint64(p)%uint64(width) != 0 {
		if err := v.checkOpen(verb); err != nil {
			return err
		}
		return refuse(verb, driver.ErrInvalid, "a word of %d bytes at %v", width, p)
	}
	o := &op{work: work{kind: kind, run: run}}
	o.use(p, uint64(width), need)
	return v.queue(verb, s, o)
}
