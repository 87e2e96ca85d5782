package pool_test

import (
	"testing"
)

// FuzzPool decodes bytes into operations of the machine.
func FuzzPool(f *testing.F) {
	rnd := newRand(1)
	for n := range 6 {
		b := make([]byte, 60*(n+1))
		for i := range b {
			b[i] = byte(rnd.IntN(256))
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m := newMachine(t, t, func(n int) int { return decode(&b, n) })
		for i := 0; len(b) > 0 && i < 300; i++ {
			m.step()
		}
		m.end()
	})
}

// decode takes as many bytes as a number below n needs.
func decode(b *[]byte, n int) int {
	x, span := 0, 1
	for span < n && len(*b) > 0 {
		x, span = x<<8|int((*b)[0]), span<<8
		*b = (*b)[1:]
	}
	return x % n
}
