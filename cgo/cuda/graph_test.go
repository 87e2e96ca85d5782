//go:build cgo && linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/fakecuda"
	"github.com/cuvmm/cuvmm/vmm/driver"
)

// Captured work runs when the graph is launched, with the arguments of the capture or
// of the last update.
func TestGraph(t *testing.T) {
	_, v, _ := opened(t)
	x := &things{v: v}
	f := findKernel(t, v, load(t, v, fakeCode), "fill_bytes")
	p := plain(t, v, 4)
	var err error
	x.s, err = v.NewStream()
	require.NoError(t, err)
	fill := func(value byte) func() {
		return func() { require.NoError(t, v.Launch(f, fillBytes(p, 2, value), x.s)) }
	}
	one, other := x.captured(t, fill(1)), x.captured(t, fill(2))
	two := x.captured(t, func() { fill(3)(); fill(4)() })
	exec, err := v.Instantiate(one)
	require.NoError(t, err)
	require.NoError(t, v.FreeGraph(one), "what was instantiated from it stays")
	require.Equal(t, []byte{0, 0, 0, 0}, contents(t, v, p, 4), "it has not run")
	require.NoError(t, v.LaunchGraph(exec, x.s))
	require.Equal(t, []byte{1, 1, 0, 0}, contents(t, v, p, 4))
	require.NoError(t, v.UpdateGraphExec(exec, other))
	require.NoError(t, v.LaunchGraph(exec, x.s))
	require.Equal(t, []byte{2, 2, 0, 0}, contents(t, v, p, 4))
	isOnly(t, v.UpdateGraphExec(exec, two), driver.ErrInvalid)
	require.NoError(t, v.Fill(p, 0, 1, 4, x.s))
	require.NoError(t, v.LaunchGraph(exec, x.s))
	require.Equal(t, []byte{2, 2, 0, 0}, contents(t, v, p, 4), "it stayed as it was")

	// Launched during a capture it becomes part of that.
	nested := x.captured(t, func() { require.NoError(t, v.LaunchGraph(exec, x.s)) })
	require.NoError(t, v.FreeGraphExec(exec))
	isOnly(t, v.LaunchGraph(exec, x.s), driver.ErrInvalid)
	exec, err = v.Instantiate(nested)
	require.NoError(t, err)
	require.NoError(t, v.Fill(p, 0, 1, 4, x.s))
	require.NoError(t, v.LaunchGraph(exec, x.s))
	require.Equal(t, []byte{2, 2, 0, 0}, contents(t, v, p, 4))
	require.NoError(t, v.FreeGraphExec(exec))

	for _, g := range []driver.Graph{other, two, nested} {
		require.NoError(t, v.FreeGraph(g))
		isOnly(t, v.FreeGraph(g), driver.ErrInvalid)
		_, err := v.Instantiate(g)
		isOnly(t, err, driver.ErrInvalid)
	}
	require.NoError(t, v.FreeStream(x.s))
}

func TestCaptureID(t *testing.T) {
	_, v, _ := opened(t)
	s, err := v.NewStream()
	require.NoError(t, err)
	other, err := v.NewStream()
	require.NoError(t, err)
	id := func(s driver.Stream) uint64 {
		n, err := v.CaptureID(s)
		require.NoError(t, err)
		return n
	}
	require.Zero(t, id(s))
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	require.NoError(t, v.BeginCapture(other, driver.CaptureRelaxed))
	first := id(s)
	require.NotZero(t, first)
	require.Equal(t, first, id(s))
	require.NotEqual(t, first, id(other))
	require.NoError(t, endCapture(v, s))
	require.Zero(t, id(s))
	require.NoError(t, v.BeginCapture(s, driver.CaptureRelaxed))
	require.NotEqual(t, first, id(s))

	isOnly(t, v.SyncStream(s), driver.ErrCapturing)
	n, err := v.CaptureID(s)
	isOnly(t, err, driver.ErrCapturing, "it was destroyed, and CUDA has no id for it")
	require.Zero(t, n)
	isOnly(t, endCapture(v, s), driver.ErrInvalid)
	require.Zero(t, id(s))
	require.NoError(t, endCapture(v, other))
	require.NoError(t, v.FreeStream(s))
	require.NoError(t, v.FreeStream(other))
}

// Calls with one graph come to libcuda one after the other, calls with several at the
// same time: CUDA's graphs are not for several threads.
func TestGraphOneAtATime(t *testing.T) {
	_, v, fake := opened(t)
	x := &things{v: v}
	var err error
	x.s, err = v.NewStream()
	require.NoError(t, err)
	g := x.captured(t, func() {})
	var execs [2]driver.GraphExec
	for i := range execs {
		execs[i], err = v.Instantiate(g)
		require.NoError(t, err)
	}
	held, resume := pause(t, fake, "cuGraphLaunch")
	launched := make(chan error, 4)
	started := make(chan struct{}, 4)
	for i := range 4 {
		go func() {
			started <- struct{}{}
			launched <- v.LaunchGraph(execs[i%2], x.s)
		}()
	}
	for range 4 {
		<-started
	}
	held(2)
	// A free does not wait, and comes after the launches.
	for _, exec := range execs {
		require.NoError(t, within(t, "free", func() error { return v.FreeGraphExec(exec) }))
	}
	require.Equal(t, 2, fake.Paused(), "one of each")
	require.Zero(t, fake.Calls("cuGraphExecDestroy"), "freed under a launch")
	resume()
	refused := 0
	for range 4 {
		if err := soon(t, "launch", launched); err != nil {
			isOnly(t, err, driver.ErrInvalid) // it came after the free
			refused++
		}
	}
	require.LessOrEqual(t, refused, 2)
	require.Equal(t, 2, fake.Calls("cuGraphExecDestroy"))
	require.NoError(t, v.FreeGraph(g))
	require.NoError(t, v.FreeStream(x.s))
	require.Equal(t, fakecuda.Live{Contexts: 1, Streams: 1}, fake.Live())
}
