package shareable

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// TestViewOnDrivers is the life of a view on whatever there is: memory exported
// and imported, streams that wait, memory taken back, the owner gone.
func TestViewOnDrivers(t *testing.T) {
	for _, d := range vmmtest.Drivers() {
		t.Run(d.Name, func(t *testing.T) {
			const gran = 2 << 20
			dev := d.Device(t)
			s, far := newScriptedOwnerOn(t, dev, 4, gran, vmm.ShareFD)
			v := viewedOn(t, s, far, AttachOptions{}, dev)
			stream, err := dev.NewStream()
			require.NoError(t, err)
			out, err := dev.Alloc(1)
			require.NoError(t, err)
			for _, n := range []uint64{1, 2} {
				s.grow(1)
				s.chunks(int(n)-1, 1)
				s.ack()
				require.NoError(t, v.WaitOn(stream, n*gran))
				require.NoError(t, stream.Copy(out.Ptr(), v.Ptr()+vmm.Ptr((n-1)*gran), 1))
				s.done(n * gran)
				require.NoError(t, stream.Sync())
				require.Equal(t, byte(n), firstByte(t, out))
			}
			p := make([]byte, 2*gran)
			_, err = v.ReadAt(p, 0)
			require.NoError(t, err)
			require.Equal(t, []byte{1, 1, 2, 2}, []byte{p[0], p[gran-1], p[gran], p[2*gran-1]})
			// Whoever may only read cannot write here, and is not harmed by trying.
			require.Error(t, stream.Fill(v.Ptr(), 0, 1, 1))

			require.NoError(t, v.UsedBy(stream))
			s.generation(2)
			s.write(wire.TypeRetire, 0, wire.Retire{Object: 7, Generation: 2, Capacity: gran}.Append(nil))
			require.Equal(t, uint64(2), s.ack().Generation)
			s.done(gran)
			require.Equal(t, uint64(gran), v.Len())
			s.chunks(1, 1)
			s.ack()
			require.NoError(t, v.WaitOn(stream, 2*gran))
			require.NoError(t, s.c.Close())
			require.NoError(t, stream.Sync())
			require.ErrorIs(t, v.Err(), ErrOwnerGone)
			require.NoError(t, v.Close())
			require.NoError(t, stream.Close())
			require.NoError(t, out.Close())
		})
	}
}

func firstByte(t *testing.T, g *vmm.Range) byte {
	t.Helper()
	var b [1]byte
	_, err := g.ReadAt(b[:], 0)
	require.NoError(t, err)
	return b[0]
}

// TestFalseChunksOnDrivers: what is not memory that was exported is refused by a
// typed error, leaves the device well and no descriptor open. Opening a device's
// node gives what an exported chunk looks like, and is none.
func TestFalseChunksOnDrivers(t *testing.T) {
	for _, d := range vmmtest.Drivers() {
		t.Run(d.Name, func(t *testing.T) {
			const gran = 2 << 20
			dev := d.Device(t)
			_, _, err := dev.MemInfo() // so that what a context keeps open is open
			require.NoError(t, err)
			for _, path := range []string{"/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/null", "/dev/zero", "unsealed", "empty"} {
				t.Run(path, func(t *testing.T) {
					before := openFDs(t)
					var fd int
					switch path {
					case "unsealed":
						fd = memfd(t, gran, 0)
					case "empty":
						fd = memfd(t, 0, allSeals)
					default:
						var err error
						if fd, err = unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0); err != nil {
							t.Skipf("there is no %s to open: %v", path, err)
						}
					}
					s, far := newScriptedOwnerOn(t, dev, 4, gran, vmm.ShareFD)
					v := viewedOn(t, s, far, AttachOptions{}, dev)
					s.send(wire.Chunks{Object: s.obj.ID, Generation: 1, Records: []wire.Chunk{{ID: 1, Size: gran}}}, []int{fd})
					s.done(gran)
					require.ErrorIs(t, ended(t, v), vmm.ErrInvalid)
					require.Zero(t, v.Cap())
					require.NoError(t, v.Close())
					require.NoError(t, s.c.Close())
					staysOpen(t, before+len(s.pages)+1) // the owner's own end of the wake socket
					sound, err := dev.Alloc(gran)
					require.NoError(t, err)
					require.Zero(t, firstByte(t, sound))
					require.NoError(t, sound.Close())
				})
			}
		})
	}
}
