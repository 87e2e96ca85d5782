package trace

import (
	"fmt"
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

// written is the trace as RMM writes it, without waits. Blocks lie where no other ever does.
func written(t *Trace) string {
	var b strings.Builder
	fmt.Fprintln(&b, header)
	sizes := make([]uint64, t.Blocks)
	for _, o := range t.Ops {
		if o.Kind == Sync {
			continue
		}
		action := "free"
		if o.Kind == Alloc {
			action = "allocate"
			sizes[o.Block] = o.Size
		}
		fmt.Fprintf(&b, "7,23:59:59.999999,%s,0x%x,%d,0x%x\n", action, 0x7f00<<32+uint64(o.Block), sizes[o.Block], 0x5500+int(o.Stream))
	}
	return b.String()
}

func TestRead(t *testing.T) {
	for _, g := range Generators {
		want := g.Make(3, gib)
		got, err := Read(strings.NewReader(written(want)), g.Name)
		require.NoError(t, err)
		require.Equal(t, []any{want.Name, want.Streams, want.Blocks}, []any{got.Name, got.Streams, got.Blocks})
		require.Equal(t, want.Peak(), got.Peak())
		streams := map[uint8]uint8{} // they are numbered as they appear
		i := 0
		for _, o := range want.Ops {
			if o.Kind == Sync {
				continue
			}
			if _, ok := streams[o.Stream]; !ok {
				streams[o.Stream] = uint8(len(streams))
			}
			o.Stream = streams[o.Stream]
			require.Equal(t, o, got.Ops[i])
			i++
		}
		require.Len(t, got.Ops, i)
	}
}

// What RMM writes beside blocks that lie somewhere.
func TestReadLeavesOut(t *testing.T) {
	got, err := Read(strings.NewReader(header+`
140,12:00:00.000001,allocate,(nil),0,0
140,12:00:00.000002,allocate,0x7f0000,5,0x55aa
140,12:00:00.000003,allocate failure,(nil),99,0x77
141,12:00:00.000004,free,(nil),0,0
141,12:00:00.000005,free,0x7f0000,5,0
`), "x")
	require.NoError(t, err)
	require.Equal(t, []Op{{Kind: Alloc, Size: 5}, {Kind: Free, Stream: 1}}, got.Ops)
	require.Equal(t, []int{2, 1}, []int{got.Streams, got.Blocks})
}

func TestReadRefuses(t *testing.T) {
	const one = "\n1,t,allocate,0x10,8,0"
	many := header
	for i := range MaxStreams + 1 {
		many += fmt.Sprintf("\n1,t,allocate,%#x,8,%#x", 16*i, i)
	}
	for text, want := range map[string]string{
		"":     "no operation",
		header: "no operation",
		"Action,Pointer,Size,Stream\nallocate,0x10,8,0\nfree,0x10,8,0\n": "line 1",
		header + one: "never freed",
		header + one + "\n1,t,free,0x10,8,0\n1,t,free,0x10,8,0": "line 4: no block of 8 bytes is at 0x10",
		header + one + "\n1,t,free,0x10,9,0":                    "no block of 9 bytes is at 0x10",
		header + one + one:                                      "0x10 is block 0 already",
		header + "\n1,t,free,0x10,8,0":                          "no block of 8",
		header + "\n1,t,allocate,0x10,17592186044417,0":         "17592186044417 bytes",
		header + "\n1,t,allocate,0x10,-1,0":                     "size: ",
		header + "\n1,t,allocate,0x10,8,default":                "stream: ",
		header + "\n1,t,allocate,0xg,8,0":                       "pointer: ",
		header + "\nx,t,allocate,0x10,8,0":                      "thread: ",
		header + "\n1,t,sync,0x10,8,0":                          "\"sync\" is no action",
		header + "\n1,t,sync,0x10,0,0":                          "\"sync\" is no action",
		header + "\n1,t,allocate,0x10,8":                        "5 columns",
		header + "\n":                                           "no operation",
		header + "\n\n":                                         "1 columns",
		header + "\n" + strings.Repeat("+", 300):                "too long",
		many:                                                    "more than 64 streams",
	} {
		_, err := Read(strings.NewReader(text), "")
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(header + "\n1,t,allocate,0x10,512,0\n1,t,allocate,0x20,1073741824,0x3\n1,t,free,0x10,512,0x1\n1,t,free,0x20,1073741824,0\n")
	f.Add(header + "\n1,t,allocate,(nil),0,0\n1,t,allocate failure,(nil),8,0\n1,t,free,0x10,8,0\n")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text), "fuzz")
		if err != nil {
			return
		}
		require.NoError(t, tr.Check())
		again, err := Read(strings.NewReader(written(tr)), "fuzz")
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

func TestShorten(t *testing.T) {
	for _, g := range Generators {
		for _, n := range []int{0, 1, 1000, 1 << 30} {
			tr := g.Make(5, gib)
			all := slices.Clone(tr.Ops)
			tr.Shorten(n)
			n = min(n, len(all))
			require.NoError(t, tr.Check())
			require.Equal(t, all[:n], tr.Ops[:n])
			require.Equal(t, Op{Kind: Sync}, tr.Ops[len(tr.Ops)-1])
		}
	}
}
