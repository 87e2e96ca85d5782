// Package pool is a stream-ordered allocator on memory that grows in place.
package pool
