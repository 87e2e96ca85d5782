//go:build !unix

package main

import (
	"io/fs"
	"os"
)

// openInPlace opens what is not a regular file.
func openInPlace(name string, _ fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, os.O_WRONLY, 0)
}
