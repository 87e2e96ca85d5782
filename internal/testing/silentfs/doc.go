// Package silentfs is a file system that has stopped replying, for tests: a FUSE mount
// whose daemon does nothing any more. Any process can pass a descriptor of such a file
// to another one.
package silentfs
