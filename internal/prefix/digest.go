package prefix

import (
	"context"
	"crypto/sha256"
	"io"
	"math"
)

// Digest reads the first n bytes of r and returns their SHA-256.
func Digest(ctx context.Context, r io.ReaderAt, n uint64) (sum [32]byte, err error) {
	h := sha256.New()
	rest := io.NewSectionReader(r, 0, int64(min(n, math.MaxInt64)))
	buf := make([]byte, 8<<20)
	for {
		if err := ctx.Err(); err != nil {
			return sum, err
		}
		n, err := rest.Read(buf)
		h.Write(buf[:n])
		if err == io.EOF {
			h.Sum(sum[:0])
			return sum, nil
		}
		if err != nil {
			return sum, err
		}
	}
}
