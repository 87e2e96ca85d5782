package trace

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const card = 139 * gib

func TestGenerators(t *testing.T) {
	for _, g := range Generators {
		t.Run(g.Name, func(t *testing.T) {
			for _, peak := range []uint64{gib, card / 10 * 6} {
				tr := g.Make(7, peak)
				require.NoError(t, tr.Check())
				require.True(t, slices.Equal(tr.Ops, g.Make(7, peak).Ops), "the same seed makes another trace")
				require.False(t, slices.Equal(tr.Ops, g.Make(8, peak).Ops), "another seed makes the same trace")
				require.LessOrEqual(t, tr.Peak(), peak)
				require.Greater(t, tr.Peak(), peak/100*99)

				var least, most uint64 = MaxSize, 0
				syncs := 0
				for _, o := range tr.Ops {
					switch o.Kind {
					case Alloc:
						least, most = min(least, o.Size), max(most, o.Size)
					case Sync:
						syncs++
					}
				}
				t.Logf("peak %d: %d operations, %d syncs, %d streams, blocks of %d to %d bytes",
					tr.Peak(), len(tr.Ops), syncs, tr.Streams, least, most)
				require.Positive(t, syncs)
				require.Greater(t, tr.Streams, 2)
				require.LessOrEqual(t, len(tr.Ops), 400_000)
			}
		})
	}
}

// On a large card the sizes are those of real programs: scaling changes little.
func TestScaleIsSmall(t *testing.T) {
	for seed := range uint64(3) {
		for i, first := range []uint64{2 * vocab * hidden, 2 * 32000 * serveHidden} {
			tr := Generators[i].Make(seed, card/10*6)
			require.InDelta(t, 1, float64(tr.Ops[0].Size)/float64(first), 0.4, "%s, seed %d", tr.Name, seed)
		}
	}
}

func TestTextRoundTrip(t *testing.T) {
	for _, g := range Generators {
		want := g.Make(3, gib)
		var b bytes.Buffer
		require.NoError(t, want.Write(&b))
		got, err := Read(&b, g.Name)
		require.NoError(t, err)
		require.True(t, slices.Equal(want.Ops, got.Ops))
		require.Equal(t, []any{want.Name, want.Streams, want.Blocks}, []any{got.Name, got.Streams, got.Blocks})
	}
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "no operation",
		header:                                   "no operation",
		"another\n+ 1 0\n- 0 0\n":                "line 1",
		header + "\n+ 1 0\n":                     "never freed",
		header + "\n+ 1 0\n- 0 0\n- 0 0\n":       "line 4: block 0 is not allocated",
		header + "\n- 0 0\n":                     "not allocated",
		header + "\n+ 1 0\n- 1 0\n":              "not allocated",
		header + "\n+ 0 0\n":                     "0 bytes",
		header + "\n+ 17592186044417 0\n":        "17592186044417 bytes",
		header + "\n+ -1 0\n":                    "invalid syntax",
		header + "\n+ 1 64\n":                    "stream 64",
		header + "\n+ 1 256\n":                   "out of range",
		header + "\n+ 1\n":                       "stream",
		header + "\n+ 1 0 0\n":                   "invalid syntax",
		header + "\n- 4294967296 0\n":            "out of range",
		header + "\nx 1 0\n":                     "no operation",
		header + "\n\n":                          "stream",
		header + "\ns \n":                        "stream",
		header + "\n" + strings.Repeat("+", 300): "too long",
	} {
		_, err := Read(strings.NewReader(text), "")
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(header + "\n+ 512 0\ns\n+ 1073741824 3\n- 0 1\n- 1 0\n")
	f.Add(header + "\n+ 1 0\n- 0 0\n- 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text), "fuzz")
		if err != nil {
			return
		}
		require.NoError(t, tr.Check())
		var b bytes.Buffer
		require.NoError(t, tr.Write(&b))
		again, err := Read(&b, "fuzz")
		require.NoError(t, err)
		require.Equal(t, tr, again)
		tr.Scale(gib)
		require.NoError(t, tr.Check())
	})
}

func TestCheckRefuses(t *testing.T) {
	good := Generators[0].Make(1, gib)
	for name, spoil := range map[string]func(t *Trace){
		"freed twice":   func(t *Trace) { t.Ops = append(t.Ops, Op{Kind: Free, Block: 0}) },
		"never freed":   func(t *Trace) { t.Ops = t.Ops[:len(t.Ops)-2] },
		"kind":          func(t *Trace) { t.Ops = append(t.Ops, Op{}) },
		"streams":       func(t *Trace) { t.Streams = 1 },
		"blocks":        func(t *Trace) { t.Blocks++ },
		"out of order":  func(t *Trace) { t.Ops = append(t.Ops, Op{Kind: Alloc, Block: 1 << 30, Size: 1}) },
		"size overflow": func(t *Trace) { t.Ops = append(t.Ops, Op{Kind: Alloc, Block: uint32(t.Blocks), Size: 1 << 60}) },
	} {
		tr := *good
		tr.Ops = append([]Op(nil), good.Ops...)
		spoil(&tr)
		require.Error(t, tr.Check(), name)
	}
}
