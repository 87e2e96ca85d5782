package shareable

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/shareable/internal/wire"
	"github.com/cuvmm/cuvmm/vmm"
)

func TestPublishLayout(t *testing.T) {
	t.Parallel()
	rows := vmm.Layout{Kind: vmm.ElemFloat, Bits: 32, Size: 4, Shape: []int{3, 5}, Pitch: 64, Hash: [32]byte{7}}
	s, p, g := stage(t, Options{}, PublishOptions{Layout: rows})
	rows.Shape[0] = 9 // the caller's again
	r := attachPlain(t, s.Path(), "x")
	require.Equal(t, wire.Elem{Kind: wire.KindFloat, Bits: 32, Size: 4, Hash: [32]byte{7}}, r.o.Elem)
	require.Equal(t, []uint64{3, 5}, r.o.Shape)
	require.Equal(t, uint64(64), r.o.Pitch)
	rows.Shape[0] = 3
	require.True(t, rows.Equal(attached(t, s, AttachOptions{}).Layout()))
	require.NoError(t, p.Close())

	_, err := s.Publish("y", g, PublishOptions{Layout: vmm.Layout{Kind: vmm.ElemFloat, Bits: 31, Size: 4, Pitch: 4}})
	require.ErrorIs(t, err, vmm.ErrInvalid)
	plain, err := s.Publish("z", g, PublishOptions{})
	require.NoError(t, err)
	r = attachPlain(t, s.Path(), "z")
	require.Zero(t, r.o.Elem)
	require.NoError(t, plain.Close())
}

// The numbers on the wire are those of package vmm.
func TestKindsAgree(t *testing.T) {
	t.Parallel()
	for kind, number := range map[vmm.ElemKind]uint32{
		vmm.ElemOpaque: wire.KindOpaque, vmm.ElemInt: wire.KindInt, vmm.ElemUint: wire.KindUint,
		vmm.ElemFloat: wire.KindFloat, vmm.ElemComplex: wire.KindComplex, vmm.ElemBool: wire.KindBool,
	} {
		require.Equal(t, number, uint32(kind))
	}
}
