// Package repochecks holds the rules of this module that no one package can hold
// for itself: what a program that uses the library comes to depend on, where C
// and unsafe may stand, how long a file may be, that the programs in the documents
// compile and run, that links lead somewhere, and that each doc.go lists the files of its
// package. It is all tests. What one package may import from another is in .golangci.yml.
package repochecks
