package vmmtest

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/vmm/driver"
)

// elsewhere is a driver as the host's is on a system that it does not support.
type elsewhere struct{ driver.Driver }

func (elsewhere) Devices() ([]driver.Info, error) {
	return nil, &driver.CallError{Call: "Devices", Kind: driver.ErrNotSupported, Err: errors.New("needs Linux")}
}

// ended is a test that records how it was ended.
type ended struct {
	testing.TB
	how string
}

func (e *ended) Helper() {}

func (e *ended) Skipf(format string, args ...any) {
	e.how = "skip: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (e *ended) Fatalf(format string, args ...any) {
	e.how = "fatal: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestWhereTheHostIsNoDevice: the test that asks is skipped, unless it must not be.
func TestWhereTheHostIsNoDevice(t *testing.T) {
	for _, c := range []struct{ env, want string }{
		{"", "skip: needs host: Devices: not supported: needs Linux"},
		{"host", "fatal: VMM_TEST_REQUIRE asks for host: Devices: not supported: needs Linux"},
	} {
		t.Setenv("VMM_TEST_REQUIRE", c.env)
		e := &ended{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			onHost(e, elsewhere{})
		}()
		<-done
		require.Equal(t, c.want, e.how)
	}
}
