package kernel

func hostBuiltins() map[string]any { return map[string]any{} }

type Pattern struct{ Seed uint64 }
