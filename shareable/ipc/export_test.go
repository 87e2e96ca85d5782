package ipc

// NewHandle is newHandle.
var NewHandle = newHandle

// OwnTokens is how many tokens of this process's blocks are remembered.
func OwnTokens() int {
	tokens.mu.Lock()
	defer tokens.mu.Unlock()
	return len(tokens.own)
}
