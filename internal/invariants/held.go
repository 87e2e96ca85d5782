package invariants

// Held panics, in builds with -tags invariants, if no goroutine holds mu, for reading at
// least. Functions whose names end in Locked call it.
func Held(mu interface {
	TryLock() bool
	Unlock()
}) {
	if Enabled && mu.TryLock() {
		mu.Unlock()
		panic("a lock that has to be held is not") //nolint:forbidigo // only in builds of our own tests
	}
}
