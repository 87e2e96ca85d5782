package memmap_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/cuvmm/cuvmm/vmm"
	"github.com/cuvmm/cuvmm/vmm/driver/host"
	"github.com/cuvmm/cuvmm/vmm/memmap"
	"github.com/cuvmm/cuvmm/vmm/pool"
)

const mib = 1 << 20

// TestMain checks that no goroutine is left.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// device is host memory of 256 MiB.
func device(t testing.TB) *vmm.Device {
	t.Helper()
	d, err := vmm.OpenDriver(host.New(host.Config{Memory: 256 * mib}), 0)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// rangeOf is a range of so many bytes, of which used are below Len.
func rangeOf(t testing.TB, d *vmm.Device, size, used uint64) *vmm.Range {
	t.Helper()
	return namedRange(t, d, "", size, used)
}

func namedRange(t testing.TB, d *vmm.Device, name string, size, used uint64) *vmm.Range {
	t.Helper()
	g, err := d.NewRange(vmm.RangeOptions{Name: name, Max: 64 * mib, Chunk: 2 * mib})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, g.Close()) })
	require.NoError(t, g.Grow(size))
	require.NoError(t, g.SetLen(used))
	return g
}

// poolOf is a pool with a block of a mebibyte and a short one, in use, and two that were freed.
func poolOf(t testing.TB, d *vmm.Device) *pool.Pool {
	t.Helper()
	p, err := pool.New(d, pool.Options{ChunkSize: 2 * mib, Max: 32 * mib})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	s, err := d.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	var blocks []pool.Block
	for _, n := range []uint64{mib, 1000, mib, 1000} {
		b, err := p.Alloc(s, n)
		require.NoError(t, err)
		blocks = append(blocks, b)
	}
	t.Cleanup(func() {
		require.NoError(t, p.FreeNow(blocks[0]))
		require.NoError(t, p.FreeNow(blocks[1]))
	})
	require.NoError(t, p.Free(s, blocks[2]))
	require.NoError(t, p.Free(s, blocks[3]))
	return p
}

func pools(all map[string]*pool.Pool) func() map[string]*pool.Pool {
	return func() map[string]*pool.Pool { return all }
}

// get is what a map serves at a path.
func get(t testing.TB, m *memmap.Map, path string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, path, nil))
	return w
}

// message is one event of the stream.
type message struct{ kind, data string }

// next reads one event; false at the end.
func next(r *bufio.Scanner) (m message, ok bool) {
	for r.Scan() {
		switch line := r.Text(); {
		case line == "":
			if m.kind != "" {
				return m, true
			}
		case strings.HasPrefix(line, "event: "):
			m.kind = line[len("event: "):]
		case strings.HasPrefix(line, "data: "):
			m.data = line[len("data: "):]
		}
	}
	return m, false
}

func scanner(t *testing.T, r *http.Response) *bufio.Scanner {
	t.Helper()
	s := bufio.NewScanner(r.Body)
	s.Buffer(nil, 64*mib)
	return s
}

// schema compiles the part of the schema that ref names. No object may have a field that it does
// not describe; the published one allows them, because a newer map may have some.
func schema(t *testing.T, ref string) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(get(t, memmap.New(memmap.Options{}), "/schema.json").Body.Bytes()))
	require.NoError(t, err)
	delete(doc.(map[string]any), "$id") // it would be the base of references
	forbidUnknown(doc)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("schema.json", doc))
	s, err := c.Compile("schema.json" + ref)
	require.NoError(t, err)
	return s
}

func forbidUnknown(schema any) {
	switch x := schema.(type) {
	case map[string]any:
		if x["properties"] != nil && x["type"] != nil {
			x["additionalProperties"] = false
		}
		for _, part := range x {
			forbidUnknown(part)
		}
	case []any:
		for _, part := range x {
			forbidUnknown(part)
		}
	}
}

func conforms(t *testing.T, s *jsonschema.Schema, text []byte) error {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	return s.Validate(doc)
}

func asJSON(t *testing.T, x any) []byte {
	t.Helper()
	b, err := json.Marshal(x)
	require.NoError(t, err)
	return b
}
