package prefix_test

import (
	"io"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cuvmm/cuvmm/internal/prefix"
)

func TestPart(t *testing.T) {
	for _, c := range []struct {
		n    int
		off  int64
		have uint64
		want int
		err  error
	}{
		{4, 0, 8, 4, nil},
		{4, 4, 8, 4, nil},
		{4, 5, 8, 3, io.EOF},
		{4, 8, 8, 0, io.EOF},
		{4, 9, 8, 0, io.EOF},
		{0, 9, 8, 0, nil},
		{0, 0, 0, 0, nil},
		{1, math.MaxInt64, math.MaxUint64, 1, nil},
	} {
		n, err := prefix.Part(c.n, c.off, c.have)
		require.Equal(t, c.want, n, "%+v", c)
		require.Equal(t, c.err, err, "%+v", c)
	}
}
