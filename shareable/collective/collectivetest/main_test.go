package collectivetest_test

import (
	"runtime/debug"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	debug.SetGCPercent(400) // of TestModel's garbage little is alive
	goleak.VerifyTestMain(m)
}
