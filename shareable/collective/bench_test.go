package collective

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/shareable/collective/internal/engine"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// idle is an engine that does nothing.
type idle struct{}

var (
	_ engine.Engine = idle{}
	_ engine.Maker  = idle{}
)

func (idle) NewID() (ID, error) { return ID{}, nil }
func (idle) Join(context.Context, *vmm.Device, ID, int, int) (engine.Engine, error) {
	return idle{}, nil
}

func (idle) Run(driver.Stream, []driver.Span, []nccl.Call) error { return nil }
func (idle) Err() error                                          { return nil }
func (idle) Register(vmm.Ptr, uint64) (uint64, error)            { return 1, nil }
func (idle) Deregister(uint64) error                             { return nil }
func (idle) RegisterWindow(vmm.Ptr, uint64) (uint64, error)      { return 1, nil }
func (idle) DeregisterWindow(uint64) error                       { return nil }
func (idle) Close() error                                        { return nil }
func (idle) Abort() error                                        { return nil }
func (idle) Free() error                                         { return nil }
func (idle) Name() string                                        { return "idle" }

// BenchmarkDo is what a call takes apart from the engine.
func BenchmarkDo(b *testing.B) {
	dev := vmmtest.Device(b)
	g, err := JoinOn(b.Context(), dev, Options{Size: 1}, idle{}, nil)
	require.NoError(b, err)
	defer func() { require.NoError(b, g.Close()) }()
	st, err := dev.NewStream()
	require.NoError(b, err)
	defer func() { require.NoError(b, st.Close()) }()
	r, err := dev.NewRange(vmm.RangeOptions{})
	require.NoError(b, err)
	defer func() { require.NoError(b, r.Close()) }()
	require.NoError(b, r.Append(make([]byte, 64)))
	b.ReportAllocs()
	for b.Loop() {
		if err := g.Do(b.Context(), st, AllReduce(r, r, Float32, Sum)); err != nil {
			b.Fatal(err)
		}
	}
}
