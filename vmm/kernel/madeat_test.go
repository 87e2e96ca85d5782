package kernel_test

import (
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/kernel"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

// TestMadeAtNamesTheProgram: what packages of the library open in a device was made where the
// program has called them.
func TestMadeAtNamesTheProgram(t *testing.T) {
	_, here, _, _ := runtime.Caller(0)
	for name, makes := range map[string]func(d *vmm.Device) (io.Closer, error){
		"LoadBuiltins": func(d *vmm.Device) (io.Closer, error) { return kernel.LoadBuiltins(d) },
		"growable.New": func(d *vmm.Device) (io.Closer, error) { return growable.New[uint32](d, growable.Options{}) },
		"pool.New":     func(d *vmm.Device) (io.Closer, error) { return pool.New(d, pool.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			d := openToLose(t)
			made, err := makes(d)
			require.NoError(t, err)
			open := d.Report().Open
			require.NotEmpty(t, open)
			for _, o := range open {
				require.True(t, strings.HasPrefix(o.Made, here+":"), "%s made at %s", o.Kind, o.Made)
			}
			err = d.Close()
			require.ErrorIs(t, err, vmm.ErrBusy)
			require.Equal(t, len(open), strings.Count(err.Error(), " made at "+here+":"), err)
			require.NoError(t, made.Close())
			require.NoError(t, d.Close())
		})
	}
}
