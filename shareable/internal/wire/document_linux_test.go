package wire

import (
	"encoding/hex"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// bytesOf reads the hex of one block of the document: pairs of digits left of a
// bar, "x4" for four of the last pair.
func bytesOf(t *testing.T, block string) []byte {
	t.Helper()
	var b []byte
	for line := range strings.Lines(block) {
		digits, _, found := strings.Cut(line, "|")
		require.True(t, found, line)
		for _, field := range strings.Fields(digits) {
			if times, found := strings.CutPrefix(field, "x"); found {
				n, err := strconv.Atoi(times)
				require.NoError(t, err, line)
				require.NotEmpty(t, b, line)
				for range n - 1 {
					b = append(b, b[len(b)-1])
				}
				continue
			}
			one, err := hex.DecodeString(field)
			require.NoError(t, err, line)
			require.Len(t, one, 1, line)
			b = append(b, one[0])
		}
	}
	return b
}

// What docs/reference/protocol.md shows is what is sent.
func TestProtocolDocument(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/protocol.md")
	require.NoError(t, err)

	var id [16]byte
	for i := range id {
		id[i] = byte(0x10 + i)
	}
	type said struct {
		by      string
		t       Type
		request uint32
		payload []byte
		fds     int
	}
	conversation := []said{
		{"owner", TypeHello, 0, Hello{Instance: id, Backend: BackendHost, PID: 0x1001, Granularity: 4096}.Append(nil), 0},
		{"reader", TypeHello, 0, Hello{Backend: BackendHost, PID: 0x2002, Granularity: 4096}.Append(nil), 0},
		{"reader", TypeAttach, 1, Attach{Access: AccessRead, Name: "emb"}.Append(nil), 0},
		{"owner", TypeObject, 1, Object{
			ID: 5, Max: 1 << 20, Generation: 2, Length: 24, Queued: 36, Capacity: 8192, State: StateLive, Access: AccessRead,
			Elem: Elem{Kind: KindFloat, Bits: 32, Size: 4}, Shape: []uint64{3}, Pitch: 12, Instance: id, Name: "emb",
		}.Append(nil), 2},
		{"owner", TypeChunks, 0, Chunks{Object: 5, Generation: 2, Records: []Chunk{{7, 0, 4096}, {8, 4096, 4096}}}.Append(nil), 2},
		{"reader", TypeAck, 0, Ack{Object: 5, Chunk: 8, Generation: 2}.Append(nil), 0},
		{"owner", TypeRetire, 0, Retire{Object: 5, Generation: 3, Capacity: 4096}.Append(nil), 0},
		{"reader", TypeAck, 0, Ack{Object: 5, Chunk: 8, Generation: 3}.Append(nil), 0},
		{"owner", TypeSealed, 0, Sealed{Object: 5, Length: 24}.Append(nil), 0},
		{"owner", TypeDeleted, 0, Deleted{Object: 5}.Append(nil), 0},
	}
	blocks := strings.Split(string(text), "```hex ")[1:]
	require.Len(t, blocks, len(conversation))
	owner, toReader := pair(t)
	reader, toOwner := pair(t)
	for i, s := range conversation {
		head, block, _ := strings.Cut(blocks[i], "\n")
		block, _, _ = strings.Cut(block, "```")
		require.Equal(t, fmt.Sprintf("%s %v", s.by, s.t), head)

		c, raw := owner, toReader
		if s.by == "reader" {
			c, raw = reader, toOwner
		}
		require.NoError(t, c.Write(s.t, s.request, 0, s.payload, null(t, s.fds)...))
		packet := make([]byte, MaxFrame)
		n, err := unix.Read(raw, packet) // the descriptors are dropped
		require.NoError(t, err)
		require.Equal(t, hex.Dump(packet[:n]), hex.Dump(bytesOf(t, block)), head)
	}

	for n := range 1000 {
		row := fmt.Sprintf("\n| %d | %v |", n, Type(n))
		require.Equal(t, Type(n).name() != "", strings.Contains(string(text), row), row)
	}
}
