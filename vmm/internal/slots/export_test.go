package slots

// FreeIsZero reports whether what no slot uses is zero.
func (t *Table[M, R]) FreeIsZero() bool {
	for i := t.gap; i < t.after; i++ {
		s := &t.array[i]
		if s.Off != 0 || s.Size != 0 {
			return false
		}
	}
	return true
}
