package ipc_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/ipc"
	"github.com/cuvmm/cuvmm/vmm"
)

// raw is 64 bytes such as a driver makes.
func raw(first byte) (b [64]byte) {
	b[0], b[40] = first, 0xfe
	return b
}

func line(b [64]byte) string { return base64.StdEncoding.EncodeToString(b[:]) }

var fullHandle = ipc.Handle{
	Raw: raw(7), Kind: ipc.KindMemory, Size: 4096, UUID: [16]byte{1, 0xab},
	PID: 123, Start: 456, Boot: "b-1", PIDNamespace: 4026531836,
}

const fullText = `kind memory
size 4096
device 01ab0000000000000000000000000000
pid 123
start 456
boot b-1
pid-namespace 4026531836
end
`

func TestHandleText(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       ipc.Handle
	}{
		{"all fields", line(raw(7)) + "\n" + fullText, fullHandle},
		{"a line of base64", line(raw(7)) + "\n", ipc.Handle{Raw: raw(7)}},
		{"base64 without a line's end", line(raw(7)), ipc.Handle{Raw: raw(7)}},
		{"lines as Windows ends them", line(raw(7)) + "\r\nkind event\r\nend\r\n", ipc.Handle{Raw: raw(7), Kind: ipc.KindEvent}},
		{"bytes", string(make([]byte, 63)) + "\x01", ipc.Handle{Raw: [64]byte{63: 1}}},
		{"unknown lines", line(raw(1)) + "\nsince yesterday\nsize 8\nend\n\n# more\n", ipc.Handle{Raw: raw(1), Size: 8}},
		{"unknown lines alone", line(raw(1)) + "\nsince yesterday\n", ipc.Handle{Raw: raw(1)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var h ipc.Handle
			require.NoError(t, h.UnmarshalText([]byte(c.text)))
			require.Equal(t, c.want, h)
			text, err := h.MarshalText()
			require.NoError(t, err)
			first, _, _ := strings.Cut(string(text), "\n")
			require.Equal(t, line(h.Raw), first)
			var again ipc.Handle
			require.NoError(t, again.UnmarshalText(text))
			require.Equal(t, h, again)
		})
	}
	text, err := fullHandle.MarshalText()
	require.NoError(t, err)
	require.Equal(t, line(raw(7))+"\n"+fullText, string(text))
}

var badTexts = map[string]string{
	"empty":                  "",
	"a line's end":           "\n",
	"no base64":              "not a handle\n",
	"base64 of 63 bytes":     base64.StdEncoding.EncodeToString(make([]byte, 63)) + "\n",
	"base64 of 65 bytes":     base64.StdEncoding.EncodeToString(make([]byte, 65)) + "\n",
	"63 bytes":               string(make([]byte, 63)),
	"65 bytes":               string(make([]byte, 65)),
	"base64 cut at 64 bytes": line(raw(7))[:64],
	"a space before":         " " + line(raw(7)),
	"two on a line":          line(raw(7)) + line(raw(7)),
	"cut off in a field":     line(raw(7)) + "\nkind memory\nsize 40",
	"cut off after a field":  line(raw(7)) + "\nkind memory\nsize 4096\n",
	"a size that is none":    line(raw(7)) + "\nsize many\nend\n",
	"a size too large":       line(raw(7)) + "\nsize 99999999999999999999\nend\n",
	"a negative size":        line(raw(7)) + "\nsize -1\nend\n",
	"a field twice":          line(raw(7)) + "\nsize 1\nsize 1\nend\n",
	"an unknown kind":        line(raw(7)) + "\nkind stream\nend\n",
	"a kind that is empty":   line(raw(7)) + "\nkind\nend\n",
	"a short device":         line(raw(7)) + "\ndevice 01\nend\n",
	"a device of no digits":  line(raw(7)) + "\ndevice zz\nend\n",
	"a process too large":    line(raw(7)) + "\npid 4294967295\nend\n",
	"too long":               line(raw(7)) + "\n" + strings.Repeat("x\n", 4096),
}

func TestHandleTextRefuses(t *testing.T) {
	for name, text := range badTexts {
		t.Run(name, func(t *testing.T) {
			h := fullHandle
			err := h.UnmarshalText([]byte(text))
			require.ErrorIs(t, err, ipc.ErrHandle)
			require.ErrorIs(t, err, vmm.ErrInvalid)
			require.Equal(t, fullHandle, h)
		})
	}
	text := []byte(line(raw(7)) + "\n" + fullText)
	for n := range len(text) - 1 { // the last is a line's end
		var h ipc.Handle
		if err := h.UnmarshalText(text[:n]); err == nil {
			// What is left without a known line is what other programs write.
			require.Equal(t, ipc.Handle{Raw: raw(7)}, h, "%q", text[:n])
			require.NotContains(t, string(text[:n]), "memory\n")
		}
	}
	for _, h := range []ipc.Handle{{Kind: 9}, {PID: -1}, {PID: 1 << 31}, {Boot: "a\nsize 5"}, {Boot: "a\r"}} {
		_, err := h.MarshalText()
		require.ErrorIs(t, err, ipc.ErrHandle, "%+v", h)
	}
	require.ErrorIs(t, (*ipc.Handle)(nil).UnmarshalText(text), ipc.ErrHandle)
}

func FuzzHandleText(f *testing.F) {
	f.Add([]byte(line(raw(7)) + "\n" + fullText))
	for _, text := range badTexts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var h ipc.Handle
		if err := h.UnmarshalText(text); err != nil {
			require.ErrorIs(t, err, ipc.ErrHandle)
			return
		}
		again, err := h.MarshalText()
		require.NoError(t, err)
		var same ipc.Handle
		require.NoError(t, same.UnmarshalText(again))
		require.Equal(t, h, same)
	})
}

func TestTokenText(t *testing.T) {
	want := ipc.Token{Raw: raw(3), Size: 100}
	text, err := want.MarshalText()
	require.NoError(t, err)
	require.Equal(t, line(raw(3))+"\nkind block\nsize 100\nend\n", string(text))
	var got ipc.Token
	require.NoError(t, got.UnmarshalText(text))
	require.Equal(t, want, got)
	require.NoError(t, got.UnmarshalText([]byte(line(raw(4)))))
	require.Equal(t, ipc.Token{Raw: raw(4)}, got)

	require.ErrorIs(t, got.UnmarshalText([]byte(line(raw(7))+"\n"+fullText)), ipc.ErrHandle, "a handle of memory")
	var h ipc.Handle
	require.ErrorIs(t, h.UnmarshalText(text), ipc.ErrHandle, "a token")
	require.ErrorIs(t, got.UnmarshalText(nil), ipc.ErrHandle)
	require.ErrorIs(t, (*ipc.Token)(nil).UnmarshalText(text), ipc.ErrHandle)
	require.Equal(t, ipc.Token{Raw: raw(4)}, got)
}

func TestHandleFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "handle")
	_, err := ipc.ReadFile(path)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, ipc.WriteFile(path, fullHandle))
	h, err := ipc.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, fullHandle, h)
	st, err := os.Stat(path)
	require.NoError(t, err)
	require.Zero(t, st.Mode().Perm()&0o077)

	require.NoError(t, ipc.WriteFile(path, ipc.Handle{Raw: raw(9)}), "in its place")
	h, err = ipc.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, ipc.Handle{Raw: raw(9)}, h)
	require.ErrorIs(t, ipc.WriteFile(path, ipc.Handle{Kind: 9}), ipc.ErrHandle)
	require.Error(t, ipc.WriteFile(filepath.Join(path, "none"), fullHandle))
	all, err := os.ReadDir(filepath.Dir(path))
	require.NoError(t, err)
	require.Len(t, all, 1, "nothing beside it stays")

	_, err = ipc.ReadFile(os.DevNull)
	require.ErrorIs(t, err, ipc.ErrHandle)
	if _, err := os.Stat("/dev/zero"); err == nil {
		_, err = ipc.ReadFile("/dev/zero")
		require.ErrorIs(t, err, ipc.ErrHandle)
	}
}
