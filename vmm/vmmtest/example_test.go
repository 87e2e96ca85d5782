package vmmtest_test

import (
	"errors"
	"testing"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/drivertest"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// A device on host memory, which has no memory the second time that it is asked. What is left open
// fails the test.
func ExampleDevice() {
	t := &testing.T{} // that of the test function

	dev := vmmtest.Device(t, drivertest.FailNth("Create", 2, vmm.ErrOutOfMemory))
	x, err := growable.New[int64](dev, growable.Options{MaxLen: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Append(1); err != nil {
		t.Fatal(err)
	}
	if err := x.Append(make([]int64, 1<<19)...); !errors.Is(err, vmm.ErrOutOfMemory) || x.Len() != 1 {
		t.Error("length and error of an Append without memory:", x.Len(), err)
	}
}
