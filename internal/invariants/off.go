//go:build !invariants

// Package invariants reports whether a test build checks its own books after each
// change. Turn it on with -tags invariants.
package invariants

// Enabled is true in builds with -tags invariants.
const Enabled = false
