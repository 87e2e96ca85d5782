// Package docpictures draws the pictures of README.md and docs/concepts.md, each for light pages and
// for dark ones. It is all tests: one compares the files in docs/images with what is drawn here, and
// writes them with
//
//	go test ./internal/docpictures -update
package docpictures
