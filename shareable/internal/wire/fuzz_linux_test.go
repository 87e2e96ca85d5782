package wire

import (
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// FuzzControl takes control messages apart without closing anything, and reads
// a packet that came with real fds. None is lost in either.
func FuzzControl(f *testing.F) {
	hello := packet(TypeHello, 0, 1, kinds[0].full.Append(nil))
	chunks := packet(TypeChunks, 2, 1, Chunks{Records: make([]Chunk, 2)}.Append(nil))
	three := rights([]int{100, 200, 300})
	other := slices.Clone(three)
	other[12] = unix.SCM_CREDENTIALS
	f.Add([]byte{}, hello, uint8(0))
	f.Add(three, hello, uint8(1))
	f.Add(append(three, three...), chunks, uint8(2))
	f.Add(append(three, other...), chunks, uint8(253))
	f.Add(append(other, three...), []byte{}, uint8(5))
	f.Add(three[:len(three)-3], chunks[:20], uint8(2))
	f.Add(rights(nil), packet(500, 3, 1, nil), uint8(3))

	null, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(f, err)
	f.Cleanup(func() { _ = unix.Close(null) })
	f.Fuzz(func(t *testing.T, control, bytes []byte, count uint8) {
		all, err := receive(control, 0)
		if err != nil {
			require.ErrorAs(t, err, new(*ProtocolError))
		}
		fds, err := receive(control, unix.MSG_CTRUNC)
		require.Error(t, err)
		require.Equal(t, some(all), some(fds))
		for _, fd := range all {
			require.GreaterOrEqual(t, fd, 0)
		}

		before := openFDs(t)
		throughSocket(t, bytes, slices.Repeat([]int{null}, min(int(count), 253)))
		require.Equal(t, before, openFDs(t))
	})
}

// throughSocket sends bytes with fds and reads until the end.
func throughSocket(t *testing.T, bytes []byte, fds []int) {
	t.Helper()
	a, raw := sockets(t, unix.SOCK_SEQPACKET)
	c := conn(t, a)
	defer c.Close()
	defer c.Release()
	err := sendRaw(t, raw, bytes[:min(len(bytes), MaxFrame+1)], control(fds))
	require.NoError(t, unix.Close(raw))
	require.NoError(t, err)
	for err == nil {
		var f Frame
		f, err = c.Read()
		if err != nil {
			require.Empty(t, f.FDs)
			continue
		}
		require.Len(t, f.FDs, len(fds))
		require.Len(t, f.Payload, int(f.Len))
		for _, fd := range f.FDs {
			require.GreaterOrEqual(t, fd.Int(), 0)
		}
		require.NoError(t, f.Close())
	}
}

func control(fds []int) []byte {
	if len(fds) == 0 {
		return nil
	}
	return rights(fds)
}
