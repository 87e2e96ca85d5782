// Package host is host memory as a driver: growable, shareable memory with the
// rules of a card, on any Linux machine.
package host
