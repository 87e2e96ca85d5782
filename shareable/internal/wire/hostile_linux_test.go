package wire

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// packet is a frame with the number sequence, which announces fds.
func packet(of Type, fds uint16, sequence uint64, body []byte) []byte {
	h := Header{Major: Major, Type: of, FDs: fds, Len: uint32(len(body)), Sequence: sequence}
	return append(h.Append(nil), body...)
}

// Each packet ends the connection, and none of its fds stays open.
func TestConnRefuses(t *testing.T) {
	var (
		list    = packet(TypeList, 0, 1, List{}.Append(nil))
		chunks  = packet(TypeChunks, 2, 1, Chunks{Records: make([]Chunk, 2)}.Append(nil))
		full    = packet(TypeChunks, 64, 1, Chunks{Records: make([]Chunk, 64)}.Append(nil))
		longest = packet(TypeClosing, 0, 1, make([]byte, MaxPayload))
	)
	for _, test := range []struct {
		name   string
		packet []byte
		fds    int
		want   string
	}{
		{"an empty packet with an fd", nil, 1, "fds in an empty packet"},
		{"an empty packet with 253 fds", nil, 253, "fds in an empty packet"},
		{"a byte", list[:1], 0, "frame of 1 bytes"},
		{"a byte with fds", list[:1], 3, "frame of 1 bytes"},
		{"half a header", list[:16], 3, "frame of 16 bytes"},
		{"half a payload", list[:36], 0, "LIST with 4 bytes of payload instead of 8"},
		{"another magic", with[uint32](chunks, 0, 1), 2, "frame begins with 0x1"},
		{"version 2", with[uint8](chunks, 4, 2), 2, "peer speaks version 2.0"},
		{"an unknown type", with[uint16](list, 6, 1000), 2, "unknown type 1000"},
		{"an fd on a LIST", list, 1, "LIST with 1 fds instead of 0"},
		{"253 fds on a LIST", list, 253, "LIST with 253 fds instead of 0"},
		{"no fds on a CHUNKS", chunks, 0, "CHUNKS with 0 fds instead of 2"},
		{"an fd too few", chunks, 1, "CHUNKS with 1 fds instead of 2"},
		{"an fd too many", chunks, 3, "CHUNKS with 3 fds instead of 2"},
		{"253 fds on a CHUNKS of 64", full, 253, "CHUNKS with 253 fds instead of 64"},
		{"253 fds announced", with[uint16](full, 12, 253), 253, "CHUNKS with 253 fds, over 64"},
		{"a byte over 64 KiB", append(longest, 0), 2, "frame of more than 65536 bytes"},
		{"128 KiB", append(longest, longest...), 0, "frame of more than 65536 bytes"},
		{"the second number", with[uint64](list, 24, 2), 0, "LIST with sequence number 2 after 0"},
		{"no number", with[uint64](chunks, 24, 0), 2, "CHUNKS with sequence number 0 after 0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, raw := pair(t)
			fds := null(t, test.fds)
			_, _ = c.Queued()
			before := openFDs(t)
			require.NoError(t, sendRaw(t, raw, test.packet, rights(fds)))
			f, err := c.Read()
			require.ErrorAs(t, err, new(*ProtocolError))
			require.ErrorContains(t, err, test.want)
			require.Empty(t, f.FDs)
			c.Release()
			require.Equal(t, before, openFDs(t))
		})
	}
}

// The kernel sends no more than 253 fds; one message of 253 is the most that
// arrives, also where it was sent as several.
func TestMostFDs(t *testing.T) {
	c, raw := pair(t)
	fds := null(t, 254)
	before := openFDs(t)
	require.ErrorIs(t, sendRaw(t, raw, []byte("x"), rights(fds)), unix.EINVAL)
	require.ErrorIs(t, sendRaw(t, raw, []byte("x"), append(rights(fds[:127]), rights(fds[127:])...)), unix.EINVAL)

	require.NoError(t, sendRaw(t, raw, packet(TypeDone, 0, 1, nil), append(rights(fds[:127]), rights(fds[127:253])...)))
	_, err := c.Read()
	require.ErrorContains(t, err, "DONE with 253 fds instead of 0")
	c.Release()
	require.Equal(t, before, openFDs(t))
}

// An empty packet without fds is taken for the end, and with fds it is not.
func TestEmptyPacket(t *testing.T) {
	c, raw := pair(t)
	require.NoError(t, sendRaw(t, raw, nil, nil))
	_, err := c.Read()
	require.ErrorIs(t, err, io.EOF)
	require.NoError(t, sendRaw(t, raw, nil, rights(null(t, 1))))
	_, err = c.Read()
	require.NotErrorIs(t, err, io.EOF)
	c.Release()
}

// Whoever passes a socket on may have asked the kernel for more than fds.
func TestOtherControlMessages(t *testing.T) {
	for name, option := range map[string]int{"credentials": unix.SO_PASSCRED, "pidfd": unix.SO_PASSPIDFD} {
		t.Run(name, func(t *testing.T) {
			c, raw := pair(t)
			fds := null(t, 2)
			_, err := withFD(c.c, func(fd int) (int, error) {
				return 0, unix.SetsockoptInt(fd, unix.SOL_SOCKET, option, 1)
			})
			if errors.Is(err, unix.ENOPROTOOPT) {
				t.Skip("needs a newer kernel")
			}
			require.NoError(t, err)
			before := openFDs(t)
			require.NoError(t, sendRaw(t, raw, packet(TypeChunks, 2, 1, Chunks{Records: make([]Chunk, 2)}.Append(nil)), rights(fds)))
			_, err = c.Read()
			require.ErrorAs(t, err, new(*ProtocolError))
			require.ErrorContains(t, err, "control message of level 1")
			c.Release()
			require.Equal(t, before, openFDs(t))
		})
	}
}

// childEnv makes TestTruncated the child process that lowers its own limit.
const childEnv = "WIRE_TEST_TRUNCATED"

func TestTruncated(t *testing.T) {
	if os.Getenv(childEnv) == "" {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTruncated$", "-test.v")
		cmd.Env = append(os.Environ(), childEnv+"=1")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "the child was here")
		return
	}
	a, b := conns(t)
	fds := null(t, 10)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}))
	var fill []int
	for {
		fd, err := unix.FcntlInt(uintptr(fds[0]), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			require.ErrorIs(t, err, unix.EMFILE)
			break
		}
		fill = append(fill, fd)
	}
	for _, fd := range fill[:3] {
		require.NoError(t, unix.Close(fd))
	}
	before := openFDs(t)
	ten := Chunks{Object: 7, Records: make([]Chunk, 10)}
	require.NoError(t, a.Write(TypeChunks, 0, 0, ten.Append(nil), fds...))
	f, err := b.Read()
	require.ErrorIs(t, err, ErrTruncated)
	require.False(t, errors.As(err, new(*ProtocolError)))
	require.Empty(t, f.FDs)
	got, err := DecodeChunks(f.Payload)
	require.NoError(t, err)
	require.Equal(t, ten, got)
	b.Release()
	require.Equal(t, before, openFDs(t))

	// What is wrong with such a frame otherwise is more important.
	c, raw := a, -1
	_, err = withFD(b.c, func(fd int) (int, error) { raw = fd; return 0, nil })
	require.NoError(t, err)
	require.NoError(t, sendRaw(t, raw, []byte("no frame"), rights(fds)))
	_, err = c.Read()
	require.ErrorAs(t, err, new(*ProtocolError))
	c.Release()
	require.Equal(t, before, openFDs(t))
	require.NoError(t, sendRaw(t, raw, nil, rights(fds)))
	_, err = c.Read()
	require.ErrorContains(t, err, "fds in an empty packet")
	c.Release()
	require.Equal(t, before, openFDs(t))

	// A smaller batch comes through on the same connection, and what is skipped
	// needs no room.
	require.NoError(t, a.Write(200, 0, FlagOptional, nil, fds...))
	require.NoError(t, a.Write(TypeChunks, 0, 0, Chunks{Records: make([]Chunk, 3)}.Append(nil), fds[:3]...))
	f, err = b.Read()
	require.NoError(t, err)
	require.Len(t, f.FDs, 3)
	require.NoError(t, f.Close())
	require.Equal(t, before, openFDs(t))
	for _, fd := range fill[3:] {
		require.NoError(t, unix.Close(fd))
	}
	t.Log("the child was here")
}
