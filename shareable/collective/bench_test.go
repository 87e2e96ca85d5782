package collective

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/cgo/nccl"
	"github.com/cuvmm/cuvmm/internal/testing/nulldriver"
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

// pinning is a driver whose calls cost nothing, with pinned memory.
type pinning struct{ *nulldriver.Driver }

func (p pinning) Open(dev int) (driver.Device, error) {
	d, err := p.Driver.Open(dev)
	null, _ := d.(*nulldriver.Device)
	return pinningDevice{null}, err
}

type pinningDevice struct{ *nulldriver.Device }

func (pinningDevice) AllocHost(n uint64) (driver.Ptr, []byte, error) {
	return 1 << 50, make([]byte, n), nil
}
func (pinningDevice) FreeHost(driver.Ptr) error { return nil }

// BenchmarkDo is what a call takes apart from the engine: on host memory, and where the driver's
// calls cost nothing either.
func BenchmarkDo(b *testing.B) {
	null, err := vmm.OpenDriver(pinning{nulldriver.New()}, 0)
	require.NoError(b, err)
	defer func() { require.NoError(b, null.Close()) }()
	b.Run("driver=host", func(b *testing.B) { benchDo(b, vmmtest.Device(b)) })
	b.Run("driver=null", func(b *testing.B) { benchDo(b, null) })
}

func benchDo(b *testing.B, dev *vmm.Device) {
	g, err := forTests{}.JoinOn(b.Context(), dev, Options{Size: 1}, idle{}, nil)
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
