package webdebug

import (
	"testing"
	"time"
)

// SetTimeout sets the timeout until the test ends.
func SetTimeout(t *testing.T, d time.Duration) {
	before := timeout
	timeout = d
	t.Cleanup(func() { timeout = before })
}
