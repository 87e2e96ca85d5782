package shareable

// socketPath stands in for the owner's side.
func socketPath(path string) (string, error) { return path, nil }
