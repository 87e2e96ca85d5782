package shareable

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/kernel"
)

// addCUDA is compiled at run time in the process that attaches.
const addCUDA = `
extern "C" __global__ void add_a(int *x, unsigned long long n, int a)
{
	unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x;
	if (i < n)
		x[i] += a;
}
`

func addA(x []int32, a int32) {
	for i := range x {
		x[i] += a
	}
}

// playAdder adds to all of "x" as often as it is told, with a kernel.
func playAdder(p *part) {
	dev := p.device(host.Config{Devices: 1, Memory: 256 * mib})
	v, err := Attach(context.Background(), p.args[0], "x", dev, AttachOptions{Write: true})
	p.must(err)
	// A reader of elements is an argument that is only read; the view itself can be written.
	x, err := growable.NewReader[int32](v)
	p.must(err)
	m, err := kernel.Load(dev, kernel.Code{CUDA: addCUDA, Host: kernel.Host{"add_a": addA}})
	p.must(err)
	f, err := m.Func("add_a")
	p.must(err)
	s, err := dev.NewStream()
	p.must(err)
	p.say("ready")
	for {
		verb, n := p.next()
		switch verb {
		case "add":
			p.must(waitFor(v, n))
			p.must(f.Launch(s, kernel.Over(x.Len(), 256), kernel.Pointer(v), uint64(x.Len()), int32(3)))
			p.must(s.Sync())
			p.say("added", x.Len())
		case "close":
			p.must(s.Close())
			p.must(m.Close())
			p.must(v.Close())
			p.must(dev.Close())
			p.say("closed")
			return
		}
	}
}

// TestKernelOnSharedMemory: a kernel that another process compiles at run time adds to what
// this one publishes, before and after it has grown.
func TestKernelOnSharedMemory(t *testing.T) {
	dev := crashDevice(t)
	v, err := growable.New[int32](dev, growable.Options{Range: vmm.RangeOptions{Share: vmm.ShareFD, Chunk: crashChunk, Max: crashMax}})
	require.NoError(t, err)
	s, err := Listen(dev, socketAt(t), Options{})
	require.NoError(t, err)
	layout, err := growable.LayoutOf[int32]()
	require.NoError(t, err)
	p, err := s.Publish("x", v.Range(), PublishOptions{Write: true, Layout: layout})
	require.NoError(t, err)
	require.NoError(t, v.Append(5, 8, 11))
	c := spawn(t, "adder", s.Path())
	c.expect("ready")
	c.tell("add", v.Range().Len())
	require.Equal(t, "3", c.expect("added"))
	got := make([]int32, 3)
	_, err = v.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, []int32{8, 11, 14}, got)

	require.NoError(t, v.Append(make([]int32, 1<<20)...)) // several chunks
	c.tell("add", v.Range().Len())
	require.EqualValues(t, v.Len(), c.count("added"))
	last, err := v.At(v.Len() - 1)
	require.NoError(t, err)
	require.EqualValues(t, 3, last)
	first, err := v.At(0)
	require.NoError(t, err)
	require.EqualValues(t, 11, first)
	c.tell("close")
	c.expect("closed")
	require.NoError(t, s.Close())
	require.NoError(t, p.Close())
	require.NoError(t, v.Close())
}
