package shareable

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
)

// renamed is a driver whose devices have other UUIDs.
type renamed struct {
	*host.Driver
	uuid [16]byte
}

func (d renamed) Devices() ([]driver.Info, error) {
	all, err := d.Driver.Devices()
	for i := range all {
		all[i].UUID = d.uuid
	}
	return all, err
}

// TestUUIDIsNoReasonToRefuse: a process can use memory of a device that it does
// not see, so neither end asks that both UUIDs be the same.
func TestUUIDIsNoReasonToRefuse(t *testing.T) {
	t.Parallel()
	device := func(uuid byte) *vmm.Device {
		d, err := vmm.OpenDriver(renamed{host.New(host.Config{}), [16]byte{uuid}}, 0)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		return d
	}
	for name, c := range map[string]struct{ owner, reader byte }{
		"another device":       {1, 2},
		"an owner without one": {0, 2},
		"a reader without one": {1, 0},
		"the same one":         {3, 3},
		"both are without one": {0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			mine, theirs := device(c.owner), device(c.reader)
			g, err := mine.NewRange(vmm.RangeOptions{Share: vmm.ShareFD, Max: 64 << 20, Chunk: 2 << 20})
			require.NoError(t, err)
			require.NoError(t, g.Append(pattern(0, 100)))
			s, err := Listen(mine, filepath.Join(t.TempDir(), "s"), Options{})
			require.NoError(t, err)
			require.Equal(t, c.owner, s.hello.UUID[0])
			p, err := s.Publish("x", g, PublishOptions{})
			require.NoError(t, err)
			require.NoError(t, p.Flush(t.Context()))

			v, err := Attach(t.Context(), s.Path(), "x", theirs, AttachOptions{})
			require.NoError(t, err)
			require.NoError(t, v.Wait(t.Context(), 100))
			got := make([]byte, 100)
			_, err = v.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, pattern(0, 100), got)
			require.NoError(t, v.Close())
			require.NoError(t, s.Close())
			require.NoError(t, p.Close())
			require.NoError(t, g.Close())
		})
	}
}

// TestAReaderThatCannotSeeTheDevice whose memory it reads: it has it mapped for the
// one that it does see.
func TestAReaderThatCannotSeeTheDevice(t *testing.T) {
	d, err := vmm.Open("cuda:1")
	testgate.Require(t, "p2p", err)
	require.NoError(t, d.Close())
	path := socketAt(t)
	owner := spawnWith(t, []string{"CUDA_VISIBLE_DEVICES=0"}, "owner", path)
	owner.expect("ready")
	n := grownBy(t, owner, 7*mib)
	other := spawnWith(t, []string{"CUDA_VISIBLE_DEVICES=1"}, "reader", path)
	other.expect("ready")
	other.tell("attach")
	require.Equal(t, "ok", other.expect("attached"))
	reads(t, other, n)
	n = grownBy(t, owner, 4*mib)
	reads(t, other, n)
}
