//go:build !race

package growable_test

// raceBuild: its locks note their order, which allocates.
const raceBuild = false
