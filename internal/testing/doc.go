// Package testing has no code: it is the folder of what only tests use. In it are libraries and
// drivers that need no GPU, what makes calls fail or hang, and what decides which tests run and
// compares their figures.
package testing
