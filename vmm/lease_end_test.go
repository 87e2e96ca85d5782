package vmm_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGiveWhoseFunctionDoesNotReturn: it panics, or ends its goroutine. The process may create as much as before, but for
// what it has given.
func TestGiveWhoseFunctionDoesNotReturn(t *testing.T) {
	for name, end := range map[string]func(){
		"Goexit":  runtime.Goexit,
		"panic":   func() { panic(errInjected) },
		"control": func() {},
	} {
		t.Run(name, func(t *testing.T) {
			l := &testBroker{}
			d := leased(t, l)
			l.lease.Raise(4 * leaseUnit)
			g := growing(t, d)
			require.NoError(t, g.Grow(4*leaseUnit))
			stop := d.OnPressure(func(error) bool {
				end()
				return false
			})
			defer stop()
			done := make(chan struct{})
			go func() {
				defer close(done)
				defer func() { _ = recover() }()
				_, _ = l.lease.Give(leaseUnit, time.Now().Add(time.Minute))
			}()
			<-done
			have, created, _ := l.lease.State()
			require.Equal(t, created, have, "nothing was released")
			require.NoError(t, g.Clip())
			require.NoError(t, g.Grow(4*leaseUnit))
		})
	}
}
