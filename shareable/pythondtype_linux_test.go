package shareable

import (
	"encoding/hex"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/growable"
	"github.com/cuvmm/cuvmm/internal/testing/testgate"
	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/vmmtest"
)

// sample is a struct whose fields a reader in another language gets by name.
type sample struct {
	ID    int64
	At    struct{ X, Y float32 }
	Grid  [2][3]uint16
	Good  bool
	Parts [2]struct{ A int8 }
}

// TestLayoutDescribesStructs: the View has the fields that the owner's Layout has.
func TestLayoutDescribesStructs(t *testing.T) {
	t.Parallel()
	layout, err := growable.LayoutOf[sample](4)
	require.NoError(t, err)
	s, _, g := stage(t, Options{}, PublishOptions{Layout: layout})
	v := attached(t, s, AttachOptions{})
	require.NoError(t, v.Layout().Check(layout))
	fields, err := v.Layout().Fields()
	require.NoError(t, err)
	require.Len(t, fields, 7)
	require.Equal(t, vmm.Field{Name: "Grid", Kind: vmm.ElemUint, Bits: 16, Shape: []int{2, 3}, Offset: 16}, fields[3])
	_, err = growable.NewRowsReader[sample](v, 0)
	require.NoError(t, err)
	type other struct {
		_ [0]int8
		sample
	}
	_, err = growable.NewRowsReader[other](v, 0)
	require.ErrorContains(t, err, `field "ID" as <i8 at 0, not field "sample.ID" as <i8 at 0`)

	layout.Dtype = `{"names":["ID"],"formats":["<i8"],"offsets":[0],"itemsize":8}`
	_, err = s.Publish("wrong", g, PublishOptions{Layout: layout})
	require.ErrorContains(t, err, "1 offsets, of 8 bytes, for an element of 32")
}

// TestPythonReadsFields: NumPy has the fields by their names, and refuses what is no dtype.
func TestPythonReadsFields(t *testing.T) {
	t.Parallel()
	python(t, "import numpy")
	dev := vmmtest.Device(t)
	rows, err := growable.NewRows[sample](dev, 2, growable.RowsOptions{MaxRows: 100, Pitch: 128, Range: vmm.RangeOptions{Share: vmm.ShareFD}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rows.Close()) })
	for i := range int64(3) {
		x := sample{ID: i, Good: i == 1}
		x.At.Y, x.Grid[1][2], x.Parts[1].A = float32(i)/2, uint16(7*i), int8(-i)
		require.NoError(t, rows.Append(x, sample{ID: 100 + i}))
	}
	s, err := Listen(dev, socketAt(t), Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	for name, layout := range map[string]vmm.Layout{
		"fields": rows.Layout(), "bytes": {Bits: 8, Size: 48, Pitch: 128}, "numbers": {Kind: vmm.ElemInt, Bits: 64, Size: 8, Pitch: 64},
	} {
		_, err := s.Publish(name, rows.Range(), PublishOptions{Layout: layout})
		require.NoError(t, err)
	}
	const script = `
import json, sys
sys.path.insert(0, "../examples/python")
import cuvmm_reader as c
with c.Reader(sys.argv[1], "fields") as r:
    assert r.wait(3 * 128, 60)
    a = r.array()
    assert a.dtype == r.dtype() and a.shape == (3, 2), (a.dtype, a.shape)
    print(a.dtype.names, a.dtype.itemsize)
    print(a["ID"].tolist(), a["At.Y"][:, 0].tolist(), a["Grid"][2, 0].tolist(), a["Good"][:, 0].tolist(), a["Parts[1].A"][:, 0].tolist())
    good = json.loads(r.fields)
    wrong = [b"{", b"\xff", b"[]", b"{}", b"[" * 4000]
    for key, value in ("itemsize", 47), ("itemsize", 4800), ("offsets", [0]), ("names", ["ID"] * 7), ("formats", ["O"] * 7), ("formats", ["<i8,<i8"] * 7), ("formats", 3):
        wrong.append(json.dumps({**good, key: value}).encode())
    for r.fields in wrong:
        try:
            print("taken", r.fields, r.dtype())
        except c.ProtocolError:
            pass
with c.Reader(sys.argv[1], "bytes") as r:
    assert r.wait(3 * 128, 60)
    print(r.dtype(), r.array().shape)
with c.Reader(sys.argv[1], "numbers") as r:
    print(r.dtype())
`
	cmd := exec.CommandContext(t.Context(), "python3", "-B", "-c", script, s.Path())
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, []string{
		"('ID', 'At.X', 'At.Y', 'Grid', 'Good', 'Parts[0].A', 'Parts[1].A') 32",
		"[[0, 100], [1, 101], [2, 102]] [0.0, 0.5, 1.0] [[0, 0, 0], [0, 0, 14]] [False, True, False] [0, -1, -2]",
		"|V48 (3, 48)", "int64", "",
	}, strings.Split(string(out), "\n"))
}

// TestPythonRefusesADtypeOfNumbers: fields are those of opaque elements.
func TestPythonRefusesADtypeOfNumbers(t *testing.T) {
	testgate.Long(t)
	t.Parallel()
	python(t, "")
	o := wire.Object{ID: 9, Max: 1 << 20, State: wire.StateLive, Access: wire.AccessRead, Name: "n", Elem: wire.Elem{Kind: wire.KindInt, Bits: 32, Size: 4, Dtype: "{}"}}
	const script = `
import sys
sys.path.insert(0, "../examples/python")
import cuvmm_reader as c
try:
    r = c.Reader.__new__(c.Reader)
    r._object(c.Payload(bytes.fromhex(sys.argv[1])), bytes(16), b"n")
except c.ProtocolError as e:
    print(e)
`
	out, err := exec.CommandContext(t.Context(), "python3", "-BS", "-c", script, hex.EncodeToString(o.Append(nil))).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Equal(t, "a dtype of elements that are numbers\n", string(out))
}
