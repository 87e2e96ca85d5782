package ipc

// NoHold lets exported blocks be freed.
func NoHold(e *Exporter) { e.noHold = true }

// Forget forgets what is exported, whatever its blocks are by now.
func Forget(e *Exporter) {
	for at, x := range e.blocks {
		_ = x.span.Close()
		delete(e.blocks, at)
	}
}

// EventsOf is how many events the unmap of a block's memory waits for.
func EventsOf(b *ImportedBlock) int {
	b.in.mu.Lock()
	defer b.in.mu.Unlock()
	return len(b.m.before)
}

// OwnTokens is how many tokens of this process's blocks are remembered.
func OwnTokens() int {
	tokens.mu.Lock()
	defer tokens.mu.Unlock()
	return len(tokens.own)
}
